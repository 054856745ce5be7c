"""Checks after capture that graphs of passes with prompts give the same results as the model."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from baton.engine.batch.batch import Chunk, ignore_layer, make_batch
from baton.engine.mesh.attempt import RanksApart, collective_attempt, gather_numbers
from baton.engine.passes.graph_capture import collective_launch
from baton.engine.passes.graph_check import agree, past_of, write_past
from baton.engine.passes.mixed_graphs import MixedGraphs

LEFT_OUT = 3
"""Number of tokens that are padding in the check, if the graph has more."""


def mixed_disagreement(graphs: MixedGraphs) -> str | None:
    """The reason why the graphs of some rank are wrong; None if all are right. A collective over
    the ranks.

    The smallest, a middle and the largest graph are compared with the model, on a request that
    decodes, a prompt that is continued and one that begins. The blocks used for it are zeroed
    afterwards. Raises the same errors as `graph_check.disagreement`.
    """
    cache, ranks = graphs.captured.cache, graphs.captured.ranks
    past = past_of(graphs.max_context, cache)
    checked = [_requests(size, past, graphs) for size in _checked(graphs.sizes)]
    reason = ""
    try:
        with collective_launch(ranks):
            write_past(past, graphs.captured)
        for chunks, size in zip(checked, _checked(graphs.sizes), strict=True):
            if chunks and not _is_alike(graphs, chunks, size):
                reason = f"the graph of {size} tokens gave other results than the model"
    except RanksApart:
        raise
    except RuntimeError as error:
        reason = str(error)
    written = {block for chunks in checked for chunk in chunks for block in chunk.blocks}
    for block in {*past, *written}:
        for plane in range(cache.layout.num_planes):
            cache.clear_tail(block, plane, 0)
    if all(gather_numbers(ranks, not reason)):
        return None
    return reason or "the graphs of another rank gave other results than the model"


def _is_alike(graphs: MixedGraphs, chunks: Sequence[Chunk], size: int) -> bool:
    captured = graphs.captured
    model, cache, taps, ranks = captured.model, captured.cache, captured.taps, captured.ranks
    with collective_launch(ranks):
        hidden = graphs.forward(chunks, size)
        found = (hidden, *(() if taps is None else taps.found))
        # Padded like the graph: with another number of tokens products may be split differently,
        # and other experts chosen.
        padded = graphs.padded(chunks, size)
        batch = make_batch(padded, cache.layout.block_size, cache.device)
        wanted: Tensor = model(batch, cache.layers, ignore_layer, taps)
        expected = (wanted, *(() if taps is None else taps.found))
    is_alike = False
    with collective_attempt(ranks):
        is_alike = all(map(agree, found, expected))
    return is_alike


def _checked(sizes: Sequence[int]) -> list[int]:
    return sorted({sizes[0], sizes[len(sizes) // 2], sizes[-1]})


def _requests(size: int, past: range, graphs: MixedGraphs) -> list[Chunk]:
    """The three requests, or as many as there are blocks for. They have blocks of their own after
    those of `past`, which two of them share."""
    block_size, num_blocks = graphs.captured.block_size, graphs.captured.cache.num_blocks
    half = past[: len(past) // 2]
    left = size - 1 - size // 2
    lengths = [(size // 2, half), (1, past), (left - LEFT_OUT if left > LEFT_OUT else left, ())]
    chunks: list[Chunk] = []
    first_own = len(past)
    for length, shared in lengths[: graphs.max_requests]:
        own = range(first_own, first_own + -(-length // block_size))
        start = len(shared) * block_size
        if length < 1 or own.stop > num_blocks or start + length > graphs.max_context:
            continue
        first_own = own.stop
        tokens = [1 + (length + place) % 5 for place in range(length)]
        adapter = len(chunks) % 2 if graphs.captured.model.adapters.exist else 0
        wanted = min(length, 2)
        chunks.append(Chunk(tokens, start, (*shared, *own), wanted, adapter=adapter))
    return chunks
