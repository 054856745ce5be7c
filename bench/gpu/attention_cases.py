"""Attention over a paged cache on a GPU, with the bytes it reads and the FLOPs it needs."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from baton.core.kv_layout import KvLayout
from baton.kernels.attention import paged_attention as public
from baton.kernels.attention.layer_kv import LayerKv
from baton.kernels.cache_write.rope_kv_write import reference as write_by_torch
from baton.kernels.latent_attention import mla_attention
from baton.kernels.latent_attention.mla_attention_gpu import mla_attention as mla_on_gpu
from baton.kernels.paging.quantized_arena import Arena, QuantizedArena
from baton.kernels.paging.sequences import Sequences
from bench.gpu.cases import Case

BLOCK_SIZE = 16
FP8 = torch.float8_e4m3fn


@dataclass(frozen=True, slots=True)
class Heads:
    query: int
    kv: int
    width: int


LLAMA = Heads(32, 8, 128)
TINY = Heads(4, 2, 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    heads: Heads
    requests: tuple[tuple[int, int], ...]
    """(new tokens, context) of each request."""
    items: torch.dtype
    device: str

    @property
    def num_blocks(self) -> int:
        return sum(-(-context // BLOCK_SIZE) for _, context in self.requests)

    @property
    def is_narrow(self) -> bool:
        return self.items in (FP8, torch.int8)

    def layout(self) -> KvLayout:
        return KvLayout(
            model_fingerprint=b"bench",
            dtype="fp8" if self.items is FP8 else str(self.items).removeprefix("torch."),
            num_layers=1,
            num_kv_heads=self.heads.kv,
            head_dim=self.heads.width,
            block_size=BLOCK_SIZE,
        )

    def sequences(self) -> Sequences:
        device, width = self.device, max(-(-c // BLOCK_SIZE) for _, c in self.requests)
        tables, order = torch.zeros(len(self.requests), width, dtype=torch.int64), 0
        shuffled = torch.randperm(self.num_blocks)
        for row, (_, context) in enumerate(self.requests):
            count = -(-context // BLOCK_SIZE)
            tables[row, :count] = shuffled[order : order + count]
            order += count
        starts = [0, *accumulate(new for new, _ in self.requests)]
        return Sequences(
            num_requests=len(self.requests),
            positions=torch.cat([torch.arange(c - n, c) for n, c in self.requests]).to(device),
            query_starts=torch.tensor(starts, device=device),
            context_lens=torch.tensor([c for _, c in self.requests], device=device),
            block_tables=tables.to(device),
            block_size=BLOCK_SIZE,
            max_query_len=max(n for n, _ in self.requests),
            max_context_len=max(c for _, c in self.requests),
        )

    def arena(self) -> Arena:
        """An arena of random values, filled one layer at a time since it may be many gigabytes."""
        shape = self.num_blocks, self.heads.kv, 2, BLOCK_SIZE, self.heads.width
        if not self.is_narrow:
            return torch.empty(shape, dtype=self.items, device=self.device).normal_()
        unit_bytes = self.layout().unit_bytes
        units = torch.zeros(
            self.num_blocks, self.heads.kv, unit_bytes, dtype=torch.uint8, device=self.device
        )
        arena = QuantizedArena(units, self.items, BLOCK_SIZE, self.heads.width)
        slots = torch.arange(BLOCK_SIZE, device=self.device)
        for start in range(0, self.num_blocks, 4096):
            block = torch.arange(start, min(start + 4096, self.num_blocks), device=self.device)
            kv = torch.randn(
                len(block) * BLOCK_SIZE, 2, self.heads.kv, self.heads.width, device=self.device
            )
            arena.write(block.repeat_interleave(BLOCK_SIZE), slots.repeat(len(block)), kv)
        return arena

    @property
    def kv_bytes(self) -> float:
        per_token = self.heads.kv * 2 * (self.heads.width * self.items.itemsize)
        scales = self.heads.kv * 2 * 4 if self.is_narrow else 0
        return sum(context for _, context in self.requests) * float(per_token + scales)

    @property
    def num_flops(self) -> float:
        """FLOPs of the pairs of tokens that attend to each other."""
        pairs = sum(n * (c - n) + n * (n + 1) / 2 for n, c in self.requests)
        return 4.0 * self.heads.query * self.heads.width * pairs


def attention_cases(device: str, *, is_small: bool, dtype: torch.dtype) -> list[Case]:
    made = []
    for name, requests in (_small() if is_small else _real()).items():
        for items in (dtype, FP8):
            if items is FP8 and "prefill" in name:
                continue
            heads = TINY if is_small else LLAMA
            of = Pass(heads=heads, requests=requests, items=items, device=device)
            made.append(_case(f"{name}, {of.layout().dtype}", of, dtype, is_small=is_small))
    made += [_latent_case(device, dtype, new, is_small=is_small) for new in (1, 5)]
    if is_small:
        made.append(_write_case(device, dtype))
    return made


def _small() -> dict[str, tuple[tuple[int, int], ...]]:
    return {
        "decode attention": ((1, 1), (1, 37), (1, 300)),
        "draft attention": ((5, 9), (1, 37), (5, 300)),
        "prefill attention": ((7, 7), (20, 40), (1, 20)),
    }


def _real() -> dict[str, tuple[tuple[int, int], ...]]:
    return {
        "decode attention 64 x 4k": ((1, 4096),) * 64,
        "decode attention 64 x 32k": ((1, 32768),) * 64,
        "draft attention 1 x 32k, 4 drafted": ((5, 32768),),
        "draft attention 64 x 4k, 4 drafted": ((5, 4096),) * 64,
        "draft attention 64 x 4k, 8 drafted": ((9, 4096),) * 64,
        "prefill attention 16k": ((16384, 16384),),
        "prefill attention 2k after 14k": ((2048, 16384),),
        "prefill attention 128 after 32k": ((128, 32896),),
        "prefill attention 16 x 1k": ((1024, 1024),) * 16,
    }


def _case(name: str, of: Pass, dtype: torch.dtype, *, is_small: bool) -> Case:
    arena, sequences = of.arena(), of.sequences()
    kv = LayerKv.of(arena, dtype)
    num_tokens = sum(new for new, _ in of.requests)
    q = torch.randn(num_tokens, of.heads.query, of.heads.width, device=of.device).to(dtype)
    return Case(
        name=name,
        run=lambda: kv.attend(q, sequences),
        expected=(lambda: _by_definition(q, arena, of, sequences)) if is_small else None,
        tolerance=3e-2,
        num_bytes=of.kv_bytes + 2 * q.nbytes,
        num_flops=of.num_flops,
    )


def _by_definition(q: Tensor, arena: Arena, of: Pass, sequences: Sequences) -> Tensor:
    kv = arena
    if isinstance(arena, QuantizedArena):
        every = torch.arange(of.num_blocks * of.heads.kv, device=of.device)
        shape = of.num_blocks, of.heads.kv, 2, BLOCK_SIZE, of.heads.width
        kv = arena.gather(every, q.dtype).view(shape)
    tables = sequences.block_tables.tolist()
    rows = [(table, *lengths) for table, lengths in zip(tables, of.requests, strict=True)]
    assert isinstance(kv, Tensor)
    return public.reference(q.cpu(), kv.cpu(), rows, None).to(of.device)


def _latent_case(device: str, dtype: torch.dtype, new: int, *, is_small: bool) -> Case:
    """MLA with DeepSeek's shape: all heads read one latent of 512 and a key of 64. `new` tokens of
    each request: 1 decodes, more are drafts."""
    num_heads, latent, rope = (4, 32, 16) if is_small else (128, 512, 64)
    requests = ((new, 5), (new, 300)) if is_small else ((new, 4096),) * 64
    of = Pass(heads=TINY, requests=requests, items=dtype, device=device)
    shape = of.num_blocks, 1, BLOCK_SIZE, latent + rope
    arena = torch.randn(shape, device=device).to(dtype)
    sequences, scale = of.sequences(), 0.1
    num_tokens = new * len(requests)
    q_latent = torch.randn(num_tokens, num_heads, latent, device=device).to(dtype)
    q_rope = torch.randn(num_tokens, num_heads, rope, device=device).to(dtype)
    num_keys = sum(context for _, context in requests)
    rows = [
        (table, *lengths)
        for table, lengths in zip(sequences.block_tables.tolist(), requests, strict=True)
    ]
    return Case(
        name=f"MLA decode {len(requests)} requests of up to {requests[-1][1]}"
        + (f", {new - 1} drafted" if new > 1 else ""),
        run=lambda: mla_on_gpu(q_latent, q_rope, arena, sequences, scale),
        expected=(
            lambda: mla_attention.reference(
                q_latent.cpu(), q_rope.cpu(), arena.cpu(), rows, scale
            ).to(device)
        )
        if is_small
        else None,
        tolerance=3e-2,
        num_bytes=float(num_keys * (latent + rope) * dtype.itemsize),
        num_flops=2.0 * new * num_keys * num_heads * (2 * latent + rope),
    )


def _write_case(device: str, dtype: torch.dtype) -> Case:
    """RoPE and the write of K and V into the cache; what was written is read back."""
    of = Pass(heads=TINY, requests=((5, 9), (1, 20)), items=dtype, device=device)
    sequences = of.sequences()
    qkv = torch.randn(6, TINY.query + 2 * TINY.kv, TINY.width, device=device).to(dtype)
    angles = torch.rand(6, TINY.width // 2, device=device)
    rotation = angles.cos(), angles.sin()
    arenas = [torch.zeros_like(of.arena()) for _ in range(2)]  # type: ignore[arg-type]

    def written(by: str) -> Tensor:
        if by == "gpu":
            arena = arenas[0]
            q = LayerKv.of(arena, dtype).write(qkv, sequences, rotation=rotation)
        else:
            arena = arenas[1]
            q = write_by_torch(qkv, arena, sequences, rotation=rotation)
        return torch.cat((q.flatten(), arena.flatten()))

    return Case(
        name="RoPE + KV write",
        run=lambda: written("gpu"),
        expected=lambda: written("torch"),
        tolerance=1e-2,
    )
