"""Multi-head, multi-query and grouped-query attention over the paged cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from baton.engine.layers.join import Join
from baton.engine.layers.linear import Linear
from baton.engine.layers.norm import RmsNorm
from baton.engine.mesh.split import Split
from baton.kernels.attention.explicit_attention import attention_weights
from baton.kernels.attention.layer_kv import LayerKv
from baton.kernels.attention.scoring import PLAIN, Scoring
from baton.kernels.cache_write.rotation import HeadNorm, Rotation
from baton.kernels.paging.sequences import Sequences
from baton.kernels.paging.window import Window, first_seen, num_first_of
from baton.kernels.positions.query_temperature import Temperature, query_temperature


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadShape:
    num_heads: int
    num_kv_heads: int
    """Divides num_heads: equal to it for multi-head, 1 for multi-query attention."""
    head_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionKind:
    """Settings of attention that may differ between layers."""

    window: Window = None
    scoring: Scoring = PLAIN
    temperature: Temperature | None = None
    """Scaling of queries by position; None: none."""
    has_sinks: bool = False
    """Each head has an attention sink: an additional score without a value."""


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
        is_joining: bool = False,
    ) -> None:
        """`biases`: whether qkv and out have one. `is_joining`: qkv reads two inputs."""
        super().__init__()
        self.heads = heads
        self.kind = kind
        query_width = heads.num_heads * heads.head_dim
        kv_width = heads.num_kv_heads * heads.head_dim
        product = Join if is_joining else Linear
        self.qkv = product(width, query_width, kv_width, kv_width, has_bias=biases[0])
        self.out = Linear(query_width, width, has_bias=biases[1], split=Split.INPUTS)
        self.sinks: nn.Parameter | None = None  # [N]
        if kind.has_sinks:
            self.sinks = nn.Parameter(torch.empty(heads.num_heads, device="meta"), False)
        self.has_head_norm = head_norm is not None
        if head_norm is not None:
            self.q_norm = head_norm()
            self.k_norm = head_norm()

    def forward(
        self, x: Tensor, rotation: Rotation | None, kv: LayerKv, sequences: Sequences
    ) -> Tensor:
        """x is [T, D], or a pair of such. `rotation` is None without rotary positions."""
        kind = self.kind
        qkv: Tensor = self.qkv(x)
        qkv = qkv.view(len(qkv), -1, self.heads.head_dim)  # [T, N + 2K, H]
        q = kv.write(qkv, sequences, head_norm=self._head_norm(), rotation=rotation)
        sequences.wait_for_others(kv.blocks)
        if kind.temperature is not None:
            q = query_temperature(q, sequences.positions, kind.temperature)
        attended = kv.attend(q, sequences, kind.window, kind.scoring, self.sinks)
        out: Tensor = self.out(attended.flatten(1))  # [T, N, H] -> [T, D]
        return out

    def last_weights(
        self, x: Tensor, rotation: Rotation | None, kv: LayerKv, sequences: Sequences
    ) -> Tensor:
        """Attention weights of a request's last token over its context, float32 [N, context]. Call
        after `forward` with the same arguments; only for unquantised KV.
        """
        assert isinstance(kv.arena, Tensor), "scores of quantised KV are not shown"
        kv_heads, context = self.heads.num_kv_heads, sequences.max_context_len
        qkv = self.qkv(x[-1:]).view(1, -1, self.heads.head_dim)
        angles = None if rotation is None else (rotation[0][-1:], rotation[1][-1:])
        q = kv.write(  # the KV in the cache
            qkv, sequences.last_token(), head_norm=self._head_norm(), rotation=angles
        )
        if self.kind.temperature is not None:
            q = query_temperature(q, sequences.positions[-1:], self.kind.temperature)
        blocks = kv.arena[sequences.block_tables[0]]  # [M, K, 2, S, H]
        k = blocks[:, :, 0].transpose(0, 1).flatten(1, 2)[:, :context]  # [K, context, H]
        bias = torch.zeros(1, context, device=x.device)
        window = self.kind.window
        bias[:, num_first_of(window) : first_seen(window, context - 1)] = -torch.inf
        queries = q.view(1, kv_heads, -1, 1, self.heads.head_dim)
        weights = attention_weights(queries, k.unsqueeze(0), bias, self.kind.scoring, self.sinks)
        return weights.view(self.heads.num_heads, context)

    def _head_norm(self) -> HeadNorm | None:
        if not self.has_head_norm:
            return None
        return HeadNorm(self.q_norm.scale(), self.k_norm.scale(), self.q_norm.eps)
