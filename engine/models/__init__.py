"""Model families, one short file each, on a shared skeleton."""
