"""The model families, one short file each."""
