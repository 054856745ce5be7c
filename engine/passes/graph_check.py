"""Checks after capture that decode graphs give the same results as the model."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from baton.engine.batch.batch import Chunk, ignore_layer, make_batch
from baton.engine.batch.static_batch import GraphSize
from baton.engine.memory.kv_cache import KvCache
from baton.engine.mesh.attempt import RanksApart, collective_attempt, gather_numbers
from baton.engine.passes.captured_model import CapturedModel
from baton.engine.passes.cuda_graphs import DecodeGraphs
from baton.engine.passes.graph_capture import collective_launch

TOLERANCE = 2e-2
"""Relative tolerance between a graph and the model: products may be split differently for other
sizes."""
CHECKED_TOKENS = 640
"""Length of the longest context in the check: enough for several splits and many blocks."""


def disagreement(graphs: DecodeGraphs) -> str | None:
    """The reason why the graphs of some rank are wrong; None if all are right. A collective over
    the ranks.

    Of the graphs that decode, and of those that verify drafts, the smallest, a middle one and the
    largest are compared with the model, over contexts from one token to many blocks. The blocks
    used for it are zeroed afterwards.

    Raises InvalidConfig if one of several ranks cannot launch a pass, and RanksApart if ranks no
    longer agree; nothing more is launched then, as devices may wait for each other.
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
    if all(gather_numbers(ranks, not reason)):
        return None
    return reason or "the graphs of another rank gave other results than the model"


def _difference(graphs: DecodeGraphs, past: range) -> str:
    """The reason, or an empty text. All sizes are computed even after one is wrong, because other
    ranks compute them, too."""
    captured, reason = graphs.captured, ""
    model, cache, taps, ranks = captured.model, captured.cache, captured.taps, captured.ranks
    with collective_launch(ranks):
        write_past(past, captured)
    for size in _checked(graphs.sizes):
        with collective_launch(ranks):
            most = (graphs.max_context - size.run) // cache.layout.block_size
            chunks = _checked_rows(size, past[:most], len(past), captured)
            hidden = graphs.forward(chunks, size)
            logits = graphs.logits_of(hidden)
            assert logits is not None
            found = (hidden, logits, *(() if taps is None else taps.found))
            batch = make_batch(chunks, cache.layout.block_size, cache.device)
            wanted: Tensor = model(batch, cache.layers, ignore_layer, taps)
            expected = (wanted, model.logits(wanted), *(() if taps is None else taps.found))
        with collective_attempt(ranks):
            if not all(map(agree, found, expected)):
                reason = f"the graph of {size} gave other results than the model"
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
    """The blocks of a context that the checked requests share; at most half of the cache."""
    size = cache.layout.block_size
    return range(min(-(-CHECKED_TOKENS // size), max_context // size - 1, cache.num_blocks // 2))


def write_past(past: range, captured: CapturedModel) -> None:
    """Compute the KV of the shared context with the model."""
    if past:
        size, cache = captured.block_size, captured.cache
        tokens = [1 + place % 7 for place in range(len(past) * size)]
        batch = make_batch([Chunk(tokens, 0, past, 0)], size, cache.device)
        captured.model(batch, cache.layers, ignore_layer)


def _own_blocks(size: GraphSize, cache: KvCache) -> int:
    """The number of blocks for a request's new tokens."""
    return -(-size.run // cache.layout.block_size)


def _checked_rows(
    size: GraphSize, past: range, first_own: int, captured: CapturedModel
) -> list[Chunk]:
    """Requests that share the blocks of `past`, each up to another block, and have blocks of their
    own after that, from `first_own` on. Their numbers of draft tokens differ. Once no block is
    left, the rest are padding."""
    rows: list[Chunk] = []
    cache, num_own = captured.cache, _own_blocks(size, captured.cache)
    for row in range(size.num_requests):
        own = range(first_own + row * num_own, first_own + (row + 1) * num_own)
        if own.stop > cache.num_blocks:
            break
        shared = past[: len(past) - row * 5 % (len(past) + 1)]
        tokens = [1 + (row + place) % 5 for place in range(size.run - row % size.run)]
        start = len(shared) * captured.block_size
        adapter = row % 2 if captured.model.adapters.exist else 0
        rows.append(Chunk(tokens, start, (*shared, *own), len(tokens), adapter=adapter))
    num_missing = size.num_requests - len(rows)
    return rows + [captured.padding(size.run)] * num_missing


def agree(found: Tensor, wanted: Tensor) -> bool:
    """Whether all values differ by at most `TOLERANCE` times the largest one."""
    limit = TOLERANCE * float(wanted.float().abs().max())
    return bool(((found.float() - wanted.float()).abs() <= limit).all())
