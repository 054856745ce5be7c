"""Whether decode graphs give what the model gives, which is asked once they are captured."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from baton.engine.batch.batch import Chunk, ignore_layer, make_batch
from baton.engine.batch.static_batch import GraphSize
from baton.engine.memory.kv_cache import KvCache
from baton.engine.mesh.attempt import RanksApart, said_by_all, tried_by_all
from baton.engine.passes.captured_model import CapturedModel
from baton.engine.passes.cuda_graphs import DecodeGraphs
from baton.engine.passes.graph_capture import launched_by_all

TOLERANCE = 2e-2
"""Relative, between a graph and the model: products may be split otherwise for other sizes."""
CHECKED_TOKENS = 640
"""Tokens of the longest context that graphs are checked with: several splits, and many blocks."""


def disagreement(graphs: DecodeGraphs) -> str | None:
    """What is wrong with the graphs of any rank: the smallest, one between and the largest of those
    that decode, and of those that verify drafts, over contexts from a single token to many blocks.
    The blocks that this takes are zero again afterwards.

    Raises InvalidConfig if several ranks cannot launch a pass, and RanksApart: nothing more is
    launched then, for devices may wait for each other.
    """
    cache, ranks = graphs.captured.cache, graphs.captured.ranks
    past = past_of(graphs.max_context, cache)
    try:
        reason = _difference(graphs, past)
    except RanksApart:
        raise
    except RuntimeError as error:
        reason = str(error)
    num_written = max([size.num_requests * _own_blocks(size, cache) for size in graphs.sizes])
    for block in range(min(cache.num_blocks, len(past) + num_written)):
        for plane in range(cache.layout.num_planes):
            cache.clear_tail(block, plane, 0)
    if all(said_by_all(ranks, not reason)):
        return None
    return reason or "those of another rank gave something else than the model"


def _difference(graphs: DecodeGraphs, past: range) -> str:
    """No size is left out once one is wrong: other ranks compute them, too."""
    captured, reason = graphs.captured, ""
    model, cache, taps, ranks = captured.model, captured.cache, captured.taps, captured.ranks
    with launched_by_all(ranks):
        write_past(past, captured)
    for size in _checked(graphs.sizes):
        with launched_by_all(ranks):
            most = (graphs.max_context - size.run) // cache.layout.block_size
            chunks = _checked_rows(size, past[:most], len(past), captured)
            hidden = graphs.forward(chunks, size)
            logits = graphs.logits_of(hidden)
            assert logits is not None
            found = (hidden, logits, *(() if taps is None else taps.found))
            batch = make_batch(chunks, cache.layout.block_size, cache.device)
            wanted: Tensor = model(batch, cache.layers, ignore_layer, taps)
            expected = (wanted, model.logits(wanted), *(() if taps is None else taps.found))
        with tried_by_all(ranks):
            if not all(map(agree, found, expected)):
                reason = (
                    f"the graph of {size.num_requests} requests of {size.run} tokens gave "
                    "something else than the model"
                )
    return reason


def _checked(sizes: Sequence[GraphSize]) -> list[GraphSize]:
    decodes = [size for size in sizes if size.run == 1]
    drafts = [size for size in sizes if size.run > 1]
    return [
        size
        for alike in (decodes, drafts)
        if alike
        for size in sorted({alike[0], alike[len(alike) // 2], alike[-1]})
    ]


def past_of(max_context: int, cache: KvCache) -> range:
    """The blocks of a context that others go on from: half of those that there are, at most."""
    size = cache.layout.block_size
    return range(min(-(-CHECKED_TOKENS // size), max_context // size - 1, cache.num_blocks // 2))


def write_past(past: range, captured: CapturedModel) -> None:
    """Let the model compute that context."""
    if past:
        size, cache = captured.block_size, captured.cache
        tokens = [1 + place % 7 for place in range(len(past) * size)]
        batch = make_batch([Chunk(tokens, 0, past, 0)], size, cache.device)
        captured.model(batch, cache.layers, ignore_layer)


def _own_blocks(size: GraphSize, cache: KvCache) -> int:
    """Blocks that a request's new tokens lie in."""
    return -(-size.run // cache.layout.block_size)


def _checked_rows(
    size: GraphSize, past: range, first_own: int, captured: CapturedModel
) -> list[Chunk]:
    """Requests that share a past, each up to another block, and then have blocks of their own, from
    `first_own` on; of drafts one has fewer than the next.

    Those that no block is left for are as rows for nobody.
    """
    rows: list[Chunk] = []
    cache, num_own = captured.cache, _own_blocks(size, captured.cache)
    for row in range(size.num_requests):
        own = range(first_own + row * num_own, first_own + (row + 1) * num_own)
        if own.stop > cache.num_blocks:
            break
        shared = past[: len(past) - row * 5 % (len(past) + 1)]
        tokens = [1 + (row + place) % 5 for place in range(size.run - row % size.run)]
        start = len(shared) * captured.block_size
        rows.append(Chunk(tokens, start, (*shared, *own), len(tokens)))
    num_missing = size.num_requests - len(rows)
    return rows + [captured.nobody(size.run)] * num_missing


def agree(found: Tensor, wanted: Tensor) -> bool:
    limit = TOLERANCE * float(wanted.float().abs().max())
    return bool(((found.float() - wanted.float()).abs() <= limit).all())
