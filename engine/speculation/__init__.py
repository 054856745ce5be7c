"""Speculative decoding: what drafts tokens, and how many."""
