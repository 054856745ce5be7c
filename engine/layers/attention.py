"""Multi-head, multi-query and grouped-query attention over the paged cache."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from baton.engine.batch import Batch
from baton.engine.layers.linear import Linear
from baton.engine.layers.norm import RmsNorm
from baton.kernels.paged_attention import paged_attention
from baton.kernels.rope import rope


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadShape:
    num_heads: int
    num_kv_heads: int
    """Divides num_heads: equal to it for multi-head, 1 for multi-query attention."""
    head_dim: int


class Attention(nn.Module):
    """`qk_norm_eps` adds an RMS norm over each head of the queries and keys, as in Qwen 3."""

    def __init__(self, width: int, heads: HeadShape, *, qk_norm_eps: float | None = None) -> None:
        super().__init__()
        self.heads = heads
        query_width = heads.num_heads * heads.head_dim
        kv_width = heads.num_kv_heads * heads.head_dim
        self.qkv = Linear(width, query_width, kv_width, kv_width)
        self.out = Linear(query_width, width)
        self.has_qk_norm = qk_norm_eps is not None
        if qk_norm_eps is not None:
            self.q_norm = RmsNorm(heads.head_dim, qk_norm_eps)
            self.k_norm = RmsNorm(heads.head_dim, qk_norm_eps)

    def forward(
        self, x: Tensor, rotation: tuple[Tensor, Tensor], arena: Tensor, batch: Batch
    ) -> Tensor:
        """x is [T, D]; rotation the cos and sin of the tokens' angles, [T, H/2] each."""
        heads = self.heads
        qkv = self.qkv(x).view(len(x), -1, heads.head_dim)
        q, k, v = qkv.split((heads.num_heads, heads.num_kv_heads, heads.num_kv_heads), dim=1)
        if self.has_qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = rope(q, k, *rotation)
        attended = paged_attention(q, k, v, arena, batch.attention)  # [T, N, H]
        out: Tensor = self.out(attended.flatten(1))
        return out
