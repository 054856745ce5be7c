"""Chained hashes of a prompt's blocks (`baton.core.block_hash`).

    name[i] = H(name[i - 1], tokens of block i)

Compiled if the library is available (`kernels/cpu/source/names/block_names.cpp`), else by hashlib.
"""

from __future__ import annotations

import array
from collections.abc import Sequence

from baton.core.block_hash import BlockNames, block_hashes
from baton.kernels.cpu.library import library_without_torch
from baton.kernels.names import block_names_cpu as cpu


def block_names(
    parent: bytes, tokens: Sequence[int], block_size: int, start: int = 0, stop: int | None = None
) -> BlockNames:
    """The names of all full blocks of `tokens[start:stop]`; `parent` is the name before the first.

    A tuple is read without a copy. Raises OverflowError for a token that does not fit into 32 bits,
    unsigned.
    """
    found = library_without_torch()
    if found is None:
        return reference(parent, tokens[start:stop], block_size)
    if isinstance(tokens, tuple) and cpu.are_items_in_line():
        span = range(len(tokens))[start:stop]
        num_blocks = len(span) // block_size
        return BlockNames(
            cpu.block_names_of_tuple(found, parent, tokens, block_size, span.start, num_blocks)
        )
    words = array.array("I", tokens[start:stop])
    return BlockNames(cpu.block_names(found, parent, words, block_size))


def reference(parent: bytes, tokens: Sequence[int], block_size: int) -> BlockNames:
    return BlockNames.of(block_hashes(parent, tokens, block_size))
