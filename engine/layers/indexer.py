"""The index of sparse attention (DeepSeek V3.2, 2025): which tokens a query attends to.

    q = W_qb c                     [T, N, D]     c: the queries' latent of attention
    k = norm(W_k x)                [T, D]        one key per token, in a side cache
    w = W_w x                      [T, N]        never quantised, since it decides between tokens
    chosen = the top tokens by  sum over n of w_n relu(q_n . k)

The first dimensions of q and k rotate. kernels/latent_attention/choose_tokens.py makes the choice.
A layer without its own index (GLM-5) uses the choice of the last layer with one.

T new tokens, N heads of the index, D their width.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from baton.engine.layers.linear import ExactLinear, Linear
from baton.engine.layers.norm import LayerNorm
from baton.engine.mesh.split import Split
from baton.kernels.cache_write.index_write import index_write
from baton.kernels.cache_write.rotation import Rotation
from baton.kernels.experts.routing import router_logits
from baton.kernels.latent_attention.choose_tokens import Chosen, choose_tokens
from baton.kernels.paging.sequences import Sequences

INDEX_KEYS = "index keys"
"""The side cache."""
NORM_EPS = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexConfig:
    num_heads: int
    head_dim: int
    num_chosen: int
    """Tokens that a query attends to, possibly including itself."""
    is_interleaved: bool
    """Whether adjacent dimensions rotate together; see kernels/cache_write/index_write.py."""

    @property
    def side_cache(self) -> tuple[str, int]:
        """The side cache, and the width of its rows."""
        return INDEX_KEYS, self.head_dim


class HeadWeights(ExactLinear):
    """The weight of each head of the index."""

    def forward(self, x: Tensor) -> Tensor:
        """[T, width] -> float32 [T, heads]"""
        return router_logits(x, self.weight)


class Indexer(nn.Module):
    """Replicated on all tensor-parallel ranks, which make the same choice."""

    def __init__(self, width: int, query_rank: int, config: IndexConfig) -> None:
        super().__init__()
        self.config = config
        heads, head_dim = config.num_heads, config.head_dim
        self.q = Linear(query_rank, heads * head_dim, split=Split.NONE)
        self.k = Linear(width, head_dim, split=Split.NONE)
        self.k_norm = LayerNorm(head_dim, NORM_EPS)
        self.weights = HeadWeights(width, heads, split=Split.NONE)

    def forward(
        self, x: Tensor, query: Tensor, rotation: Rotation, keys: Tensor, sequences: Sequences
    ) -> Chosen:
        """x [T, width], and the queries' latent [T, query rank]; `keys`: the side cache."""
        config = self.config
        q = index_write(
            self.q(query).view(len(x), config.num_heads, config.head_dim),
            self.k_norm(self.k(x)),
            keys,
            sequences,
            rotation=rotation,
            is_interleaved=config.is_interleaved,
        )
        sequences.wait_for_others(keys)
        return choose_tokens(q, self.weights(x), keys, sequences, config.num_chosen)
