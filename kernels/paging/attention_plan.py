"""Plans the blocks that a pass of torch's attention reads, from block tables alone.

    position p of a request sees  p - window + 1 .. p,  without a window  0 .. p

Requests with one new token are grouped, as many as fit into the caches of a CPU; longer chunks are
processed one by one, cut so that no mask grows too large. With a window only the blocks that it
reaches are read; earlier ones stay in the cache, where other layers and requests may need them.

T new tokens of all requests, concatenated, K KV heads, S tokens a block, R requests, M blocks of
the longest of them (or of the longest window).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from baton.kernels.paging.window import (
    Chunks,
    Streaming,
    Window,
    first_seen,
    num_first_of,
    size_of,
    within,
)

GATHER_BYTES = 4 << 20
"""Most bytes of K and V gathered at a time: more than the last-level cache holds is slower."""
MASK_ITEMS = 4 << 20
"""Most items of a mask; longer chunks are cut."""
MIN_WINDOW_CUT = 256
"""Least tokens of a cut, even if the window is smaller: small products are inefficient."""


@dataclass(frozen=True, slots=True)
class ArenaShape:
    num_kv_heads: int
    block_size: int
    row_bytes: int
    """Bytes of K or V of one block and head."""
    dtype: torch.dtype
    """The dtype of queries and scores."""

    def num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """Requests attended in one operation: any number with one new token, or one with more."""

    tokens: slice | Tensor
    """The rows of its tokens among the T."""
    rows: Tensor
    """[2 * R * K * M] row numbers of the arena: all K, then all V."""
    not_its_own: Tensor | None
    """[R, M * S] bool: slots that no token of the request sees. None if there is no past."""
    bias: Tensor | None
    """0 or -inf, added to the scores: [R, 1, 1, M * S], or [tokens, M * S] for one request. None:
    the new tokens are the whole request, with a causal mask."""


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    decodes: tuple[AttentionGroup, ...]
    prefills: tuple[AttentionGroup, ...]


@dataclass(frozen=True, slots=True)
class _Requests:
    """The requests of one pass, in the order of their tokens."""

    tables: Tensor  # [R, M]
    query_lens: Sequence[int]
    context_lens: Sequence[int]
    starts: Sequence[int]  # the first of each request's tokens among the T
    shape: ArenaShape
    window: Window

    def first_block(self, position: int) -> int:
        """The first block that a token at `position` reads."""
        if num_first_of(self.window):
            return 0
        return first_seen(self.window, position) // self.shape.block_size

    def decode_span(self, request: int) -> int:
        """Number of blocks that the last token of `request` reads."""
        context_len = self.context_lens[request]
        return self.shape.num_blocks_for(context_len) - self.first_block(context_len - 1)


def plan_attention(
    tables: Tensor,
    query_lens: Sequence[int],
    context_lens: Sequence[int],
    shape: ArenaShape,
    window: Window = None,
) -> AttentionPlan:
    """Plan a pass from block tables [R, M], padded with any block."""
    starts = [0]
    for query_len in query_lens:
        starts.append(starts[-1] + query_len)
    requests = _Requests(tables, query_lens, context_lens, starts, shape, window)
    decodes = [request for request, query_len in enumerate(query_lens) if query_len == 1]
    return AttentionPlan(
        decodes=tuple(_plan_decodes(requests, group) for group in _split(requests, decodes)),
        prefills=tuple(
            group
            for request, query_len in enumerate(query_lens)
            if query_len > 1
            for group in _plan_prefill(requests, request)
        ),
    )


def _split(requests: _Requests, members: Sequence[int]) -> Iterator[list[int]]:
    """Split requests into groups whose padded K and V are at most GATHER_BYTES, or of one request.

    Requests of similar length are grouped, so that there is little padding.
    """
    block_bytes = 2 * requests.shape.num_kv_heads * requests.shape.row_bytes
    span_by_member = {member: requests.decode_span(member) for member in members}
    group: list[int] = []
    group_bytes = 0  # of the group's longest request, which is its first
    for member in sorted(members, key=span_by_member.__getitem__, reverse=True):
        if group and (len(group) + 1) * group_bytes > GATHER_BYTES:
            yield sorted(group)
            group = []
        if not group:
            group_bytes = span_by_member[member] * block_bytes
        group.append(member)
    if group:
        yield sorted(group)


def _plan_decodes(requests: _Requests, members: list[int]) -> AttentionGroup:
    tables, starts, device = requests.tables, requests.starts, requests.tables.device
    first = starts[members[0]]
    tokens: slice | Tensor = slice(first, first + len(members))
    if starts[members[-1]] != first + len(members) - 1:
        tokens = torch.tensor([starts[member] for member in members], device=device)
    if len(members) < len(tables):
        tables = tables[torch.tensor(members, device=device)]
    context_lens = [requests.context_lens[member] for member in members]
    ends = torch.tensor(context_lens, device=device).unsqueeze(1)  # [R, 1]
    num_blocks = max(requests.decode_span(member) for member in members)
    places = torch.arange(num_blocks * requests.shape.block_size, device=device)
    if requests.window is None:
        tables, visible = tables[:, :num_blocks], places < ends
    else:
        firsts = torch.tensor([requests.first_block(n - 1) for n in context_lens], device=device)
        columns = firsts.unsqueeze(1) + torch.arange(num_blocks, device=device)
        # Columns past the end of a table are replaced by its last one, and masked like all padding.
        tables = tables.gather(1, columns.clamp_(max=tables.shape[1] - 1))
        places = places + firsts.unsqueeze(1) * requests.shape.block_size  # [R, M * S]
        seen = [first_seen(requests.window, n - 1) for n in context_lens]
        is_seen = places >= torch.tensor(seen, device=device).unsqueeze(1)
        is_seen |= places < num_first_of(requests.window)
        visible = (places < ends) & is_seen
    return AttentionGroup(
        tokens=tokens,
        rows=_rows(tables, requests.shape),
        not_its_own=~visible,
        bias=_bias(visible[:, None, None], requests.shape.dtype),
    )


def _plan_prefill(requests: _Requests, request: int) -> Iterator[AttentionGroup]:
    """Cut a chunk so that no mask exceeds MASK_ITEMS; each cut sees only what it needs."""
    start, device = requests.starts[request], requests.tables.device
    query_len, context_len = requests.query_lens[request], requests.context_lens[request]
    window = within(requests.window, context_len)
    if query_len == context_len and window is None:
        blocks = requests.tables[request, : requests.shape.num_blocks_for(context_len)]
        yield AttentionGroup(
            tokens=slice(start, start + query_len),
            rows=_rows(blocks.unsqueeze(0), requests.shape),
            not_its_own=None,
            bias=None,
        )
        return
    past, block_size = context_len - query_len, requests.shape.block_size
    step = _cut(context_len, window)
    for done in range(0, query_len, step):
        end = min(done + step, query_len)
        first = requests.first_block(past + done)
        blocks = requests.tables[request, first : requests.shape.num_blocks_for(past + end)]
        places = torch.arange(first * block_size, (first + len(blocks)) * block_size, device=device)
        queries = torch.arange(past + done, past + end, device=device).unsqueeze(1)
        visible = places <= queries
        if isinstance(window, Chunks):
            visible &= places >= queries // window.size * window.size
        elif isinstance(window, Streaming):
            visible &= (places > queries - window.size) | (places < window.num_first)
        elif window is not None:
            visible &= places > queries - window
        yield AttentionGroup(
            tokens=slice(start + done, start + end),
            rows=_rows(blocks.unsqueeze(0), requests.shape),
            not_its_own=(places >= past + end).unsqueeze(0),
            bias=_bias(visible, requests.shape.dtype),
        )


def _cut(context_len: int, window: Window) -> int:
    """Tokens of a chunk that are attended at a time.

    With a window, at most its size: each cut reads itself and a window before it.
    """
    if window is None or isinstance(window, Streaming):
        return max(1, MASK_ITEMS // context_len)
    widest = max(size_of(window), MIN_WINDOW_CUT)
    return max(1, min(widest, MASK_ITEMS // (2 * widest)))


def _rows(tables: Tensor, shape: ArenaShape) -> Tensor:
    """[R, M] blocks -> [2 * R * K * M] rows of the arena."""
    heads = torch.arange(shape.num_kv_heads, device=tables.device).view(-1, 1)
    keys = (tables.long().unsqueeze(1) * shape.num_kv_heads + heads) * 2  # [R, K, M]
    return torch.stack((keys, keys + 1)).view(-1)


def _bias(visible: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(
        ~visible, -torch.inf
    )
