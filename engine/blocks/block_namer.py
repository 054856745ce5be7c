"""Computes the names of full blocks: chained hashes of their tokens (`baton.core.block_hash`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from baton.core.block_hash import root_hash
from baton.core.kv_layout import KvLayout
from baton.kernels.names.block_names import block_names

FEW_BLOCKS = 16
"""Number of blocks that are hashed at first when looking up a prompt."""


class BlockNamer:
    """Names the blocks of one model's KV."""

    def __init__(self, layout: KvLayout) -> None:
        self._fingerprint = layout.model_fingerprint
        self._block_size = layout.block_size

    def names(self, tokens: Sequence[int], salt: bytes) -> Iterator[bytes]:
        """The names of all full blocks of `tokens`, in order. They are computed lazily, a few first
        and then twice as many each time, because a lookup usually stops at the first unknown
        name."""
        size, parent = self._block_size, self._root(salt)
        start, stop = 0, FEW_BLOCKS
        while start * size < len(tokens):
            for name in block_names(parent, tokens[start * size : stop * size], size):
                yield name
                parent = name
            start, stop = stop, 2 * stop

    def further_names(
        self, known: Sequence[bytes], tokens: Sequence[int], num_full: int, salt: bytes
    ) -> Sequence[bytes]:
        """The names of the first `num_full` blocks of `tokens`, without the first ones, which are
        `known`."""
        size, parent = self._block_size, known[-1] if known else self._root(salt)
        return block_names(parent, tokens[len(known) * size : num_full * size], size)

    def _root(self, salt: bytes) -> bytes:
        return root_hash(self._fingerprint, salt)
