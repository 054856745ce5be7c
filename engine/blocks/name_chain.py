"""The names of a prompt's full blocks, one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from baton.kernels.names.block_names import block_names

FEW_BLOCKS = 16
"""Named at once when it is not known whether any of them is cached."""


def name_chain(root: bytes, tokens: Sequence[int], block_size: int) -> Iterator[bytes]:
    """Names of all full blocks behind `root`, made a few at first and then ever more at a time:
    most chains are left where they meet the first unknown name."""
    parent = root
    start, stop = 0, FEW_BLOCKS
    while start * block_size < len(tokens):
        for name in block_names(parent, tokens[start * block_size : stop * block_size], block_size):
            yield name
            parent = name
        start, stop = stop, 2 * stop
