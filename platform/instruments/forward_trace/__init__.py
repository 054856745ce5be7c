"""One forward pass of a model, stage by stage: what `baton trace` shows."""
