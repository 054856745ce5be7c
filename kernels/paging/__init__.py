"""The tokens of a pass, the location of their KV, its bytes and checksums."""
