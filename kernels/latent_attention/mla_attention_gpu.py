# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-incomplete-defs
# mypy: no-warn-return-any
"""Latent attention: the heads of a token are the rows of a product with one latent a key.

    a program     some heads of one new token, one split of its context
    a tile        latents [keys, L] and what rotates [keys, R], read once: keys, and then values

128 heads of 576 numbers make 240 operations of a byte read, about what a Hopper balances, so tiles
have 64 rows where there are that many heads: less would leave its tensor cores idle. What a split
gives, L float32 of each head, is as much as 200 keys. So contexts are split no more than it takes
to employ the device, which a token's last bits may tell; passes with several new tokens of a
request have programs enough, and are not split at all.

    partial [R', N, splits, L], lse [R', N, splits] float32    kernels/attention/merge_splits_gpu.py

T new tokens, R' requests, N heads, L width of the latent, R of the part that rotates.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton.kernels.attention.merge_splits_gpu import merge_splits
from baton.kernels.attention.scoring_gpu import ScoringRules
from baton.kernels.attention.softmax_tile_gpu import scored, weigh
from baton.kernels.gpu.dot import dot
from baton.kernels.gpu.owner import owner_of
from baton.kernels.paging.arena_gpu import load_tile
from baton.kernels.paging.sequences import Sequences

ENOUGH_PROGRAMS = 256
"""About two for each multiprocessor."""
MIN_SPLIT_KEYS = 256


@dataclass(frozen=True, slots=True)
class Tiling:
    rows: int
    keys: int
    num_warps: int

    @classmethod
    def of(cls, dtype: torch.dtype, num_heads: int) -> Tiling:
        """64 rows of 512 columns are 128 registers a thread of eight warps; the queries and two
        tiles of 32 keys are 148 of the 227 KB that a multiprocessor shares."""
        if dtype is torch.float32:
            return cls(16, 16, 4)
        rows = max(16, min(64, triton.next_power_of_2(num_heads)))
        return cls(rows, 32, 4 if rows == 16 else 8)


def mla_attention(
    q_latent: Tensor,
    q_rope: Tensor,
    arena: Tensor,
    sequences: Sequences,
    scale: float,
    min_split_keys: int = MIN_SPLIT_KEYS,
) -> Tensor:
    """q_latent [T, N, L] and q_rope [T, N, R] -> what they attend to, [T, N, L]."""
    num_tokens, num_heads, latent = q_latent.shape
    rotated = q_rope.shape[-1]
    if arena.stride()[2:] != (latent + rotated, 1):
        raise ValueError(f"a block must be contiguous: {arena.shape=} {arena.stride()=}")
    out = torch.empty_like(q_latent)
    tiling = Tiling.of(q_latent.dtype, num_heads)
    head_tiles = triton.cdiv(num_heads, tiling.rows)
    num_splits = 1
    if sequences.max_query_len == 1:
        num_splits = triton.cdiv(ENOUGH_PROGRAMS, num_tokens * head_tiles)
    split = triton.next_power_of_2(triton.cdiv(sequences.max_context_len, num_splits))
    split = max(min_split_keys, split)
    num_splits = triton.cdiv(sequences.max_context_len, split)
    partial, lse = out, out
    if num_splits > 1:
        shape = num_tokens, num_heads, num_splits
        partial = torch.empty(*shape, latent, dtype=torch.float32, device=out.device)
        lse = torch.empty(shape, dtype=torch.float32, device=out.device)
    _attend_latents[num_tokens, head_tiles, num_splits](
        q_latent, *q_latent.stride()[:2], q_rope, *q_rope.stride()[:2], out, *out.stride()[:2],
        arena, arena.stride(0), sequences.block_tables, sequences.block_tables.stride(0),
        sequences.positions, sequences.query_starts, sequences.num_requests,
        partial, lse, num_heads, num_splits, split, scale,
        LATENT=latent, ROTATED=rotated, BLOCK_SIZE=sequences.block_size, IS_SPLIT=num_splits > 1,
        ROWS=tiling.rows, KEYS=tiling.keys, LATENT_COLUMNS=max(16, triton.next_power_of_2(latent)),
        ROTATED_COLUMNS=max(16, triton.next_power_of_2(rotated)),
        num_warps=tiling.num_warps,
        num_stages=3,  # a tile is read ahead, its table entries one earlier
    )  # fmt: skip
    if num_splits > 1:
        merge_splits(partial, lse, out, sequences, ScoringRules(), split)
    return out


@triton.jit(do_not_specialize=["num_requests", "num_splits"])
def _attend_latents(
    q_latent, latent_token_stride, latent_head_stride,
    q_rope, rope_token_stride, rope_head_stride, out, out_token_stride, out_head_stride,
    items, block_stride, tables, table_stride, positions, query_starts, num_requests,
    partial, lse, num_heads, num_splits, split_length, scale,
    LATENT: tl.constexpr, ROTATED: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    IS_SPLIT: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    LATENT_COLUMNS: tl.constexpr, ROTATED_COLUMNS: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    used = heads < num_heads
    context = tl.load(positions + token).to(tl.int32) + 1
    begin = tl.program_id(2) * split_length
    if begin >= context:
        return
    stop = tl.minimum(begin + split_length, context)
    request = owner_of(query_starts, num_requests, token)
    rows = token * latent_token_stride + heads * latent_head_stride
    by_latent = load_tile(q_latent, rows, used, LATENT, LATENT_COLUMNS)
    rows = token * rope_token_stride + heads * rope_head_stride
    by_rope = load_tile(q_rope, rows, used, ROTATED, ROTATED_COLUMNS)
    columns = tl.arange(0, LATENT_COLUMNS)
    kept = used[:, None] & (columns < LATENT)[None, :]
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, LATENT_COLUMNS], tl.float32)
    for start in range(begin, stop, KEYS):
        key = start + tl.arange(0, KEYS)
        inside = key < stop
        at = tables + request * table_stride + key // BLOCK_SIZE
        block = tl.load(at, mask=inside, other=0).to(tl.int64)
        place = block * block_stride + (key % BLOCK_SIZE) * (LATENT + ROTATED)
        latents = load_tile(items, place, inside, LATENT, LATENT_COLUMNS)
        rotated = load_tile(items + LATENT, place, inside, ROTATED, ROTATED_COLUMNS)
        products = dot(by_rope, tl.trans(rotated), tl.zeros([ROWS, KEYS], tl.float32))
        products = dot(by_latent, tl.trans(latents), products)
        scores = scored(products, scale, 0.0, False)
        acc, top, total = weigh(acc, top, total, scores, inside[None, :], latents, products, False)
    if IS_SPLIT:
        at = (token * num_heads + heads) * num_splits + tl.program_id(2)
        tl.store(lse + at, top + tl.log2(total), mask=used)
        at = at[:, None] * LATENT + columns[None, :]
        tl.store(partial + at, acc / total[:, None], mask=kept)
    else:
        at = token * out_token_stride + heads * out_head_stride
        value = (acc / total[:, None]).to(out.dtype.element_ty)
        tl.store(out + at[:, None] + columns[None, :], value, mask=kept)
