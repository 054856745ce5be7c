"""Which request holds which KV block: references, names and accounts, no bytes."""
