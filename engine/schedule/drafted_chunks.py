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
"""Draft tokens by request, behind those that it knows."""
NO_DRAFTS: Drafts = MappingProxyType({})


class ScheduledChunk(NamedTuple):
    """The next `num_tokens` pending tokens of a request, then what is drafted behind them; its
    blocks cover both."""

    request: Request
    num_tokens: int
    drafted: Sequence[int] = ()
    """Guesses, which count as nothing before the pass has verified them: they are not known, not
    computed and in no name, and nobody else is told of them."""


def with_drafts(
    chunks: Sequence[ScheduledChunk],
    drafts: Drafts,
    pool: BlockPool,
    max_tokens: int,
    *,
    may_grow: bool,
    num_open: int,
) -> list[ScheduledChunk]:
    """`max_tokens`: those of the pass, the chunks' own included. Without `may_grow` drafts lie in
    the blocks that requests have. `num_open`: see `KvCache`."""
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
    """How many of them lie in blocks that can be written over: where full ones are in 4 bits, the
    token behind the known ones may have to take the place of a wrong draft, and what is before it
    in its block must be there as computed."""
    size = layout.block_size
    return min(wanted, num_open * size - len(request.tokens) % size)


def _room(pool: BlockPool, request: Request, wanted: int, *, may_grow: bool) -> int:
    """How many of them have, or now get, a place in the request's blocks: as many of a long draft
    as of a short one, for whether a token is verified must not hang on those behind it."""
    layout, num_known = pool.layout, len(request.tokens)
    stop = num_known + wanted
    if not may_grow:
        stop = min(stop, len(pool.table(request.holder)) * layout.block_size)
    while not pool.grow(request.holder, stop):
        stop = (stop - 1) // layout.block_size * layout.block_size
    return stop - num_known
