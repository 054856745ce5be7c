"""Sparse latent attention to tokens chosen by an index (DeepSeek V3.2, GLM-5).

    layers with an index     cache latents and index keys       choose, then attend
    layers without           cache latents                      attend to the last choice

Heads attend to latents as in layers/mla.py, always in the absorbed form, as the choice differs from
token to token.
"""

from __future__ import annotations

import torch
from torch import Tensor

from baton.engine.layers.attention import AttentionKind
from baton.engine.layers.indexer import INDEX_KEYS, IndexConfig, Indexer
from baton.engine.layers.mla import LatentAttention, LatentConfig
from baton.kernels.cache_write.rotation import Rotation
from baton.kernels.latent_attention.choose_tokens import Chosen
from baton.kernels.latent_attention.chosen_attention import chosen_attention
from baton.kernels.paging.layer_arenas import LayerArenas
from baton.kernels.paging.sequences import Sequences
from baton.kernels.products.head_linear import head_linear


class SparseLatentAttention(LatentAttention):
    is_always_absorbed = True

    def __init__(
        self,
        width: int,
        config: LatentConfig,
        kind: AttentionKind,
        index: IndexConfig,
        *,
        has_index: bool,
    ) -> None:
        """`has_index`: whether it has its own index; else it uses another layer's choice."""
        super().__init__(width, config, kind)
        assert config.query_rank is not None, "an index reads the queries' latent"
        self.num_chosen = index.num_chosen
        self.indexer = Indexer(width, config.query_rank, index) if has_index else None

    def forward(  # type: ignore[override]  # with one more input and output
        self,
        x: Tensor,
        rotation: Rotation | None,
        arena: Tensor | LayerArenas,
        sequences: Sequences,
        chosen: Chosen | None,
    ) -> tuple[Tensor, Chosen]:
        """x is [T, D]."""
        assert rotation is not None, "latents rotate"
        query, latents = self.q_a_norm(self.q_a(x)), _latents(arena)
        chosen = self._choose(x, query, rotation, arena, sequences, chosen)
        q = self.q_b(query).view(len(x), -1, self.shape.query_dim)  # [T, N, P + R]
        q_rope = self._write(q, x, latents, sequences, rotation)
        sequences.wait_for_others(latents)
        weights = self._weights()
        q_latent = head_linear(q[..., : self.shape.nope_dim], weights.absorb)  # [T, N, L]
        scale = self.kind.scoring.scale_of(self.shape.query_dim)
        attended = chosen_attention(
            q_latent, q_rope, latents, chosen, scale, is_batch_invariant=weights.is_batch_invariant
        )
        out: Tensor = self.out(head_linear(attended, weights.values).flatten(1))
        return out, chosen

    def _choose(
        self,
        x: Tensor,
        query: Tensor,
        rotation: Rotation,
        arena: Tensor | LayerArenas,
        sequences: Sequences,
        chosen: Chosen | None,
    ) -> Chosen:
        if self.indexer is not None:
            assert isinstance(arena, LayerArenas), "a layer with an index keeps its keys"
            chosen = self.indexer(x, query, rotation, arena.side_caches[INDEX_KEYS], sequences)
        assert chosen is not None, "no layer before this one has an index"
        return chosen

    def last_weights(  # type: ignore[override]  # with one more input
        self,
        x: Tensor,
        rotation: Rotation | None,
        arena: Tensor | LayerArenas,
        sequences: Sequences,
        chosen: Chosen | None,
    ) -> Tensor:
        """Like `LatentAttention.last_weights`; 0 for tokens that were not chosen."""
        assert rotation is not None
        cos, sin = rotation
        last, query = x[-1:], self.q_a_norm(self.q_a(x[-1:]))
        if chosen is not None:
            chosen = Chosen(chosen.slots[-1:], chosen.positions[-1:])
        chosen = self._choose(
            last, query, (cos[-1:], sin[-1:]), arena, sequences.last_token(), chosen
        )
        places = torch.arange(sequences.max_context_len, device=x.device)
        blocks = sequences.block_tables[0, places // sequences.block_size].long()
        slots = blocks * sequences.block_size + places % sequences.block_size
        is_read = torch.isin(slots, chosen.slots[0, : int(chosen.counts)])
        weights = super().last_weights(x, rotation, _latents(arena), sequences) * is_read
        return weights / weights.sum(dim=-1, keepdim=True)


def _latents(arena: Tensor | LayerArenas) -> Tensor:
    return arena.kv if isinstance(arena, LayerArenas) else arena
