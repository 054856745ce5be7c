"""Latent attention whose sums have one order: a token has the same bits alone, in any batch, in any
chunk of its prompt, and drafted or decoded.

    a token sees   0 .. L - 1 | L .. 2L - 1 | ... itself      splits of SPLIT_KEYS, of each token
    tokens         some after the others: their partial results take MAX_PARTIAL_BYTES at most

The kernels are those of mla_attention_gpu.py, in one form for every pass: a token has splits of its
own, which end where it does, so what they give and in which order they are merged follows from the
keys that it sees. Which program has which split changes nothing.

Slower than `mla_attention`: a short context occupies fewer programs, and the tokens of a prompt
come at most MAX_TOKENS at once, each reading its context for itself.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import triton
from torch import Tensor

from baton.kernels.attention.paged_decode_gpu import MAX_PARTIAL_BYTES
from baton.kernels.latent_attention.mla_attention_gpu import Splits, attend_latents
from baton.kernels.paging.sequences import Sequences

SPLIT_KEYS = 1024
"""Keys of a split. One context of 4,096 occupies four programs for each tile of heads."""
MAX_TOKENS = 256
"""Tokens at once: there is room for as many in the one form that is compiled."""
NO_MORE = 1 << 24
"""Splits that are wanted of all contexts together: so many that none is longer than it must be,
whatever lies beside it."""


def fixed_mla_attention(
    q_latent: Tensor,
    q_rope: Tensor,
    arena: Tensor,
    sequences: Sequences,
    scale: float,
) -> Tensor:
    """q_latent [T, N, L] and q_rope [T, N, R] -> what they attend to, [T, N, L]."""
    num_tokens, num_heads, latent = q_latent.shape
    out = torch.empty_like(q_latent)
    num_splits = max(1, triton.cdiv(sequences.max_context_len, SPLIT_KEYS))
    token_bytes = 4 * num_splits * num_heads * latent
    at_once = max(1, min(MAX_TOKENS, MAX_PARTIAL_BYTES // token_bytes))
    for first in range(0, num_tokens, at_once):
        tokens = slice(first, min(first + at_once, num_tokens))
        num_here = tokens.stop - first
        splits = Splits(num_here * num_splits, NO_MORE, SPLIT_KEYS, room=MAX_TOKENS)
        attend_latents(
            q_latent[tokens], q_rope[tokens], out[tokens], arena,
            _from(sequences, first), scale, splits,
        )  # fmt: skip
    return out


def _from(sequences: Sequences, first: int) -> Sequences:
    """The same requests, as tokens from `first` on find theirs."""
    if not first:
        return sequences
    return replace(
        sequences,
        positions=sequences.positions[first:],
        query_starts=sequences.query_starts - first,
    )
