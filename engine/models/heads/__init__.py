"""Draft heads trained for a model: EAGLE and Medusa."""
