"""One-sided reads with NIXL."""
