"""Attention to recent tokens and to compressed entries of the context (DeepSeek V4). Keys are
values.

    token at p sees   tokens  p - W + 1 .. p              one vector each, shared by all heads
                      entries 0 .. (p + 1) // m - 1       of the windows closed by then, or the
                                                          `top_k` best of them
    best              sum over index heads j of  scale w[t, j] relu(qi[t, j] . ki[entry])
    out               softmax over those and a sink per head, which takes weight and adds nothing

Ties between entries go to the first. The compiled CPU operator is batch-invariant, and independent
of chunks and the number of threads; torch, which processes many tokens at a time under a mask, is
not.

T new tokens of all requests, N heads, H head width, J index heads, I their width, W window, m
tokens an entry (kernels/cache_write/compress.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from baton.kernels.attention.explicit_attention import explicit_attention
from baton.kernels.attention.scoring import Scoring
from baton.kernels.cache_write.compress import entries_of
from baton.kernels.cpu import operators
from baton.kernels.latent_attention import compressed_attention_cpu as cpu
from baton.kernels.latent_attention.entries import Entries, EntryIndex
from baton.kernels.paging.paged_rows import rows_at
from baton.kernels.paging.sequences import Sequences

TOKENS_AT_ONCE = 256
"""Query tokens of a tile, which limits the number of scores at a time."""


@dataclass(frozen=True, slots=True)
class _Tile:
    """Consecutive tokens of one request."""

    request: int
    rows: slice
    """Their rows among all new tokens."""
    first: int
    """Position of the first."""
    stop: int


def compressed_attention(  # noqa: PLR0913  # queries, what they see, and how
    q: Tensor,
    arena: Tensor,
    sequences: Sequences,
    window: int,
    entries: Entries | None,
    scoring: Scoring,
    sinks: Tensor,
) -> Tensor:
    """q [T, N, H] -> [T, N, H], over vectors that have been written; sinks [N]."""
    if arena.shape[1:] != (1, sequences.block_size, q.shape[-1]) or sinks.shape != q.shape[1:2]:
        raise ValueError(f"shapes do not fit: {q.shape=} {arena.shape=} {sinks.shape=}")
    if operators.runs(q, arena, sinks):
        scale = scoring.scale_of(q.shape[-1])
        return cpu.attend(q, arena, sequences, window, entries, scale, sinks)
    return reference(q, arena, sequences, window, entries, scoring, sinks)


def reference(  # noqa: PLR0913  # as above
    q: Tensor,
    arena: Tensor,
    sequences: Sequences,
    window: int,
    entries: Entries | None,
    scoring: Scoring,
    sinks: Tensor,
) -> Tensor:
    """The definition, and the fallback without compiled operators."""
    out = torch.empty_like(q)
    for tile in _tiles(sequences):
        keys, hidden = _recent(tile, arena, window, sequences)
        if entries is not None:
            more, hidden_more = _entries(tile, entries, sequences)
            keys, hidden = torch.cat((keys, more)), torch.cat((hidden, hidden_more), dim=1)
        kv = keys.view(1, 1, *keys.shape)
        bias = torch.zeros(hidden.shape, device=q.device).masked_fill_(hidden, -torch.inf)
        asked = q[tile.rows].transpose(0, 1).unsqueeze(0).unsqueeze(0)  # [1, 1, N, Q, H]
        found = explicit_attention(asked, kv, kv, bias, scoring, sinks)
        out[tile.rows] = found[0, 0].transpose(0, 1)
    return out


def _tiles(sequences: Sequences) -> Iterator[_Tile]:
    begin, size = 0, TOKENS_AT_ONCE
    for request, (query_len, context_len) in enumerate(sequences.lengths()):
        for done in range(0, query_len, size):
            stop = min(done + size, query_len)
            first = context_len - query_len
            yield _Tile(request, slice(begin + done, begin + stop), first + done, first + stop)
        begin += query_len


def _recent(tile: _Tile, arena: Tensor, window: int, sequences: Sequences) -> tuple[Tensor, Tensor]:
    """Vectors [L, H] of the recent tokens that any token of the tile sees, and the mask [Q, L] of
    those hidden from each query."""
    positions = torch.arange(max(0, tile.first - window + 1), tile.stop, device=arena.device)
    keys = rows_at(arena, torch.full_like(positions, tile.request), positions, sequences)
    asking = torch.arange(tile.first, tile.stop, device=arena.device).unsqueeze(1)
    return keys, (positions > asking) | (positions <= asking - window)


def _entries(tile: _Tile, entries: Entries, sequences: Sequences) -> tuple[Tensor, Tensor]:
    """Vectors [L, H] of the compressed entries, and which are masked for each query, [Q, L]."""
    windows, index = entries.windows, entries.index
    count = windows.num_closed(tile.stop)
    keys = entries_of(entries.arena, windows, tile.request, count, sequences)
    asking = torch.arange(tile.first, tile.stop, device=keys.device)
    closed = ((asking + 1) // windows.num_tokens).unsqueeze(1)
    hidden = torch.arange(count, device=keys.device) >= closed
    if index is not None and count > index.top_k:
        hidden = hidden | ~_chosen(tile, index, hidden, sequences)
    return keys, hidden


def _chosen(tile: _Tile, index: EntryIndex, hidden: Tensor, sequences: Sequences) -> Tensor:
    """[Q, count] bool: the best of the visible entries, up to `top_k`."""
    count = hidden.shape[1]
    keys = entries_of(index.arena, index.windows, tile.request, count, sequences)
    products = index.q[tile.rows].float() @ keys.float().T  # [Q, J, count]
    products = products.masked_fill_(~(products > 0), 0.0)  # nor does what is no number count
    weights = index.weights[tile.rows].float() * index.scale
    scores = (weights.unsqueeze(1) @ products).squeeze(1)
    best = scores.masked_fill(hidden, -torch.inf).argsort(dim=-1, descending=True, stable=True)
    is_chosen = torch.zeros_like(hidden)
    return is_chosen.scatter_(1, best[:, : index.top_k], True)
