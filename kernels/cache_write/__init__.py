"""From projected heads into the KV cache, in one pass over memory."""
