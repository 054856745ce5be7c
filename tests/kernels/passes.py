"""Passes made up for tests of kernels."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch

from baton.core.kv_layout import KvLayout
from baton.kernels.paging.quantized_arena import Arena, QuantizedArena
from baton.kernels.paging.sequences import Sequences


def sequences_of(
    tables: Sequence[Sequence[int]], requests: Sequence[tuple[int, int]], *, block_size: int = 4
) -> Sequences:
    """`requests` are (query_len, context_len), their blocks those of `tables`."""
    return Sequences(
        num_requests=len(requests),
        positions=torch.cat([torch.arange(c - n, c) for n, c in requests]),
        query_starts=torch.tensor([0, *accumulate(n for n, _ in requests)]),
        context_lens=torch.tensor([c for _, c in requests]),
        block_tables=torch.nn.utils.rnn.pad_sequence(
            [torch.tensor(table) for table in tables], batch_first=True
        ),
        block_size=block_size,
        max_query_len=max(n for n, _ in requests),
        max_context_len=max(c for _, c in requests),
    )


def empty_arena(
    num_blocks: int, kv_heads: int, block_size: int, width: int, dtype: torch.dtype
) -> Arena:
    """With scales, if items of such a dtype have them."""
    layout = KvLayout(
        model_fingerprint=b"m",
        dtype="fp8" if dtype is torch.float8_e4m3fn else str(dtype).removeprefix("torch."),
        num_layers=1,
        num_kv_heads=kv_heads,
        head_dim=width,
        block_size=block_size,
    )
    if not layout.has_scales:
        return torch.zeros(num_blocks, kv_heads, 2, block_size, width, dtype=dtype)
    units = torch.zeros(num_blocks, kv_heads, layout.unit_bytes, dtype=torch.uint8)
    return QuantizedArena(units, dtype, block_size, width)
