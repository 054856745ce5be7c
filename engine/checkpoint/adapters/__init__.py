"""Low-rank adapters (LoRA) of a model: read from PEFT's folders, kept beside its linear layers."""
