"""POST /v1/completions and /v1/chat/completions, and what other APIs read like them."""
