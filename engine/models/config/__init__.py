"""A model's `config.json`, checked and frozen."""
