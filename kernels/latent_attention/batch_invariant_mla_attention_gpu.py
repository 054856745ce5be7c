"""Batch-invariant latent attention: a token gets the same bits alone, in any batch, in any chunk of
its prompt, and whether it is drafted or decoded.

    a token sees   0 .. L - 1 | L .. 2L - 1 | ... itself      splits of SPLIT_KEYS, of each token
    tokens         in groups whose partial results take at most MAX_PARTIAL_BYTES

The kernels are those of mla_attention_gpu.py, in one form for every pass: each token has splits of
its own, which end at the token, so their results and the order of merging depend only on the keys
that it sees. The assignment of splits to programs does not matter.

This is slower than `mla_attention`: a short context occupies fewer programs, and at most MAX_TOKENS
tokens of a prompt are processed at a time, each reading its context separately.
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
"""Keys per split. A single context of 4,096 occupies four programs per tile of heads."""
MAX_TOKENS = 256
"""Most tokens at a time; the one compiled form has room for as many."""
NO_MORE = 1 << 24
"""Wanted splits of all contexts together: so many that no split is longer than SPLIT_KEYS, whatever
the batch."""


def batch_invariant_mla_attention(
    q_latent: Tensor,
    q_rope: Tensor,
    arena: Tensor,
    sequences: Sequences,
    scale: float,
) -> Tensor:
    """q_latent [T, N, L] and q_rope [T, N, R] -> attention output [T, N, L]."""
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
    """The same requests, for tokens from `first` on."""
    if not first:
        return sequences
    return replace(
        sequences,
        positions=sequences.positions[first:],
        query_starts=sequences.query_starts - first,
    )
