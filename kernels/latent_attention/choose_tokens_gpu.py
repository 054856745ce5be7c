# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-incomplete-defs
# mypy: no-warn-return-any
"""Chooses tokens: a kernel computes scores, and a stable sort ranks those of each token.

    a program    one new token, KEYS keys: tiles of heads, one after the other
    scores       [T, C] float32, a few tokens at a time; -inf for invisible tokens

The host never reads lengths from the device. A sort does more than is needed, but keeps the order
of ties, which torch's `topk` does not promise.

T new tokens, C the longest context, N heads of the index, D their width.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from baton.kernels.gpu.dot import dot
from baton.kernels.gpu.owner import owner_of
from baton.kernels.paging.arena_gpu import load_tile
from baton.kernels.paging.paged_rows import owners_of
from baton.kernels.paging.sequences import Sequences

KEYS, MOST_HEADS = 64, 64
SCORE_BYTES = 256 << 20
"""Most bytes of scores at a time."""


def choose_tokens(
    q: Tensor, weights: Tensor, arena: Tensor, sequences: Sequences, num_chosen: int
) -> tuple[Tensor, Tensor]:
    """Slots [T, min(K, C)] and positions [T]."""
    num_tokens, longest, size = len(q), sequences.max_context_len, sequences.block_size
    positions = sequences.positions[:num_tokens]
    owners = owners_of(sequences, num_tokens).unsqueeze(1)
    q, weights = q.contiguous(), weights.contiguous()
    slots = positions.new_empty(num_tokens, min(num_chosen, longest))
    step = max(1, SCORE_BYTES // (4 * longest))
    for first in range(0, num_tokens, step):
        tokens = slice(first, min(first + step, num_tokens))
        found = scores(q, weights, arena, sequences, tokens)
        ranked = found.sort(dim=-1, descending=True, stable=True).indices
        # Invisible tokens rank after all others, so that their indices come after those of visible
        # tokens.
        best = ranked[:, : slots.shape[1]].sort(dim=-1).values
        blocks = sequences.block_tables[owners[tokens], best // size].long()
        slots[tokens] = blocks * size + best % size
    return slots, positions


def scores(
    q: Tensor, weights: Tensor, arena: Tensor, sequences: Sequences, tokens: slice
) -> Tensor:
    """The scores of some of the tokens, [tokens, C] float32."""
    _, num_heads, width = q.shape
    found = weights.new_empty(tokens.stop - tokens.start, sequences.max_context_len)
    heads = max(16, min(MOST_HEADS, triton.next_power_of_2(num_heads)))
    _score_keys[len(found), triton.cdiv(found.shape[1], KEYS)](
        q, weights, arena, arena.stride(0), sequences.block_tables,
        sequences.block_tables.stride(0), sequences.positions, sequences.query_starts,
        sequences.num_requests, found, found.shape[1], tokens.start, num_heads,
        width**-0.5, num_heads**-0.5,
        WIDTH=width, COLUMNS=max(16, triton.next_power_of_2(width)),
        BLOCK_SIZE=sequences.block_size, HEADS=heads, KEYS=KEYS, num_warps=4,
    )  # fmt: skip
    return found


@triton.jit(do_not_specialize=["table_stride", "num_requests", "longest", "first_token"])
def _score_keys(
    q, weights, keys, block_stride, tables, table_stride, positions, query_starts, num_requests,
    found, longest, first_token, num_heads, key_scale, head_scale,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, BLOCK_SIZE: tl.constexpr, HEADS: tl.constexpr,
    KEYS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    token = row + first_token
    key = tl.program_id(1) * KEYS + tl.arange(0, KEYS)
    seen = key <= tl.load(positions + token).to(tl.int32)
    request = owner_of(query_starts, num_requests, token)
    at = tables + request * table_stride + key // BLOCK_SIZE
    block = tl.load(at, mask=seen, other=0).to(tl.int64)
    place = block * block_stride + (key % BLOCK_SIZE) * WIDTH
    by_key = tl.trans(load_tile(keys, place, seen, WIDTH, COLUMNS))  # [COLUMNS, KEYS]
    total = tl.zeros([KEYS], tl.float32)
    for first in range(0, num_heads, HEADS):
        heads = first + tl.arange(0, HEADS)
        used = heads < num_heads
        by_head = load_tile(q, (token * num_heads + heads) * WIDTH, used, WIDTH, COLUMNS)
        products = dot(by_head, by_key, tl.zeros([HEADS, KEYS], tl.float32)) * key_scale
        share = tl.load(weights + token * num_heads + heads, mask=used, other=0.0) * head_scale
        products = tl.where(products <= 0, 0.0, products)  # NaN stays NaN
        total += tl.sum(share[:, None] * products, axis=0)
    total = tl.where(seen & (total == total), total, float("-inf"))
    tl.store(found + row * longest + key, total, mask=key < longest)
