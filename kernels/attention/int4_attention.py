"""Attention to int4 blocks, and to open blocks, which are not quantised.

kernels/paging/int4_arena.py shows which token reads what. This is the reference, used where there
is no compiled operator.
"""

from __future__ import annotations

import torch
from torch import Tensor

from baton.kernels.attention.explicit_attention import explicit_attention
from baton.kernels.attention.scoring import Scoring
from baton.kernels.paging.int4_arena import Int4Arena, RequestPart
from baton.kernels.paging.int4_block import dequantize_block
from baton.kernels.paging.sequences import Sequences
from baton.kernels.paging.window import Window, first_seen, num_first_of


def int4_attention(
    q: Tensor,
    arena: Int4Arena,
    sequences: Sequences,
    window: Window,
    scoring: Scoring,
    sinks: Tensor | None,
) -> Tensor:
    """Attention output [T, N, H] of q [T, N, H], after the pass's KV is written."""
    out = torch.empty_like(q)
    for part in arena.parts(sequences):
        past = _past(part, arena, q.dtype)
        for begin in range(part.first, part.end, arena.block_size):
            begins_at, end = max(begin, part.start), min(begin + arena.block_size, part.end)
            own = part.rows[begin - part.first : end - part.first].permute(1, 2, 0, 3)
            k, v = torch.cat((past[:, :, :begin], own), dim=2).unsqueeze(1)
            first = part.tokens.start + begins_at - part.start
            tokens = slice(first, first + end - begins_at)
            queries = q[tokens].view(end - begins_at, k.shape[1], -1, arena.width)
            queries = queries.permute(1, 2, 0, 3)
            bias = _bias(range(begins_at, end), window).to(q.device)
            found = explicit_attention(queries.unsqueeze(0), k, v, bias, scoring, sinks)
            out[tokens] = found[0].permute(2, 0, 1, 3).flatten(1, 2)
    return out


def _past(part: RequestPart, arena: Int4Arena, dtype: torch.dtype) -> Tensor:
    """A request's int4 blocks before its last block, dequantised, [2, K, tokens, H]."""
    units = arena.units[part.table[: (part.end - 1) // arena.block_size]]
    kv = dequantize_block(units, arena.block_size, arena.width)  # [blocks, K, 2, S, H]
    return kv.to(dtype).permute(2, 1, 0, 3, 4).flatten(2, 3)


def _bias(positions: range, window: Window) -> Tensor:
    """[Q, L] 0 or -inf, for queries at `positions` and keys from 0 to the last of them."""
    bias = torch.full((len(positions), positions.stop), -torch.inf)
    for row, position in enumerate(positions):
        bias[row, first_seen(window, position) : position + 1] = 0
        bias[row, : min(num_first_of(window), position + 1)] = 0
    return bias
