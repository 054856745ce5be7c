"""Chooses the tokens that each new token attends to, by index scores (DeepSeek V3.2).

    score[t, s] = sum over n of w[t, n] relu(q[t, n] . k[s] / sqrt(D)) / sqrt(N)       s <= t
    chosen[t]   = the K highest, the earlier of equals; all if there are at most K

A NaN score counts as -inf, so that such a token is chosen last.

The arena is that of kernels/cache_write/index_write.py. The result are *slots*: positions in the
arena, block * S + offset in the block, in token order; they are valid for all layers. A token's
choice depends only on itself and its context: on a CPU the compiled operator gives the same bits in
any batch, chunk and number of threads.

T new tokens, N heads of the index, D their width, S tokens a block, K tokens that are chosen.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from baton.kernels.cpu.operators import runs
from baton.kernels.latent_attention import choose_tokens_cpu as cpu
from baton.kernels.paging.sequences import Sequences

SCORE_ITEMS = 16 << 20
"""Most scores, of all heads, that torch computes at a time."""


@dataclass(frozen=True, slots=True, eq=False)
class Chosen:
    slots: Tensor  # [T, K] int64; of a token as many as `counts` says, behind them anything
    positions: Tensor  # [T] int64, of the new tokens

    @property
    def counts(self) -> Tensor:
        """[T] int64: the smaller of K and the token's context length."""
        return (self.positions + 1).clamp_(max=self.slots.shape[1])


def choose_tokens(
    q: Tensor, weights: Tensor, arena: Tensor, sequences: Sequences, num_chosen: int
) -> Chosen:
    """q [T, N, D] and weights [T, N] float32."""
    if (
        q.shape[:2] != weights.shape
        or arena.shape[1:] != (1, sequences.block_size, q.shape[2])
        or weights.dtype is not torch.float32
        or num_chosen < 1
    ):
        raise ValueError(f"do not fit: {q.shape=} {weights.shape=} {arena.shape=} {num_chosen=}")
    if q.is_cuda:
        from baton.kernels.latent_attention import (
            choose_tokens_gpu as gpu,  # Triton, which CPUs do without
        )

        return Chosen(*gpu.choose_tokens(q, weights, arena, sequences, num_chosen))
    if runs(q, arena):
        return Chosen(*cpu.choose_tokens(q, weights, arena, sequences, num_chosen))
    return reference(q, weights, arena, sequences, num_chosen)


def reference(
    q: Tensor, weights: Tensor, arena: Tensor, sequences: Sequences, num_chosen: int
) -> Chosen:
    """The definition, a few tokens at a time, and the fallback on a CPU."""
    slots = weights.new_zeros((len(q), num_chosen), dtype=torch.int64)
    start = 0
    for request, (query_len, context_len) in enumerate(sequences.lengths()):
        places = torch.arange(context_len, device=q.device)
        blocks = sequences.block_tables[request, places // sequences.block_size].long()
        of_context = blocks * sequences.block_size + places % sequences.block_size
        keys = arena.view(-1, arena.shape[-1])[of_context]
        step = max(1, SCORE_ITEMS // (q.shape[1] * context_len))
        for first in range(0, query_len, step):
            tokens = slice(start + first, start + min(first + step, query_len))
            ends = places[context_len - query_len + first :][:step]
            best = _best(scores(q[tokens], weights[tokens], keys), ends, num_chosen)
            slots[tokens, : best.shape[1]] = of_context[best]
        start += query_len
    return Chosen(slots, sequences.positions[: len(q)])


def _best(found: Tensor, ends: Tensor, num_chosen: int) -> Tensor:
    """The ascending indices [Q, K] of the best scores [Q, C], for tokens at the indices `ends`.

    Invisible tokens rank after all others, so that their indices come after those of visible
    tokens.
    """
    hidden = torch.arange(found.shape[1], device=found.device) > ends.unsqueeze(1)
    ranked = found.masked_fill_(hidden, -torch.inf).sort(dim=-1, descending=True, stable=True)
    return ranked.indices[:, :num_chosen].sort(dim=-1).values


def scores(q: Tensor, weights: Tensor, keys: Tensor) -> Tensor:
    """q [Q, N, D], weights [Q, N] and keys [C, D] -> [Q, C] float32."""
    num_heads, width = q.shape[1:]
    products = q.float() @ keys.float().T * width**-0.5  # [Q, N, C]
    products.clamp_(min=0.0)  # NaN stays NaN
    found: Tensor = ((weights * num_heads**-0.5).unsqueeze(1) @ products).squeeze(1)
    return found.nan_to_num_(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
