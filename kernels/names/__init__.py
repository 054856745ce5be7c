"""Block hashes and indexes of their holders; without torch."""
