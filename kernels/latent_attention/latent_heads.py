"""The weights between a model's heads and their shared latent per token.

    k[n, t] = (U_k[n] latent[t], rotated[t])      v[n, t] = U_v[n] latent[t]

N heads; P and R the parts of a query that do not rotate and that do; L width of the latent; V width
of a value. In a checkpoint U_k[n] and U_v[n] of each head are stacked: [N (P + V), L].
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from baton.kernels.products.head_linear import HeadWeight, pack_heads, some_heads


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentShape:
    num_heads: int  # N
    nope_dim: int  # P
    rope_dim: int  # R
    value_dim: int  # V
    latent_dim: int  # L

    @property
    def query_dim(self) -> int:
        return self.nope_dim + self.rope_dim

    @property
    def kv_dim(self) -> int:
        """The common width of keys and values in attention: the larger of the two."""
        return max(self.query_dim, self.value_dim)

    @property
    def cached_dim(self) -> int:
        """Cached numbers per token."""
        return self.latent_dim + self.rope_dim


@dataclass(frozen=True, slots=True, eq=False)
class LatentWeights:
    """The matrices of all heads, in the form for their device."""

    heads: LatentShape
    absorb: HeadWeight  # U_k^T [N, L, P]
    keys: HeadWeight | None  # U_k [N, P, L]; None where attention is always absorbed
    values: HeadWeight  # U_v [N, V, L]
    is_batch_invariant: bool = False
    """Whether results must be batch-invariant, so that the absorbed form is always used."""

    @classmethod
    def of(
        cls,
        weight: Tensor,
        shape: LatentShape,
        *,
        is_batch_invariant: bool = False,
        is_always_absorbed: bool = False,
    ) -> LatentWeights:
        """Prepares weights [N (P + V), L]; if they are packed, the original is not needed any
        more."""
        by_head = weight.view(shape.num_heads, -1, shape.latent_dim)
        keys, values = torch.split(by_head, [shape.nope_dim, shape.value_dim], dim=1)
        return cls(
            shape,
            pack_heads(keys.transpose(1, 2), is_batch_invariant=is_batch_invariant),
            None if is_batch_invariant or is_always_absorbed else pack_heads(keys),
            pack_heads(values, is_batch_invariant=is_batch_invariant),
            is_batch_invariant,
        )

    @property
    def shape(self) -> tuple[int, int]:
        """Shape as in the checkpoint."""
        heads = self.heads
        return heads.num_heads * (heads.nope_dim + heads.value_dim), heads.latent_dim

    @property
    def nbytes(self) -> int:
        """Bytes that one product with U_k and U_v reads."""
        return self.absorb.nbytes + self.values.nbytes

    def of_heads(self, first: int, stop: int) -> tuple[HeadWeight, HeadWeight]:
        """U_k and U_v of some of the heads, for the expanded form."""
        assert self.keys is not None, "attention is always absorbed"
        return some_heads(self.keys, first, stop), some_heads(self.values, first, stop)
