"""The memory that KV blocks live in, and the bytes of each block."""

from __future__ import annotations

import mmap
from typing import Any

import torch
from torch import Tensor

from baton.core.kv_layout import KvLayout


def num_blocks_in(memory_bytes: int, layout: KvLayout) -> int:
    """How many blocks, with all their layers and heads, fit."""
    return memory_bytes // layout.block_bytes


class KvCache:
    """One arena a layer: [blocks][KV heads][2][block size][head dim], zero at first.

    On CPU an arena is anonymous memory that both torch and memoryviews look into, so a view copies
    nothing, and memory is used only once a block is written.
    """

    def __init__(
        self, layout: KvLayout, num_blocks: int, device: torch.device | str = "cpu"
    ) -> None:
        if num_blocks < 1:
            raise ValueError(f"a KV cache of {num_blocks} blocks; at least 1 is needed")
        self.layout = layout
        self.num_blocks = num_blocks
        self.device = torch.device(device)
        self._memory: list[memoryview] = []
        self.layers = [self._new_arena() for _ in range(layout.num_layers)]

    def view(self, block: int, layer: int) -> memoryview:
        """The bytes of one block in one layer, all heads; read-only, `layer_block_bytes` long.

        On CPU it shows the arena itself and changes with it; from another device it is a copy.
        """
        if self._memory:
            return self._memory[layer][self._span(block)].toreadonly()
        data = bytearray(self.layout.layer_block_bytes)
        self._as_tensor(data).copy_(self.layers[layer][block].flatten())
        return memoryview(data).toreadonly()

    def write(self, block: int, layer: int, data: memoryview[Any]) -> None:
        """Replace the bytes of one block in one layer. Raises ValueError on any other length."""
        if data.nbytes != self.layout.layer_block_bytes:
            raise ValueError(
                f"{data.nbytes} bytes for a block of {self.layout.layer_block_bytes} bytes"
            )
        if self._memory:
            self._memory[layer][self._span(block)] = data.cast("B")
        else:
            arena = self.layers[layer][block]
            arena.copy_(self._as_tensor(bytearray(data)).view_as(arena))

    def _new_arena(self) -> Tensor:
        layout = self.layout
        shape = (self.num_blocks, layout.num_kv_heads, 2, layout.block_size, layout.head_dim)
        dtype: torch.dtype = getattr(torch, layout.dtype)
        if self.device.type != "cpu":
            return torch.zeros(shape, dtype=dtype, device=self.device)
        memory = mmap.mmap(
            -1,
            self.num_blocks * layout.layer_block_bytes,
            flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS,
        )
        self._memory.append(memoryview(memory))
        return self._as_tensor(memory).view(shape)

    def _as_tensor(self, data: bytearray | mmap.mmap) -> Tensor:
        return torch.frombuffer(data, dtype=getattr(torch, self.layout.dtype))

    def _span(self, block: int) -> slice:
        if not 0 <= block < self.num_blocks:
            raise IndexError(f"block {block} of {self.num_blocks}")
        start = block * self.layout.layer_block_bytes
        return slice(start, start + self.layout.layer_block_bytes)
