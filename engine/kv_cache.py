"""The memory that KV blocks live in, and the bytes of each block."""

from __future__ import annotations

import fcntl
import mmap
import os
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from baton.core.kv_arena import KvArena
from baton.core.kv_layout import KvLayout
from baton.engine.kv_staging import KvStaging
from baton.kernels.quantized_kv import Arena, QuantizedArena

F_SEAL_FUTURE_WRITE = 0x10
"""Of linux/fcntl.h: whoever is given the file may map it, but only to read."""


def num_blocks_in(memory_bytes: int, layout: KvLayout) -> int:
    """How many blocks, with all their layers and heads, fit."""
    return memory_bytes // layout.block_bytes


class KvCache:
    """One arena a layer: [blocks][KV heads][unit], as `KvLayout` says, zero at first.

    On CPU the arenas are one anonymous file, mapped here for writing and sealed for anybody else:
    torch and memoryviews look into it, so a view copies nothing; a peer on this machine may be
    given the file to read; and memory is used only once a block is written.
    """

    def __init__(
        self,
        layout: KvLayout,
        num_blocks: int,
        device: torch.device | str = "cpu",
        memory: int | None = None,
    ) -> None:
        """On a CPU the `memory` may be that of another process: a descriptor of its file."""
        if num_blocks < 1:
            raise ValueError(f"a KV cache of {num_blocks} blocks; at least 1 is needed")
        self.layout = layout
        self.num_blocks = num_blocks
        self.device = torch.device(device)
        self._memory: list[memoryview] = []
        self._fd: int | None = None
        self.spare_block: int | None = None
        """Of the arenas, for rows of a pass that stand for nobody; no pool counts it. On a GPU."""
        if self.device.type == "cpu":
            self.layers = whole = self._on_cpu(memory)
        else:
            self.spare_block, whole = num_blocks, self._on_device()
            self.layers = [layer[:num_blocks] for layer in whole]
        self.arenas: list[Arena] = list(map(self._arena_of, whole))
        """The layers, as attention writes and reads them."""
        self.staging = KvStaging(self.layers) if self.device.type == "cuda" else None
        """The way of many blocks out of a GPU."""

    @property
    def arena(self) -> KvArena:
        return KvArena(
            num_layers=self.layout.num_layers,
            num_blocks=self.num_blocks,
            layer_block_bytes=self.layout.layer_block_bytes,
            layers=self.layers,
            device=str(self.device),
            fd=self._fd,
        )

    def view(self, block: int, layer: int) -> memoryview:
        """The bytes of one block in one layer, all heads; read-only, `layer_block_bytes` long.

        On CPU it shows the arena itself and changes with it; from another device it is a copy.
        """
        if self._memory:
            return self._memory[layer][self._span(block)].toreadonly()
        data = bytearray(self.layout.layer_block_bytes)
        self._as_tensor(data).copy_(self.layers[layer][block].flatten())
        return memoryview(data).toreadonly()

    def views(self, blocks: Sequence[int], layer: int) -> tuple[memoryview, ...]:
        """As `view`, of several blocks; for any thread. From a GPU, waits for what computes them.

        Nothing may write to the blocks in this layer meanwhile.
        """
        if self.staging is not None:
            return self.staging.views(blocks, layer)
        return tuple([self.view(block, layer) for block in blocks])

    def clear_tail(self, block: int, layer: int, num_used: int) -> None:
        """Zero the slots of one block in one layer behind its first `num_used` tokens."""
        arena = self.arenas[layer]
        if isinstance(arena, QuantizedArena):
            arena.clear_tail(block, num_used)
        else:
            arena[block, ..., num_used:, :] = 0
        if self.staging is not None:
            self.staging.mark(layer)  # whoever copies it waits for this, too

    @property
    def is_in_memory(self) -> bool:
        """Whether the blocks are in memory of this host."""
        return bool(self._memory)

    def writable(self, block: int, layer: int) -> memoryview:
        """The bytes of one block in one layer, to be written; only where `is_in_memory`."""
        return self._memory[layer][self._span(block)]

    def write_part(self, block: int, layer: int, offset: int, data: memoryview) -> None:
        """Replace some bytes of one block in one layer. Raises ValueError beyond its end."""
        stop = offset + data.nbytes
        if not 0 <= offset <= stop <= self.layout.layer_block_bytes:
            raise ValueError(f"bytes {offset} to {stop} of {self.layout.layer_block_bytes}")
        if self._memory:
            self._memory[layer][self._span(block)][offset:stop] = data.cast("B")
        else:
            arena = self.layers[layer][block].view(torch.uint8).flatten()  # contiguous: no copy
            arena[offset:stop].copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))

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

    def _arena_of(self, layer: Tensor) -> Arena:
        if not self.layout.has_scales:
            return layer
        dtype: torch.dtype = getattr(torch, self.layout.dtype)
        return QuantizedArena(layer, dtype, self.layout.block_size, self.layout.head_dim)

    @property
    def _shape(self) -> tuple[int, ...]:
        layout = self.layout
        if layout.has_scales:
            return self.num_blocks, layout.num_kv_heads, layout.unit_bytes
        if layout.is_latent:
            return self.num_blocks, layout.num_kv_heads, layout.block_size, layout.head_dim
        return self.num_blocks, layout.num_kv_heads, 2, layout.block_size, layout.head_dim

    @property
    def _dtype(self) -> torch.dtype:
        """Of the arenas: bytes where items and scales lie side by side."""
        dtype: torch.dtype = getattr(torch, self.layout.dtype)
        return torch.uint8 if self.layout.has_scales else dtype

    def _on_device(self) -> list[Tensor]:
        """With the spare block behind the others."""
        shape = (self.num_blocks + 1, *self._shape[1:])
        return [
            torch.zeros(shape, dtype=self._dtype, device=self.device)
            for _ in range(self.layout.num_layers)
        ]

    def _on_cpu(self, fd: int | None) -> list[Tensor]:
        layer_bytes = self.num_blocks * self.layout.layer_block_bytes
        num_bytes = layer_bytes * self.layout.num_layers
        memory = self._map(num_bytes) if fd is None else memoryview(mmap.mmap(fd, num_bytes))
        starts = range(0, len(memory), layer_bytes)
        self._memory = [memory[start : start + layer_bytes] for start in starts]
        return [self._as_tensor(layer).view(self._shape) for layer in self._memory]

    def _map(self, num_bytes: int) -> memoryview:
        if not hasattr(os, "memfd_create"):
            return memoryview(mmap.mmap(-1, num_bytes))
        self._fd = os.memfd_create("baton-kv", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        weakref.finalize(self, os.close, self._fd)
        os.ftruncate(self._fd, num_bytes)
        memory = memoryview(mmap.mmap(self._fd, num_bytes))
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | F_SEAL_FUTURE_WRITE
        fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, seals)
        return memory

    def _as_tensor(self, data: bytearray | memoryview) -> Tensor:
        return torch.frombuffer(data, dtype=self._dtype)

    def _span(self, block: int) -> slice:
        if not 0 <= block < self.num_blocks:
            raise IndexError(f"block {block} of {self.num_blocks}")
        start = block * self.layout.layer_block_bytes
        return slice(start, start + self.layout.layer_block_bytes)
