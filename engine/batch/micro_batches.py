"""A pass cut into pieces that follow each other through the stages of a pipeline.

    stage 0     a  b  c  d
    stage 1        a  b  c  d             of M pieces and P stages, (P - 1) / (M + P - 1) is idle

Chunks are cut where the tokens of a pass are even, at no boundary but that of tokens: a row of the
result depends on that row alone, and on each stage a request's tokens still come in order. Pieces
that are too small to be worth it, whose weights are read anew for each, are not made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from baton.engine.batch.batch import Chunk


def micro_batches(
    chunks: Sequence[Chunk], *, most: int, least_tokens: int
) -> Sequence[Sequence[Chunk]]:
    """Up to `most` of them, none smaller than `least_tokens` if there are several."""
    num_tokens = sum(len(chunk.tokens) for chunk in chunks)
    count = min(most, num_tokens // least_tokens)
    if count < 2:
        return [chunks]
    stops = [num_tokens * (piece + 1) // count for piece in range(count)]
    return [list(_between(chunks, *span)) for span in zip([0, *stops], stops, strict=False)]


def _between(chunks: Sequence[Chunk], first: int, stop: int) -> Iterator[Chunk]:
    """What of them are the tokens [first, stop) of the pass."""
    end = 0
    for chunk in chunks:
        begin, end = end, end + len(chunk.tokens)
        inside = slice(max(first, begin) - begin, min(stop, end) - begin)
        if inside.start < inside.stop:
            yield _part(chunk, inside)


def _part(chunk: Chunk, inside: slice) -> Chunk:
    first_output = len(chunk.tokens) - chunk.num_outputs
    return chunk._replace(
        tokens=chunk.tokens[inside],
        start=chunk.start + inside.start,
        num_outputs=max(0, inside.stop - max(inside.start, first_output)),
    )
