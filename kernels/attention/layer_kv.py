"""The KV of one layer, with the write and attention operations chosen for its arena and device.

    items           on a GPU                on a CPU                 without compiled operators
    wide, 8 bits    rope_kv_write_gpu       rope_kv_write_cpu        rope_kv_write.reference
                    paged_attention_gpu     paged_attention_cpu      paged_attention.by_torch
    deterministic   batch_invariant_attention_gpu     the same as above        the same as above
    4 bits          -                       int4_kv_write_cpu        rope_kv_write.reference
                                            int4_attention_cpu       int4_attention

T new tokens, N query heads, K KV heads, H head width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from baton.kernels.attention import int4_attention as int4_attention
from baton.kernels.attention import int4_attention_cpu as int4_attention_cpu
from baton.kernels.attention import paged_attention, paged_attention_cpu
from baton.kernels.attention.scoring import PLAIN, Scoring
from baton.kernels.cache_write import int4_kv_write_cpu as int4_kv_write_cpu
from baton.kernels.cache_write import rope_kv_write, rope_kv_write_cpu
from baton.kernels.cache_write.rotation import HeadNorm, Rotation
from baton.kernels.cpu import operators
from baton.kernels.paging.arena_cpu import MAX_WIDTH, CpuArena
from baton.kernels.paging.int4_arena import AnyArena, Int4Arena
from baton.kernels.paging.layer_arenas import LayerArenas
from baton.kernels.paging.sequences import Sequences
from baton.kernels.paging.window import Window

Write = Callable[[Tensor, Any, Sequences, HeadNorm | None, Rotation | None], Tensor]
Attend = Callable[[Tensor, Any, Sequences, Window, Scoring, Tensor | None], Tensor]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class LayerKv:
    arena: AnyArena
    dtype: torch.dtype
    """The dtype of q and of the output: the model's compute dtype."""
    num_heads: int
    """K"""
    block_size: int
    width: int
    """H"""
    described: Any
    """The arena's description for both operations, with addresses."""
    write_by: Write
    attend_by: Attend

    @classmethod
    def of(cls, arena: AnyArena, dtype: torch.dtype, *, is_deterministic: bool = False) -> LayerKv:
        """`is_deterministic`: results on a GPU must be batch-invariant."""
        if isinstance(arena, Tensor):
            _, num_heads, _, block_size, width = arena.shape
        else:
            num_heads, block_size, width = arena.units.shape[1], arena.block_size, arena.width
        described, write_by, attend_by = _operations(
            arena, dtype, width, is_deterministic=is_deterministic
        )
        return cls(
            arena=arena,
            dtype=dtype,
            num_heads=num_heads,
            block_size=block_size,
            width=width,
            described=described,
            write_by=write_by,
            attend_by=attend_by,
        )

    @property
    def blocks(self) -> Tensor:
        """The memory of all blocks; for int4, of the quantized ones."""
        return self.arena if isinstance(self.arena, Tensor) else self.arena.units

    def write(
        self,
        qkv: Tensor,
        sequences: Sequences,
        *,
        head_norm: HeadNorm | None = None,
        rotation: Rotation | None = None,
    ) -> Tensor:
        """qkv [T, N + 2K, H] -> the queries [T, N, H], ready for attention."""
        if qkv.shape[2] != self.width or qkv.dtype is not self.dtype:
            raise ValueError(f"heads {qkv.shape}, {qkv.dtype}, into the KV of {self._words}")
        return self.write_by(qkv, self.described, sequences, head_norm, rotation)

    def attend(
        self,
        q: Tensor,
        sequences: Sequences,
        window: Window = None,
        scoring: Scoring = PLAIN,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Attention output [T, N, H] of q [T, N, H]; `sinks` [N], float32 or in q's dtype."""
        if (
            q.shape[2] != self.width
            or q.shape[1] % self.num_heads
            or q.dtype is not self.dtype
            or self.block_size != sequences.block_size
            or (sinks is not None and sinks.shape != q.shape[1:2])
        ):
            raise ValueError(
                f"queries {q.shape}, {q.dtype}, over tables of blocks of {sequences.block_size}, "
                f"sinks {sinks}, do not fit the KV of {self._words}"
            )
        if sinks is not None and sinks.dtype not in (torch.float32, q.dtype):
            raise ValueError(f"sinks are float32 or as q, which is {q.dtype}, not {sinks.dtype}")
        return self.attend_by(q, self.described, sequences, window, scoring, sinks)

    @property
    def _words(self) -> str:
        return (
            f"{self.num_heads} heads of {self.width}, {self.dtype}, in blocks of {self.block_size}"
        )


LayerCache = LayerKv | Tensor | LayerArenas
"""A layer's part of the cache: grouped KV, a tensor of latents, or several arenas."""


def _operations(
    arena: AnyArena, dtype: torch.dtype, width: int, *, is_deterministic: bool
) -> tuple[Any, Write, Attend]:
    """The arena's description, the write operation, and the attention operation."""
    if isinstance(arena, Int4Arena):
        if _has_operators(dtype, width, arena.open_rows, arena.pass_rows):
            return arena, int4_kv_write_cpu.rope_kv_write, int4_attention_cpu.int4_attention
        return arena, rope_kv_write.reference, int4_attention.int4_attention
    memory = arena if isinstance(arena, Tensor) else arena.units
    if memory.is_cuda:  # imports Triton, which CPUs do not need
        from baton.kernels.attention import batch_invariant_attention_gpu, paged_attention_gpu
        from baton.kernels.cache_write import rope_kv_write_gpu
        from baton.kernels.paging.arena_gpu import PagedCache

        cache = PagedCache.of(arena)
        if is_deterministic:
            write = partial(rope_kv_write_gpu.rope_kv_write, is_batch_invariant=True)
            return cache, write, batch_invariant_attention_gpu.batch_invariant_attention
        return cache, rope_kv_write_gpu.rope_kv_write, paged_attention_gpu.paged_attention
    if _has_operators(dtype, width, *((arena,) if isinstance(arena, Tensor) else ())):
        units = CpuArena.of(arena)
        return units, rope_kv_write_cpu.rope_kv_write, paged_attention_cpu.paged_attention
    return arena, rope_kv_write.reference, paged_attention.by_torch


def _has_operators(dtype: torch.dtype, width: int, *wide: Tensor) -> bool:
    """Whether compiled operators support heads of this dtype and width."""
    return width <= MAX_WIDTH and operators.runs(torch.empty(0, dtype=dtype), *wide)
