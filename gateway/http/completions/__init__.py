"""POST /v1/completions and /v1/chat/completions, and fields that other APIs share with them."""
