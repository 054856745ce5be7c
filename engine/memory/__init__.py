"""Memory of KV blocks: arenas on a device."""
