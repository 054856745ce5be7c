"""Heads that guess the next tokens of a model that they were trained for: EAGLE's and Medusa's."""
