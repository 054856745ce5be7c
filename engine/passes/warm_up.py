"""Passes of all kinds that a GPU has kernels of its own for: run before requests come.

    new tokens     2, 4, 8 ... and the most: prompts, alone and beside a request that decodes
    behind         nothing; all that may be; what is read in the most pieces, of all sizes

Which kernel is launched follows from the power of two above the tokens of a request or of a pass
(tiles, rows of a product), from whether a context is split, and from the pieces of a past.
"""

from __future__ import annotations

from collections.abc import Iterator

from baton.engine.batch.batch import Chunk
from baton.engine.batch.static_batch import PassLimits


def warm_up_passes(limits: PassLimits, block_size: int, max_model_len: int) -> list[list[Chunk]]:
    """Neighbours in a pass write to the same blocks: nobody reads what they hold."""
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
    """In powers of two the second is 1 + 2 + 4 and so on."""
    return (0, (1 << max(0, most.bit_length() - 1)) - 1, most)


def _chunk(num_tokens: int, past: int, block_size: int) -> Chunk:
    """What the past holds does not matter: it is block 0, over and over."""
    num_shared, num_blocks = past // block_size, -(-(past + num_tokens) // block_size)
    own = range(1, 1 + num_blocks - num_shared)
    return Chunk([0] * num_tokens, past, [0] * num_shared + [*own], 1)
