"""The named parts that models are composed of."""
