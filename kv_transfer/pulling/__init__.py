"""Cached KV lent between peers."""
