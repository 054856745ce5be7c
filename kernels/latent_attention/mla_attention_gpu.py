# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-incomplete-defs
# mypy: no-warn-return-any
"""Latent attention on a GPU: the heads of a token are the rows of a product with one latent per
key.

    a program     some heads of one new token, one split of its context
    a tile        latents [keys, L] and rotated parts [keys, R], read once: as keys, then as values

128 heads of 576 numbers are 240 operations per byte read, about the balance of a Hopper. So tiles
have 64 rows where there are that many heads: fewer would leave tensor cores idle. The partial
result of a split, L float32 per head, is as large as 200 keys. So contexts are split only as far as
it takes to occupy the device; a token's last bits may depend on that. Passes of many new tokens
have enough programs, and are not split at all.

Splits follow from the actual contexts, not from how long they may become; only the device knows
these when a graph runs, so each program finds its own split. Each new token has its own splits,
decoded or drafted: the drafts of a request find in the L2 cache what the first of them read.

    tokens see   700        40      300           in splits of their sum / wanted splits,
    splits       0  1  2  |  3  |  4  5           and of 256 keys at least
    programs     0  1  2     3     4  5  (6 ..)   wanted + T; those after the last split are idle
    merged       |-----|    final  |--|

    partial [items, N, L], lse [items, N] float32

T new tokens, N heads, L width of the latent, R of the part that rotates.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton.kernels.attention.softmax_tile_gpu import scored, weigh
from baton.kernels.gpu.dot import dot
from baton.kernels.gpu.owner import owner_of
from baton.kernels.paging.arena_gpu import load_tile
from baton.kernels.paging.sequences import Sequences

ENOUGH_PROGRAMS = 256
"""About two programs per multiprocessor."""
MIN_SPLIT_KEYS = 256
MERGED_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Tiling:
    rows: int
    keys: int
    num_warps: int

    @classmethod
    def of(cls, dtype: torch.dtype, num_heads: int) -> Tiling:
        """64 rows of 512 columns are 128 registers per thread of eight warps; the queries and two
        tiles of 32 keys take 148 of the 227 KB of shared memory."""
        if dtype is torch.float32:
            return cls(16, 16, 4)
        rows = max(16, min(64, triton.next_power_of_2(num_heads)))
        return cls(rows, 32, 4 if rows == 16 else 8)


@dataclass(frozen=True, slots=True)
class Splits:
    """The division of a pass's contexts into splits; see `_splits_of`."""

    num_items: int
    """Programs per tile of heads: at least the number of splits."""
    wanted: int
    min_keys: int
    room: int
    """Number of tokens that a program reads to find its split; 0: contexts are not split."""


def mla_attention(
    q_latent: Tensor,
    q_rope: Tensor,
    arena: Tensor,
    sequences: Sequences,
    scale: float,
    min_split_keys: int = MIN_SPLIT_KEYS,
) -> Tensor:
    """q_latent [T, N, L] and q_rope [T, N, R] -> attention output [T, N, L]."""
    num_tokens, num_heads, _ = q_latent.shape
    out = torch.empty_like(q_latent)
    head_tiles = triton.cdiv(num_heads, Tiling.of(q_latent.dtype, num_heads).rows)
    wanted = max(1, ENOUGH_PROGRAMS // head_tiles)
    splits = Splits(num_tokens, wanted, min_split_keys, room=0)
    if num_tokens < wanted and sequences.max_context_len > min_split_keys:
        splits = replace(splits, num_items=num_tokens + wanted, room=room_for(num_tokens))
    attend_latents(q_latent, q_rope, out, arena, sequences, scale, splits)
    return out


def attend_latents(
    q_latent: Tensor,
    q_rope: Tensor,
    out: Tensor,
    arena: Tensor,
    sequences: Sequences,
    scale: float,
    splits: Splits,
) -> None:
    """Write `out` [T, N, L]."""
    num_tokens, num_heads, latent = q_latent.shape
    rotated = q_rope.shape[-1]
    if arena.stride()[2:] != (latent + rotated, 1):
        raise ValueError(f"a block must be contiguous: {arena.shape=} {arena.stride()=}")
    tiling = Tiling.of(q_latent.dtype, num_heads)
    is_split = splits.room > 0
    partial, lse = out, out
    if is_split:
        shape = splits.num_items, num_heads
        partial = torch.empty(*shape, latent, dtype=torch.float32, device=out.device)
        lse = torch.empty(shape, dtype=torch.float32, device=out.device)
    columns = max(16, triton.next_power_of_2(latent))
    _attend_latents[splits.num_items, triton.cdiv(num_heads, tiling.rows)](
        q_latent, *q_latent.stride()[:2], q_rope, *q_rope.stride()[:2], out, *out.stride()[:2],
        arena, arena.stride(0), sequences.block_tables, sequences.block_tables.stride(0),
        sequences.positions, sequences.query_starts, sequences.num_requests, num_tokens,
        splits.wanted, splits.min_keys, partial, lse, num_heads, scale,
        LATENT=latent, ROTATED=rotated, BLOCK_SIZE=sequences.block_size, IS_SPLIT=is_split,
        TOKENS=max(1, splits.room),
        ROWS=tiling.rows, KEYS=tiling.keys, LATENT_COLUMNS=columns,
        ROTATED_COLUMNS=max(16, triton.next_power_of_2(rotated)),
        num_warps=tiling.num_warps,
        num_stages=3,  # a tile is read ahead, its table entries one earlier
    )  # fmt: skip
    if is_split:
        _merge[num_heads, num_tokens](
            partial, lse, out, *out.stride()[:2], sequences.positions, num_tokens,
            splits.wanted, splits.min_keys, LATENT=latent, LATENT_COLUMNS=columns,
            TOKENS=splits.room, KEYS=tiling.keys, AT_ONCE=MERGED_AT_ONCE, num_warps=4,
        )  # fmt: skip


def room_for(num_tokens: int) -> int:
    """The next of 16, 64, 256 and so on. There are few values because each needs a compiled
    kernel."""
    room = 16
    while room < num_tokens:
        room *= 4
    return room


@triton.jit
def _splits_of(
    positions, num_tokens, wanted, min_split_keys, TOKENS: tl.constexpr, KEYS: tl.constexpr
):
    """Keys per split; and per token: its context, its splits, and the total of splits up to it."""
    token = tl.arange(0, TOKENS)
    contexts = tl.load(positions + token, mask=token < num_tokens, other=-1).to(tl.int32) + 1
    keys = tl.cdiv(tl.cdiv(tl.sum(contexts, 0), wanted), KEYS) * KEYS
    keys = tl.maximum(keys, min_split_keys)
    splits = tl.cdiv(contexts, keys)
    return keys, contexts, splits, tl.cumsum(splits, 0)


@triton.jit
def _of(values, token, TOKENS: tl.constexpr):
    return tl.sum(tl.where(tl.arange(0, TOKENS) == token, values, 0), 0)


@triton.jit(
    do_not_specialize=["table_stride", "num_requests", "num_tokens", "wanted"],
    do_not_specialize_on_alignment=["tables", "positions", "query_starts"],
)
def _attend_latents(
    q_latent, latent_token_stride, latent_head_stride,
    q_rope, rope_token_stride, rope_head_stride, out, out_token_stride, out_head_stride,
    items, block_stride, tables, table_stride, positions, query_starts, num_requests, num_tokens,
    wanted, min_split_keys, partial, lse, num_heads, scale,
    LATENT: tl.constexpr, ROTATED: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    IS_SPLIT: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    LATENT_COLUMNS: tl.constexpr, ROTATED_COLUMNS: tl.constexpr,
):  # fmt: skip
    item = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    used = heads < num_heads
    if IS_SPLIT:
        keys, contexts, splits, ends = _splits_of(
            positions, num_tokens, wanted, min_split_keys, TOKENS, KEYS
        )
        # Entries after the last token have no splits, and end where the last token's end.
        token = tl.sum((ends <= item).to(tl.int64), 0)
        if token >= num_tokens:
            return
        num_splits = _of(splits, token, TOKENS)
        begin = (item - (_of(ends, token, TOKENS) - num_splits)).to(tl.int32) * keys
        stop = tl.minimum(begin + keys, _of(contexts, token, TOKENS))
    else:
        token = item
        begin = 0
        stop = tl.load(positions + token).to(tl.int32) + 1
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
    if IS_SPLIT:  # noqa: SIM102  # what follows is there only then
        if num_splits > 1:
            at = item * num_heads + heads
            tl.store(lse + at, top + tl.log2(total), mask=used)
            at = at[:, None] * LATENT + columns[None, :]
            tl.store(partial + at, acc / total[:, None], mask=kept)
            return
    at = token * out_token_stride + heads * out_head_stride
    value = (acc / total[:, None]).to(out.dtype.element_ty)
    tl.store(out + at[:, None] + columns[None, :], value, mask=kept)


@triton.jit(
    do_not_specialize=["num_tokens", "wanted"], do_not_specialize_on_alignment=["positions"]
)
def _merge(
    partial, lse, out, out_token_stride, out_head_stride, positions, num_tokens,
    wanted, min_split_keys, LATENT: tl.constexpr, LATENT_COLUMNS: tl.constexpr,
    TOKENS: tl.constexpr, KEYS: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """lse = log2 sum 2^lse[s], out = sum 2^(lse[s] - lse) partial[s], for tokens with several
    splits."""
    head, num_heads = tl.program_id(0), tl.num_programs(0)
    token = tl.program_id(1).to(tl.int64)
    _, _, splits, ends = _splits_of(positions, num_tokens, wanted, min_split_keys, TOKENS, KEYS)
    num_splits = _of(splits, token, TOKENS)
    if num_splits == 1:
        return
    first = _of(ends, token, TOKENS) - num_splits
    columns = tl.arange(0, LATENT_COLUMNS)
    acc = tl.zeros([LATENT_COLUMNS], tl.float32)
    top, total = tl.max(tl.full([1], float("-inf"), tl.float32), 0), 0.0
    for start in range(0, num_splits, AT_ONCE):
        split = start + tl.arange(0, AT_ONCE)
        inside = split < num_splits
        at = (first + split).to(tl.int64) * num_heads + head
        part_lse = tl.load(lse + at, mask=inside, other=float("-inf"))
        part = load_tile(partial, at * LATENT, inside, LATENT, LATENT_COLUMNS)
        new_top = tl.maximum(top, tl.max(part_lse, 0))
        weights = tl.exp2(part_lse - new_top)
        fade = tl.exp2(top - new_top)
        total = total * fade + tl.sum(weights, 0)
        acc = acc * fade + tl.sum(weights[:, None] * part, 0)
        top = new_top
    at = token * out_token_stride + head * out_head_stride + columns
    tl.store(out + at, (acc / total).to(out.dtype.element_ty), mask=columns < LATENT)
