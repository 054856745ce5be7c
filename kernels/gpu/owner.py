# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-incomplete-defs
# mypy: no-warn-return-any
"""Finds the request that a token of a pass belongs to, on the device."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def owner_of(query_starts, num_requests, tokens):
    """The last request that begins at or before each of `tokens`, by binary search."""
    low = tokens * 0
    width = num_requests
    while width > 1:
        half = width // 2
        middle = low + half  # below num_requests: low + width never passes it
        low = tl.where(tl.load(query_starts + middle) <= tokens, middle, low)
        width -= half
    return low
