"""Places for KV outside device memory: host memory, local disk, a shared store."""
