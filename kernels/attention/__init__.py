"""From queries and the KV cache to what was attended."""
