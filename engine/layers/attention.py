"""Multi-head, multi-query and grouped-query attention over the paged cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from baton.engine.layers.linear import Linear
from baton.engine.layers.norm import RmsNorm
from baton.kernels.paged_attention import paged_attention
from baton.kernels.quantized_kv import Arena
from baton.kernels.rope_kv_write import HeadNorm, Rotation, rope_kv_write
from baton.kernels.scoring import PLAIN, Scoring
from baton.kernels.sequences import Sequences


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadShape:
    num_heads: int
    num_kv_heads: int
    """Divides num_heads: equal to it for multi-head, 1 for multi-query attention."""
    head_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionKind:
    """What may differ between the attentions of two layers, beside their weights and angles."""

    window: int | None = None
    """Tokens that a token sees, itself included. None: all before it."""
    scoring: Scoring = PLAIN


class Attention(nn.Module):
    """`head_norm` makes a norm over each head of the queries, and another for the keys."""

    def __init__(
        self,
        width: int,
        heads: HeadShape,
        kind: AttentionKind,
        *,
        biases: tuple[bool, bool] = (False, False),
        head_norm: Callable[[], RmsNorm] | None = None,
    ) -> None:
        """`biases` says whether qkv and out have one."""
        super().__init__()
        self.heads = heads
        self.kind = kind
        query_width = heads.num_heads * heads.head_dim
        kv_width = heads.num_kv_heads * heads.head_dim
        self.qkv = Linear(width, query_width, kv_width, kv_width, has_bias=biases[0])
        self.out = Linear(query_width, width, has_bias=biases[1])
        self.has_head_norm = head_norm is not None
        if head_norm is not None:
            self.q_norm = head_norm()
            self.k_norm = head_norm()

    def forward(
        self, x: Tensor, rotation: Rotation | None, arena: Arena, sequences: Sequences
    ) -> Tensor:
        """x is [T, D]. Heads of a model without rotary positions have no rotation."""
        kind = self.kind
        qkv = self.qkv(x).view(len(x), -1, self.heads.head_dim)  # [T, N + 2K, H]
        q = rope_kv_write(qkv, arena, sequences, head_norm=self._head_norm(), rotation=rotation)
        attended = paged_attention(q, arena, sequences, kind.window, kind.scoring)
        out: Tensor = self.out(attended.flatten(1))  # [T, N, H] -> [T, D]
        return out

    def _head_norm(self) -> HeadNorm | None:
        if not self.has_head_norm:
            return None
        return HeadNorm(self.q_norm.scale(), self.k_norm.scale(), self.q_norm.eps)
