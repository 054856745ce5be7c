"""Causal attention over a KV cache in blocks.

    arena of one layer   [blocks][K][2][S][H]     K, then V; one (block, head, K or V) is a *row*
    request              its tokens 0 .. context - 1 lie in the blocks of its table, in order;
                         the last `query_len` of them are the new tokens of this pass

New K and V are written first; then each new token attends to all tokens of its request up to and
including itself. What depends on the tables alone is worked out once a pass, in an AttentionPlan:
requests with one new token are attended together, as many as fit into the caches of a CPU, and
longer chunks one by one.

T new tokens of all requests end to end, N query heads, K KV heads (N a multiple of K), H head
width, S tokens a block, R requests, M blocks of the longest of them.

Every value in an arena is finite: slots past the end of a request are read (and weighted zero), so
a NaN left there by one request would spoil another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

GATHER_BYTES = 4 << 20
"""K and V copied out of the arena at once: more than the last-level cache holds is slower."""
MASK_ITEMS = 4 << 20
"""A long chunk is cut so that no mask is larger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArenaShape:
    num_kv_heads: int
    block_size: int
    row_bytes: int
    """K or V of one block and head."""
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """Requests attended in one operation: any number with one new token, or one with more."""

    tokens: slice | Tensor
    """Which of the T."""
    rows: Tensor | None
    """[2 * R * K * M] of the arena: all K, then all V. None: the new tokens are all there is."""
    bias: Tensor | None
    """0 or -inf, added to the scores: [R, 1, 1, M * S], or [tokens, M * S] for one request."""


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    blocks: Tensor  # [T] where each new token is written
    offsets: Tensor  # [T] its place in the block
    decodes: tuple[AttentionGroup, ...]
    prefills: tuple[AttentionGroup, ...]


def paged_attention(q: Tensor, k: Tensor, v: Tensor, arena: Tensor, plan: AttentionPlan) -> Tensor:
    """Write k and v [T, K, H] into the arena; return what q [T, N, H] attends to, [T, N, H]."""
    kv = torch.stack((k, v), dim=1).nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
    arena.permute(0, 3, 2, 1, 4)[plan.blocks, plan.offsets] = kv  # [T, 2, K, H]
    if len(plan.decodes) == 1 and not plan.prefills:
        return _attend_decodes(q, arena, plan.decodes[0])
    out = torch.empty_like(q)
    for group in plan.decodes:
        out[group.tokens] = _attend_decodes(q[group.tokens], arena, group)
    for group in plan.prefills:
        new_kv = (k[group.tokens], v[group.tokens])
        out[group.tokens] = _attend_prefill(q[group.tokens], new_kv, arena, group)
    return out


def _attend_decodes(q: Tensor, arena: Tensor, group: AttentionGroup) -> Tensor:
    """One new token each: q is [R, N, H]. The query heads of a KV head are its queries."""
    (requests, num_heads, width), kv_heads = q.shape, arena.shape[1]
    k, v = _gather(arena, group, requests)
    queries = q.view(requests, kv_heads, num_heads // kv_heads, width)
    out = functional.scaled_dot_product_attention(queries, k, v, attn_mask=group.bias)
    return out.reshape(requests, num_heads, width)


def _attend_prefill(
    q: Tensor, new_kv: tuple[Tensor, Tensor], arena: Tensor, group: AttentionGroup
) -> Tensor:
    """Several new tokens of one request: q is [tokens, N, H]."""
    if group.rows is None:
        k, v = (x.transpose(0, 1).unsqueeze(0) for x in new_kv)
    else:
        k, v = _gather(arena, group, 1)
    out = functional.scaled_dot_product_attention(
        q.transpose(0, 1).unsqueeze(0),
        k,
        v,
        attn_mask=group.bias,
        is_causal=group.bias is None,
        enable_gqa=q.shape[1] != k.shape[1],
    )
    return out[0].transpose(0, 1)


def _gather(arena: Tensor, group: AttentionGroup, requests: int) -> tuple[Tensor, Tensor]:
    """K and V of all of a group's blocks, each [R, K, M * S, H]."""
    _, kv_heads, _, block_size, width = arena.shape
    assert group.rows is not None
    kv = arena.view(-1, block_size * width).index_select(0, group.rows)
    k, v = kv.view(2, requests, kv_heads, -1, width)
    return k, v


def plan_attention(
    tables: Tensor,
    query_lens: Sequence[int],
    context_lens: Sequence[int],
    positions: Tensor,
    shape: ArenaShape,
) -> AttentionPlan:
    """Work out a pass from block tables [R, M], padded with any block, and positions [T]."""
    device = tables.device
    owners = torch.repeat_interleave(torch.tensor(query_lens, device=device))  # [T] -> request
    starts = [0]
    for query_len in query_lens:
        starts.append(starts[-1] + query_len)
    decodes = [request for request, query_len in enumerate(query_lens) if query_len == 1]
    return AttentionPlan(
        blocks=tables[owners, positions // shape.block_size],
        offsets=positions % shape.block_size,
        decodes=tuple(
            _plan_decodes(tables, group, starts, context_lens, shape)
            for group in _split(decodes, context_lens, shape)
        ),
        prefills=tuple(
            span
            for request, query_len in enumerate(query_lens)
            if query_len > 1
            for span in _plan_prefill(
                tables[request], starts[request], query_len, context_lens[request], shape
            )
        ),
    )


def _split(
    requests: Sequence[int], context_lens: Sequence[int], shape: ArenaShape
) -> Iterator[list[int]]:
    """Cut requests into groups whose padded K and V are at most GATHER_BYTES, or of one request.

    Requests of like length go together, so that little is padded.
    """
    block_bytes = 2 * shape.num_kv_heads * shape.row_bytes
    group: list[int] = []
    group_bytes = 0  # of the group's longest request, which is its first
    for request in sorted(requests, key=lambda r: context_lens[r], reverse=True):
        if group and (len(group) + 1) * group_bytes > GATHER_BYTES:
            yield sorted(group)
            group = []
        if not group:
            group_bytes = -(-context_lens[request] // shape.block_size) * block_bytes
        group.append(request)
    if group:
        yield sorted(group)


def _plan_decodes(
    tables: Tensor,
    requests: list[int],
    starts: Sequence[int],
    context_lens: Sequence[int],
    shape: ArenaShape,
) -> AttentionGroup:
    first = starts[requests[0]]
    tokens: slice | Tensor = slice(first, first + len(requests))
    if starts[requests[-1]] != first + len(requests) - 1:
        tokens = torch.tensor([starts[r] for r in requests], device=tables.device)
    lens = torch.tensor([context_lens[r] for r in requests], device=tables.device)
    num_blocks = -(-max(context_lens[r] for r in requests) // shape.block_size)
    if len(requests) < len(tables):
        tables = tables[torch.tensor(requests, device=tables.device)]
    places = torch.arange(num_blocks * shape.block_size, device=tables.device)
    return AttentionGroup(
        tokens=tokens,
        rows=_rows(tables[:, :num_blocks], shape),
        bias=_bias(places < lens.view(-1, 1, 1, 1), shape.dtype),
    )


def _plan_prefill(
    table: Tensor, start: int, query_len: int, context_len: int, shape: ArenaShape
) -> Iterator[AttentionGroup]:
    """Cut a chunk so that no mask exceeds MASK_ITEMS; each cut sees only what it needs."""
    if query_len == context_len:
        yield AttentionGroup(tokens=slice(start, start + query_len), rows=None, bias=None)
        return
    past = context_len - query_len
    step = max(1, MASK_ITEMS // context_len)
    for done in range(0, query_len, step):
        end = min(done + step, query_len)
        num_blocks = -(-(past + end) // shape.block_size)
        places = torch.arange(num_blocks * shape.block_size, device=table.device)
        queries = torch.arange(past + done, past + end, device=table.device)
        yield AttentionGroup(
            tokens=slice(start + done, start + end),
            rows=_rows(table[None, :num_blocks], shape),
            bias=_bias(places <= queries.unsqueeze(1), shape.dtype),
        )


def _rows(tables: Tensor, shape: ArenaShape) -> Tensor:
    """[R, M] blocks -> [2 * R * K * M] rows of the arena."""
    heads = torch.arange(shape.num_kv_heads, device=tables.device).view(-1, 1)
    keys = (tables.unsqueeze(1) * shape.num_kv_heads + heads) * 2  # [R, K, M]
    return torch.stack((keys, keys + 1)).view(-1)


def _bias(visible: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(
        ~visible, -torch.inf
    )


def reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    arena: Tensor,
    requests: Sequence[tuple[Sequence[int], int, int]],
) -> Tensor:
    """The definition, one token and one head at a time, in float32.

    `requests` gives, in the order of their tokens in q: (block table, query_len, context_len).
    """
    out = torch.empty_like(q)
    block_size, token = arena.shape[3], 0
    heads_per_kv = q.shape[1] // arena.shape[1]
    for table, query_len, context_len in requests:
        for place in range(context_len - query_len, context_len):
            arena[table[place // block_size], :, 0, place % block_size] = k[token]
            arena[table[place // block_size], :, 1, place % block_size] = v[token]
            past = (
                arena[list(table)].permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, : place + 1].float()
            )
            for head in range(q.shape[1]):
                keys, values = past[head // heads_per_kv]
                scores = keys @ q[token, head].float() / q.shape[-1] ** 0.5
                out[token, head] = (scores.softmax(0) @ values).to(q.dtype)
            token += 1
    return out
