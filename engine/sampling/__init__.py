"""From rows of logits to tokens."""
