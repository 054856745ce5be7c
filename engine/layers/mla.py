"""Multi-head latent attention (DeepSeek-V2, 2024): all heads share one latent a token.

    q = W_q x, or W_qb norm(W_qa x)              [T, N, P + R]; the last R dimensions rotate
    latent, rotated = norm(W_kv x [:L]), rope(W_kv x [L:])       cached for each token
    out = W_o attention(q, latents)

kernels/latent_attention/latent_attention.py says how heads attend to latents, and has the letters.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from baton.core.errors import InvalidConfig
from baton.engine.layers.attention import AttentionKind, HeadShape
from baton.engine.layers.linear import Linear
from baton.engine.layers.norm import RmsNorm
from baton.engine.mesh.split import Split
from baton.kernels.cache_write.latent_write import latent_write
from baton.kernels.cache_write.rotation import LatentNorm, Rotation
from baton.kernels.latent_attention.latent_attention import latent_attention
from baton.kernels.latent_attention.latent_heads import LatentShape, LatentWeights
from baton.kernels.paging.sequences import Sequences
from baton.kernels.products.head_linear import head_linear

NORM_EPS = 1e-6
"""The epsilon of MLA's own norms, independent of the model's other norms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentConfig:
    """Settings of latent attention."""

    shape: LatentShape
    query_rank: int | None
    """Width of the queries' latent; None: queries are projected from x directly."""
    is_interleaved: bool
    """Whether adjacent dimensions rotate together; see kernels/cache_write/latent_write.py."""
    has_bias: bool
    """Whether both latent projections and the output have biases."""

    @property
    def heads(self) -> HeadShape:
        """The heads as attention to latents sees them: many queries, one key."""
        return HeadShape(
            num_heads=self.shape.num_heads, num_kv_heads=1, head_dim=self.shape.cached_dim
        )

    def shared_by(self, size: int) -> LatentConfig:
        """The part of each of `size` ranks: some heads, and the whole latent."""
        if self.shape.num_heads % size:
            raise InvalidConfig(
                f"tensor parallel {size}: `num_attention_heads` {self.shape.num_heads} is no "
                "multiple of it"
            )
        num_heads = self.shape.num_heads // size
        return replace(self, shape=replace(self.shape, num_heads=num_heads))


class LatentHeads(nn.Module):
    """The weights that expand a latent to keys and values (`kv_b_proj`)."""

    weight: nn.Parameter | LatentWeights

    def __init__(self, shape: LatentShape, *, is_always_absorbed: bool = False) -> None:
        super().__init__()
        self.shape = shape
        self.is_always_absorbed = is_always_absorbed
        rows = shape.num_heads * (shape.nope_dim + shape.value_dim)
        self.weight = nn.Parameter(torch.empty(rows, shape.latent_dim, device="meta"), False)

    @property
    def nbytes(self) -> int:
        """Bytes that a pass reads."""
        return self.weight.nbytes

    def num_prepared(self, *, has_one_copy: bool = False) -> int:
        """Numbers in the prepared weight. Each form of attention has its own U_k, unless
        `has_one_copy`: there is only one form, or all forms share the loaded weight."""
        shape = self.shape
        num_forms = 1 if has_one_copy or self.is_always_absorbed else 2
        rows = num_forms * shape.nope_dim + shape.value_dim
        return shape.num_heads * rows * shape.latent_dim

    def prepared(self, weight: Tensor, *, is_batch_invariant: bool = False) -> LatentWeights:
        """The loaded weight in the form for this device; may keep a reference to it.
        `is_batch_invariant`: results must not depend on the batch."""
        return LatentWeights.of(
            weight,
            self.shape,
            is_batch_invariant=is_batch_invariant,
            is_always_absorbed=self.is_always_absorbed,
        )


class LatentAttention(nn.Module):
    is_always_absorbed = False
    """Whether it never expands latents to keys and values."""

    def __init__(self, width: int, config: LatentConfig, kind: AttentionKind) -> None:
        """`kind` has the scale of scores, and no window."""
        super().__init__()
        shape = config.shape
        self.heads = config.heads
        self.kind = kind
        self.shape = shape
        self.is_interleaved = config.is_interleaved
        query_width = shape.num_heads * shape.query_dim
        self.is_query_compressed = config.query_rank is not None
        if config.query_rank is None:
            self.q = Linear(width, query_width)
        else:
            self.q_a = Linear(width, config.query_rank, has_bias=config.has_bias, split=Split.NONE)
            self.q_a_norm = RmsNorm(config.query_rank, NORM_EPS)
            self.q_b = Linear(config.query_rank, query_width)
        self.kv_a = Linear(width, shape.cached_dim, has_bias=config.has_bias, split=Split.NONE)
        self.kv_a_norm = RmsNorm(shape.latent_dim, NORM_EPS)
        self.kv_b = LatentHeads(shape, is_always_absorbed=self.is_always_absorbed)
        self.out = Linear(
            shape.num_heads * shape.value_dim,
            width,
            has_bias=config.has_bias,
            split=Split.INPUTS,
        )

    def forward(
        self, x: Tensor, rotation: Rotation | None, arena: Tensor, sequences: Sequences
    ) -> Tensor:
        """x is [T, D]."""
        assert rotation is not None, "latents rotate"
        q = self._queries(x).view(len(x), -1, self.shape.query_dim)  # [T, N, P + R]
        q_rope = self._write(q, x, arena, sequences, rotation)
        sequences.wait_for_others(arena)
        scale = self.kind.scoring.scale_of(self.shape.query_dim)
        attended = latent_attention(q, q_rope, self._weights(), arena, sequences, scale)
        out: Tensor = self.out(attended.flatten(1))  # [T, N, V] -> [T, D]
        return out

    def _write(
        self, q: Tensor, x: Tensor, arena: Tensor, sequences: Sequences, rotation: Rotation
    ) -> Tensor:
        """Write latents into the cache; return the rotated part of the queries, [T, N, R]."""
        return latent_write(
            q,
            self.kv_a(x),
            arena,
            sequences,
            norm=LatentNorm(self.kv_a_norm.scale(), self.kv_a_norm.eps),
            rotation=rotation,
            is_interleaved=self.is_interleaved,
        )

    def _weights(self) -> LatentWeights:
        weights = self.kv_b.weight
        assert isinstance(weights, LatentWeights), "the weight was not loaded"
        return weights

    def last_weights(
        self, x: Tensor, rotation: Rotation | None, arena: Tensor, sequences: Sequences
    ) -> Tensor:
        """Attention weights of a request's last token over its context, float32 [N, context]. Call
        after `forward` with the same arguments.
        """
        assert rotation is not None
        cos, sin = rotation
        q = self._queries(x[-1:]).view(1, -1, self.shape.query_dim)
        q_rope = self._write(q, x[-1:], arena, sequences.last_token(), (cos[-1:], sin[-1:]))
        q_latent = head_linear(q[..., : self.shape.nope_dim], self._weights().absorb)
        past = arena[sequences.block_tables[0], 0].flatten(0, 1)[: sequences.max_context_len]
        scores = torch.cat((q_latent, q_rope), dim=-1)[0].float() @ past.float().T
        return (scores * self.kind.scoring.scale_of(self.shape.query_dim)).softmax(-1)

    def _queries(self, x: Tensor) -> Tensor:
        if not self.is_query_compressed:
            q: Tensor = self.q(x)
        else:
            q = self.q_b(self.q_a_norm(self.q_a(x)))
        return q
