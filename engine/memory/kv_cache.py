"""The memory of KV blocks, and access to each block's bytes."""

from __future__ import annotations

import fcntl
import mmap
import os
import weakref
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from baton.core.block_views import BlockViews
from baton.core.kv_arena import KvArena
from baton.core.kv_layout import WIDE, KvLayout
from baton.engine.batch.static_batch import DEFAULT_LIMITS, PassLimits
from baton.engine.memory.device_rows import DeviceRows
from baton.engine.memory.huge_arena import HugeArena
from baton.engine.memory.kv_staging import KvStaging, look_into
from baton.engine.memory.open_blocks import int4_arenas, num_open
from baton.kernels.attention.layer_kv import LayerCache, LayerKv
from baton.kernels.cpu.shared_mapping import HUGE_PAGE, mapped
from baton.kernels.paging.block_copy import gather_blocks, scatter_blocks
from baton.kernels.paging.kv_quantize import QUANTIZED_DTYPES
from baton.kernels.paging.layer_arenas import LayerArenas
from baton.kernels.paging.quantized_arena import Arena, QuantizedArena

F_SEAL_FUTURE_WRITE = 0x10
"""A seal of linux/fcntl.h: other processes can only map the file for reading."""


def num_blocks_in(memory_bytes: int, layout: KvLayout) -> int:
    """How many blocks, with all their planes and heads, fit."""
    return memory_bytes // layout.block_bytes


class KvCache:
    """One arena a plane: [blocks][KV heads][unit], as `KvLayout` says, zero at first.

    On a CPU the arenas are one anonymous file, writable only through this mapping. Tensors and
    memoryviews share it without copies; a peer on this machine may map it for reading; and memory
    is allocated only when a block is written.
    """

    def __init__(  # noqa: PLR0913  # what is kept, where, and for which passes
        self,
        layout: KvLayout,
        num_blocks: int,
        device: torch.device | str = "cpu",
        memory: int | None = None,
        *,
        dtype: str | None = None,
        limits: PassLimits = DEFAULT_LIMITS,
        is_deterministic: bool = False,
    ) -> None:
        """`dtype`: the model's compute dtype; `limits`: of its passes; `is_deterministic`: readers
        sum in a fixed order.

        On a CPU the `memory` may be that of another process: a descriptor of its file.
        """
        if num_blocks < 1:
            raise ValueError(f"a KV cache of {num_blocks} blocks; at least 1 is needed")
        self.layout = layout
        self._sizes = [plane.layer_block_bytes for plane in layout.planes]
        """Bytes of a block, by plane."""
        self.num_blocks = num_blocks
        self.device = torch.device(device)
        self.dtype = layout.dtype if dtype is None and layout.dtype in WIDE else dtype
        """The dtype of queries; None without a model over quantised KV."""
        self._is_deterministic = is_deterministic
        self.limits = limits
        """The largest pass for which buffers are prepared."""
        self._memory: list[memoryview] = []
        """The memory of each plane; on a CPU, parts of one mapping."""
        self._starts: list[int] = []
        self._writable = self._readonly = memoryview(b"")
        """All of that memory."""
        self._fd: int | None = None
        self.spare_block: int | None = None
        """On a GPU: a block for padding rows of a pass, unknown to the pool."""
        if self.device.type == "cpu":
            self.planes = whole = self._on_cpu(memory)
        else:
            self.spare_block, whole = num_blocks, self._on_device()
            self.planes = [plane[:num_blocks] for plane in whole]
        is_large = self._writable.nbytes >= HUGE_PAGE
        self.huge = HugeArena(self._writable) if is_large else None
        """On a CPU: moves the arena to huge pages, once started."""
        self._by_plane = list(map(_arena_of, whole, layout.planes))
        self._whole = whole
        is_on_gpu = self.device.type == "cuda"
        self.staging = KvStaging(self.planes, layout) if is_on_gpu else None
        """Copies many blocks out of a GPU."""

    @cached_property
    def layers(self) -> list[LayerCache]:
        """The layers' caches for a model; kernels are chosen here, once."""
        if self.dtype is None:
            raise ValueError(f"KV of {self.layout.dtype}: say which dtype the model computes in")
        if self.layout.is_int4:
            units = self._whole[: self.layout.num_layers]
            arenas = int4_arenas(units, self.layout, self.dtype, self.limits)
            return [LayerKv.of(arena, _torch_dtype(self.dtype)) for arena in arenas]
        return [self._layer(layer) for layer in range(self.layout.num_layers)]

    @property
    def num_open(self) -> int:
        """Last blocks of a request that may be written over although they were full, and in 4 bits,
        already."""
        return num_open(self.limits)

    @property
    def features(self) -> Tensor | None:
        """[blocks, 1, block size, width] The memory of the layout's `features`."""
        return None if self.layout.features is None else self._whole[-1]

    @property
    def arena(self) -> KvArena:
        return KvArena(
            num_blocks=self.num_blocks,
            block_bytes=tuple(self._sizes),
            planes=self.planes,
            device=str(self.planes[0].device),
            fd=self._fd,
        )

    def view(self, block: int, plane: int) -> memoryview:
        """The bytes of one block in one plane, all heads; read-only. On a CPU a view of the arena;
        from another device a copy.
        """
        if self._memory:
            return self._memory[plane][self._span(block, plane)].toreadonly()
        data = bytearray(self._sizes[plane])
        target = torch.frombuffer(data, dtype=torch.uint8)
        target.copy_(self.planes[plane][block].view(torch.uint8).flatten())
        return memoryview(data).toreadonly()

    def views(self, blocks: Sequence[int], planes: range) -> Sequence[memoryview]:
        """As `view`, for several blocks in each of some equal planes; thread-safe. From a GPU,
        waits until they are computed. Nothing may write to these blocks meanwhile.
        """
        if self._memory:
            return self._of(self._readonly, blocks, planes)
        if self.staging is not None:
            return self.staging.views(blocks, planes)
        return [self.view(block, plane) for plane in planes for block in blocks]

    def clear(self, blocks: Sequence[int], plane: int) -> None:
        """Zero these blocks in one plane, at once."""
        self.planes[plane][list(blocks)] = 0
        if self.staging is not None:
            self.staging.mark(plane)

    def clear_tail(self, block: int, plane: int, num_used: int) -> None:
        """Zero the slots of one block in one plane after its first `num_used` tokens."""
        arena = self._by_plane[plane]
        if isinstance(arena, QuantizedArena):
            arena.clear_tail(block, num_used)
        elif self.layout.planes[plane].is_int4:  # int4: whole blocks only
            arena[block] = 0
        else:
            arena[block, ..., num_used:, :] = 0
        if self.staging is not None:
            self.staging.mark(plane)  # later copies wait for this, too

    @property
    def is_in_memory(self) -> bool:
        """Whether the blocks are in host memory."""
        return bool(self._memory)

    @property
    def head_runs(self) -> tuple[range, ...]:
        """See `BlockBytes.head_runs`."""
        whole = range(self.layout.first_kv_head, self.layout.stop_kv_head)
        return (whole,) if self.is_in_memory else ()

    def writable(self, block: int, plane: int) -> memoryview:
        """The bytes of one block in one plane, to be written; only where `is_in_memory`."""
        return self._memory[plane][self._span(block, plane)]

    def writables(self, blocks: Sequence[int], planes: range) -> BlockViews:
        """As `writable`, of several blocks in each of some planes that are alike."""
        return self._of(self._writable, blocks, planes)

    def write_part(self, block: int, plane: int, offset: int, data: memoryview) -> None:
        """Replace some bytes of one block in one plane. Raises ValueError beyond its end."""
        stop, num_bytes = offset + data.nbytes, self._sizes[plane]
        if not 0 <= offset <= stop <= num_bytes:
            raise ValueError(f"bytes {offset} to {stop} of {num_bytes}")
        if self._memory:
            self._memory[plane][self._span(block, plane)][offset:stop] = data.cast("B")
        else:
            arena = self.planes[plane][block].view(torch.uint8).flatten()  # contiguous: no copy
            arena[offset:stop].copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))

    def scratch(self, num_bytes: int) -> memoryview:
        """Pinned host memory, for asynchronous copies."""
        is_pinned = self.device.type == "cuda"
        return look_into(torch.empty(num_bytes, dtype=torch.uint8, pin_memory=is_pinned))

    def write_blocks(self, blocks: Sequence[int], planes: range, data: memoryview) -> None:
        """Replace whole blocks of equal planes, ordered by plane and block; thread-safe. Raises
        ValueError for a wrong length.
        """
        self.rows.write_blocks(blocks, planes, data)

    @property
    def device_rows(self) -> DeviceRows | None:
        return None if self.is_in_memory else self.rows

    @property
    def rows(self) -> DeviceRows:
        """Whole blocks in place, on any device.

        Created on demand, since a stored one would form a reference cycle and keep the memory
        alive.
        """
        return DeviceRows(
            self.planes[0].device, self.staging, self._sizes, self._gathered, self._scatter
        )

    def write(self, block: int, plane: int, data: memoryview[Any]) -> None:
        """Replace the bytes of one block in one plane. Raises ValueError on any other length."""
        if data.nbytes != self._sizes[plane]:
            num_bytes = self._sizes[plane]
            raise ValueError(f"{data.nbytes} bytes for a block of {num_bytes} bytes")
        self.write_part(block, plane, 0, data)

    def _gathered(self, planes: range, numbers: Tensor) -> Tensor:
        return gather_blocks(self._bytes_of(planes), numbers).flatten(0, 1)

    def _scatter(self, staged: Tensor, planes: range, numbers: Tensor) -> None:
        scatter_blocks(staged, self._bytes_of(planes), numbers)

    def _bytes_of(self, planes: range) -> list[Tensor]:
        return [self.planes[plane].view(torch.uint8).flatten(1) for plane in planes]

    def _layer(self, layer: int) -> LayerCache:
        """The layer's KV and side caches."""
        own, *others = self.layout.planes_of(layer)
        if not self.layout.is_latent:
            assert not others and self.dtype is not None, "side caches are kept beside latents"
            return LayerKv.of(
                self._by_plane[own],
                _torch_dtype(self.dtype),
                is_deterministic=self._is_deterministic,
            )
        if not others:
            return self._whole[own]
        names = [side.name for side in self.layout.side_caches_of(layer)]
        side_caches = [self._whole[plane] for plane in others]
        return LayerArenas(self._whole[own], dict(zip(names, side_caches, strict=True)))

    def _on_device(self) -> list[Tensor]:
        """Zeroed planes, with a spare block at the end."""
        return [
            torch.zeros(
                (self.num_blocks + 1, *_block_shape(plane)),
                dtype=_dtype_of(plane),
                device=self.device,
            )
            for plane in self.layout.planes
        ]

    def _on_cpu(self, fd: int | None) -> list[Tensor]:
        num_bytes = self.num_blocks * self.layout.block_bytes
        memory = self._map(num_bytes) if fd is None else mapped(fd, num_bytes)
        sizes = [self.num_blocks * size for size in self._sizes]
        stops = list(accumulate(sizes))
        self._memory = [memory[stop - size : stop] for size, stop in zip(sizes, stops, strict=True)]
        self._starts = [stop - size for size, stop in zip(sizes, stops, strict=True)]
        self._writable, self._readonly = memory, memory.toreadonly()
        return [
            torch.frombuffer(part, dtype=_dtype_of(plane)).view(-1, *_block_shape(plane))
            for part, plane in zip(self._memory, self.layout.planes, strict=True)
        ]

    def _map(self, num_bytes: int) -> memoryview:
        if not hasattr(os, "memfd_create"):
            return memoryview(mmap.mmap(-1, num_bytes))
        self._fd = os.memfd_create("baton-kv", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        weakref.finalize(self, os.close, self._fd)
        os.ftruncate(self._fd, num_bytes)
        memory = mapped(self._fd, num_bytes)
        seal(self._fd)
        return memory

    def _of(self, memory: memoryview, blocks: Sequence[int], planes: range) -> BlockViews:
        size = self._sizes[planes[0]]
        if blocks and not 0 <= min(blocks) <= max(blocks) < self.num_blocks:
            raise IndexError(f"blocks {min(blocks)} to {max(blocks)} of {self.num_blocks}")
        starts, rows = [block * size for block in blocks], self._starts[planes[0] : planes[-1] + 1]
        return BlockViews(memory, starts, size, rows)

    def _span(self, block: int, plane: int) -> slice:
        if not 0 <= block < self.num_blocks:
            raise IndexError(f"block {block} of {self.num_blocks}")
        size = self._sizes[plane]
        return slice(block * size, (block + 1) * size)


def seal(fd: int) -> None:
    """Nobody may change the size of this anonymous file, or map it for writing, any more."""
    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | F_SEAL_FUTURE_WRITE
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)


def _arena_of(memory: Tensor, plane: KvLayout) -> Arena:
    if not plane.has_scales:
        return memory
    return QuantizedArena(memory, _torch_dtype(plane.dtype), plane.block_size, plane.head_dim)


def _block_shape(plane: KvLayout) -> tuple[int, ...]:
    if plane.has_scales or plane.is_int4:
        return plane.num_kv_heads, plane.unit_bytes
    if plane.is_latent:
        return plane.num_kv_heads, plane.block_size, plane.head_dim
    return plane.num_kv_heads, 2, plane.block_size, plane.head_dim


def _dtype_of(plane: KvLayout) -> torch.dtype:
    """The dtype of the memory: bytes where items and scales are interleaved."""
    if plane.has_scales or plane.is_int4:
        return torch.uint8
    return _torch_dtype(plane.dtype)


def _torch_dtype(name: str) -> torch.dtype:
    dtype: torch.dtype = QUANTIZED_DTYPES.get(name) or getattr(torch, name)
    return dtype
