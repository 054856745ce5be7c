"""The memory behind a replica's blocks, as a transport that reads it by itself must know it.

layer l, block b:   base + l * layer_bytes + b * layer_block_bytes
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class KvArena:
    num_layers: int
    num_blocks: int
    layer_block_bytes: int
    """One block in one layer, all heads."""
    layers: Sequence[Any]
    """Torch tensors [blocks][...], one a layer, contiguous; none where blocks are in pieces."""
    device: str
    """As torch names it: "cpu", "cuda:0"."""
    fd: int | None
    """Of the anonymous file that holds all layers, sealed against being written by others; None
    where memory is not a file: on a GPU, or on a system without memfd."""

    @property
    def layer_bytes(self) -> int:
        return self.num_blocks * self.layer_block_bytes

    @property
    def is_whole(self) -> bool:
        """Whether all of a block lies in one place, to be read by whoever reaches it."""
        return bool(self.layers)
