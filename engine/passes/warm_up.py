"""Passes that are run before requests come: one for each kind that has its own kernels on a GPU.

    new tokens     1, 2, 4, 8 ... and the most: prompts, alone and with a request that decodes
    context        empty; as long as possible; and a length that is read in pieces of all sizes

Which kernel is launched depends on the number of tokens of a request or pass, rounded up to a power
of two (tiles, rows of a product), on whether the context is split, and on its division into pieces.
"""

from __future__ import annotations

from collections.abc import Iterator

from baton.engine.batch.batch import Chunk
from baton.engine.batch.static_batch import PassLimits


def warm_up_passes(limits: PassLimits, block_size: int, max_model_len: int) -> list[list[Chunk]]:
    """The passes to run. Requests of a pass write to the same blocks, whose content is not read."""
    longest = min(limits.max_blocks * block_size, max_model_len)
    passes: list[list[Chunk]] = []
    for length in _lengths(min(limits.max_tokens, longest)):
        for past in sorted(set(_pasts(longest - length))):
            passes.append([_chunk(length, past, block_size)])
            if limits.max_requests > 1 and length < limits.max_tokens:
                passes.append([_chunk(1, past, block_size), _chunk(length, past, block_size)])
    return passes


def _lengths(most: int) -> Iterator[int]:
    length = 1
    while length < most:
        yield length
        length *= 2
    yield most


def _pasts(most: int) -> tuple[int, ...]:
    """Three context lengths up to `most`. The middle one is 1 + 2 + 4 and so on, so that it has
    pieces of all powers of two."""
    return (0, (1 << max(0, most.bit_length() - 1)) - 1, most)


def _chunk(num_tokens: int, past: int, block_size: int) -> Chunk:
    """A chunk of `num_tokens` after a context of `past` tokens. The content of the context does not
    matter, so all of it is block 0."""
    num_shared, num_blocks = past // block_size, -(-(past + num_tokens) // block_size)
    own = range(1, 1 + num_blocks - num_shared)
    return Chunk([0] * num_tokens, past, [0] * num_shared + [*own], 1)
