"""Which tokens a pass has, where their KV lies, its bytes and checksums."""
