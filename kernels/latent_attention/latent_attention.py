"""Multi-head latent attention (latent_heads.py), in one of two forms.

    absorbed    q_latent[n] = U_k[n]^T q_nope[n];  attend to latents;  out[n] = U_v[n] attended[n]
    expanded    compute k and v of the whole context, as temporary KV of this pass; attend

Both give the same up to rounding. With Q new tokens, a context of C, and p pairs of a token and a
token that it sees, the number of multiplications per head is

    absorbed    p (2L + R)  +  Q L (P + V)         expensive per pair, cheap per token
    expanded    p (P + R + V)  +  C L (P + V)      and k and v go to memory and back

so decoding uses the absorbed form, and long prompt chunks the expanded one (`is_expanded_cheaper`).
The bits of a prompt token thus depend on its chunk; those of decoded tokens never do. Weights that
are `is_batch_invariant` always use the absorbed form.

T new tokens, S tokens a block, M blocks of a request; the other letters as in latent_heads.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

import torch
from torch import Tensor

from baton.kernels.attention.layer_kv import LayerKv
from baton.kernels.attention.scoring import Scoring
from baton.kernels.latent_attention.latent_expand import latent_expand
from baton.kernels.latent_attention.latent_heads import LatentShape, LatentWeights
from baton.kernels.latent_attention.mla_attention import mla_attention
from baton.kernels.paging.sequences import Sequences
from baton.kernels.products.head_linear import head_linear

MIN_EXPANDED = 64
"""Requests with fewer new tokens always use the absorbed form, so that such passes can be taped."""
WORK_PER_BYTE = 32
"""Multiplications in the time that a byte is moved: about 25 on a CPU, 100 on a GPU."""
EXPANDED_BYTES = 256 << 20
"""Most bytes of keys and values at a time; heads are processed in groups."""


def latent_attention(
    q: Tensor,
    q_rope: Tensor,
    weights: LatentWeights,
    arena: Tensor,
    sequences: Sequences,
    scale: float,
) -> Tensor:
    """q [T, N, P + R] and its rotated part q_rope [T, N, R] -> [T, N, V]."""
    is_short = sequences.max_query_len < MIN_EXPANDED
    if is_short or sequences.is_captured or weights.is_batch_invariant:
        return absorbed(q, q_rope, weights, arena, sequences, scale)
    out, start = q.new_empty(*q.shape[:2], weights.heads.value_dim), 0
    for is_expanded, part in _parts(weights.heads, sequences, q.element_size()):
        tokens = slice(start, start + len(part.positions))
        attend = expanded if is_expanded else absorbed
        out[tokens] = attend(q[tokens], q_rope[tokens], weights, arena, part, scale)
        start = tokens.stop
    return out


def is_expanded_cheaper(
    shape: LatentShape, query_len: int, context_len: int, item_bytes: int
) -> bool:
    """Whether the expanded form is cheaper for `query_len` new tokens of a request of
    `context_len`."""
    if query_len < MIN_EXPANDED:
        return False
    as_absorbed, as_expanded = multiplications(shape, query_len, context_len)
    moved = context_len * 2 * (shape.query_dim + shape.value_dim) * item_bytes
    return as_expanded + moved * WORK_PER_BYTE < as_absorbed


def multiplications(shape: LatentShape, query_len: int, context_len: int) -> tuple[int, int]:
    """Multiplications per head: absorbed, and expanded."""
    pairs = query_len * context_len - query_len * (query_len - 1) // 2
    making = shape.latent_dim * (shape.nope_dim + shape.value_dim)
    return (
        pairs * (shape.latent_dim + shape.cached_dim) + query_len * making,
        pairs * (shape.query_dim + shape.value_dim) + context_len * making,
    )


def _parts(
    shape: LatentShape, sequences: Sequences, item_bytes: int
) -> Iterator[tuple[bool, Sequences]]:
    """Groups of consecutive requests with the same form; expanded requests are alone in their
    group."""
    forms = [is_expanded_cheaper(shape, q, c, item_bytes) for q, c in sequences.lengths()]
    for is_expanded, group in groupby(range(len(forms)), key=forms.__getitem__):
        requests = list(group)
        if is_expanded:
            yield from ((True, sequences.part(one, one + 1)) for one in requests)
        else:
            yield False, sequences.part(requests[0], requests[-1] + 1)


def absorbed(
    q: Tensor,
    q_rope: Tensor,
    weights: LatentWeights,
    arena: Tensor,
    sequences: Sequences,
    scale: float,
) -> Tensor:
    q_latent = head_linear(q[..., : weights.heads.nope_dim], weights.absorb)  # [T, N, L]
    attended = mla_attention(
        q_latent, q_rope, arena, sequences, scale, is_batch_invariant=weights.is_batch_invariant
    )
    return head_linear(attended, weights.values)


def expanded(
    q: Tensor,
    q_rope: Tensor,
    weights: LatentWeights,
    arena: Tensor,
    sequences: Sequences,
    scale: float,
) -> Tensor:
    """The attention of one request."""
    shape, size = weights.heads, sequences.block_size
    num_blocks = -(-sequences.max_context_len // size)
    table = sequences.block_tables[0, :num_blocks]
    zeros = q.new_zeros(*q.shape[:2], shape.kv_dim - shape.query_dim)
    queries = torch.cat((q[..., : shape.nope_dim], q_rope, zeros), dim=-1)
    own = sequences.with_own_blocks(num_blocks)
    out = q.new_empty(*q.shape[:2], shape.value_dim)
    head_bytes = 2 * num_blocks * size * shape.kv_dim * q.element_size()
    step = max(1, EXPANDED_BYTES // head_bytes)
    for first in range(0, shape.num_heads, step):
        heads = slice(first, min(first + step, shape.num_heads))
        kv = latent_expand(arena, table, *weights.of_heads(heads.start, heads.stop), shape)
        attended = LayerKv.of(kv, q.dtype).attend(
            queries[:, heads], own, None, Scoring(scale=scale)
        )
        out[:, heads] = attended[..., : shape.value_dim]
    return out


def reference(
    q: Tensor,
    q_rope: Tensor,
    weight: Tensor,
    shape: LatentShape,
    past: Tensor,
    scale: float,
) -> Tensor:
    """The definition, for the last tokens of one request, in float32; `past` is [C, L + R]."""
    by_head = weight.float().view(shape.num_heads, -1, shape.latent_dim)
    up_k, up_v = torch.split(by_head, [shape.nope_dim, shape.value_dim], dim=1)
    latents, rotated = torch.split(past.float(), [shape.latent_dim, shape.rope_dim], dim=-1)
    k = torch.einsum("npl,tl->ntp", up_k, latents)
    v = torch.einsum("nvl,tl->ntv", up_v, latents)
    scores = torch.einsum("qnp,ntp->nqt", q[..., : shape.nope_dim].float(), k)
    scores = (scores + torch.einsum("qnr,tr->nqt", q_rope.float(), rotated)) * scale
    hidden = torch.ones(scores.shape[1:], dtype=torch.bool).triu_(1 + len(past) - len(q))
    weights = scores.masked_fill_(hidden, -torch.inf).softmax(-1)
    return torch.einsum("nqt,ntv->qnv", weights, v).to(q.dtype)
