"""Products of activations with weights in any format."""
