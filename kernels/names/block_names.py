"""Names of the blocks of a prompt, each following from the one before (`baton.core.block_hash`).

    name[i] = H(name[i - 1], tokens of block i)

Compiled where the library is there (`kernels/cpu/source/names/block_names.cpp`), else by hashlib.
"""

from __future__ import annotations

from collections.abc import Sequence

from baton.core.block_hash import BlockNames, block_hashes
from baton.kernels.cpu.library import library_without_torch
from baton.kernels.names import block_names_cpu as cpu


def block_names(parent: bytes, tokens: Sequence[int], block_size: int) -> BlockNames:
    """The names of all full blocks of `tokens`, of which the first follows the block `parent`.

    Raises OverflowError for a token that is no unsigned number of 32 bits.
    """
    found = library_without_torch()
    if found is not None:
        return BlockNames(cpu.block_names(found, parent, tokens, block_size))
    return reference(parent, tokens, block_size)


def reference(parent: bytes, tokens: Sequence[int], block_size: int) -> BlockNames:
    return BlockNames.of(block_hashes(parent, tokens, block_size))
