"""Chunks of a step with their draft tokens appended, as far as there is room.

Drafts come last: they take no token of the budget and no block that another request could use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from baton.core.kv_layout import KvLayout
from baton.engine.blocks.block_pool import BlockPool
from baton.engine.request.request import Request

Drafts = Mapping[Request, Sequence[int]]
"""Draft tokens by request; they follow the request's known tokens."""
NO_DRAFTS: Drafts = MappingProxyType({})


class ScheduledChunk(NamedTuple):
    """The next `num_tokens` pending tokens of a request, followed by its draft tokens. The
    request's blocks have room for both."""

    request: Request
    num_tokens: int
    drafted: Sequence[int] = ()
    """Draft tokens. Until the pass has verified them they are not among the request's known or
    computed tokens, are not hashed into any block's name, and are not reported to anyone."""


def with_drafts(
    chunks: Sequence[ScheduledChunk],
    drafts: Drafts,
    pool: BlockPool,
    max_tokens: int,
    *,
    may_grow: bool,
    num_open: int,
) -> list[ScheduledChunk]:
    """The chunks, each with as many of its request's draft tokens as there is room for.

    `max_tokens` is the limit of the whole pass, the chunks' own tokens included. Without
    `may_grow`, drafts only use blocks that the requests hold already. `num_open`: see `KvCache`.
    """
    budget = max_tokens - sum([chunk.num_tokens for chunk in chunks])
    layout = pool.layout
    drafting: list[ScheduledChunk] = []
    for chunk in chunks:
        request, num_tokens, _ = chunk
        drafted = drafts.get(request)
        if drafted and num_tokens == request.num_pending:
            num = min(len(drafted), budget)
            if layout.is_int4:
                num = _within_open(layout, request, num, num_open)
            if not may_grow or not pool.grow(request.holder, len(request.tokens) + num):
                num = _room(pool, request, num, may_grow=may_grow)
            budget -= num
            chunk = ScheduledChunk(request, num_tokens, drafted[:num])
        drafting.append(chunk)
    return drafting


def _within_open(layout: KvLayout, request: Request, wanted: int, num_open: int) -> int:
    """How many of `wanted` draft tokens fit into blocks that can still be overwritten.

    With int4 KV, full blocks are quantized and only the last `num_open` blocks keep KV as computed.
    A rejected draft token is overwritten by the right one, which needs the KV before it in the same
    block to be unquantized still.
    """
    size = layout.block_size
    return min(wanted, num_open * size - len(request.tokens) % size)


def _room(pool: BlockPool, request: Request, wanted: int, *, may_grow: bool) -> int:
    """How many of `wanted` draft tokens fit into the request's blocks, after growing them if
    allowed. A long draft gets as much room as a short one, because whether a token is verified must
    not depend on the draft tokens after it."""
    layout, num_known = pool.layout, len(request.tokens)
    stop = num_known + wanted
    if not may_grow:
        stop = min(stop, len(pool.table(request.holder)) * layout.block_size)
    while not pool.grow(request.holder, stop):
        stop = (stop - 1) // layout.block_size * layout.block_size
    return stop - num_known
