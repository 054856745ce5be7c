"""Splits a pass into micro-batches, which follow each other through the stages of a pipeline.

    stage 0     a  b  c  d
    stage 1        a  b  c  d             with M micro-batches and P stages, a share of
                                          (P - 1) / (M + P - 1) of the time is idle

The tokens of a pass are split evenly, so a chunk may be cut at any token: a row of the result
depends on that row alone, and each stage still sees a request's tokens in order. Each micro-batch
reads all weights again, so none is made smaller than a least number of tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from baton.engine.batch.batch import Chunk


def micro_batches(
    chunks: Sequence[Chunk], *, most: int, least_tokens: int
) -> Sequence[Sequence[Chunk]]:
    """At most `most` micro-batches with equal numbers of tokens; if there are several, each has at
    least about `least_tokens`."""
    num_tokens = sum(len(chunk.tokens) for chunk in chunks)
    count = min(most, num_tokens // least_tokens)
    if count < 2:
        return [chunks]
    stops = [num_tokens * (piece + 1) // count for piece in range(count)]
    return [list(_between(chunks, *span)) for span in zip([0, *stops], stops, strict=False)]


def _between(chunks: Sequence[Chunk], first: int, stop: int) -> Iterator[Chunk]:
    """The parts of `chunks` that are the tokens [first, stop) of the pass."""
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
