"""The skeleton of a decoder: embedding, blocks, norm, head.

T = tokens of this pass, all requests end to end; S = those whose outputs are wanted; D = model
width; V = vocabulary. The residual stream is carried beside x, so that adding it and normalising
are one operation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from baton.engine.batch import Batch, OnLayer
from baton.engine.checkpoint.config import LayerConfig, ModelConfig
from baton.engine.layers.embedding import Embedding
from baton.engine.layers.linear import Linear
from baton.engine.layers.rope import RotaryAngles
from baton.kernels.add import add
from baton.kernels.linear import logits
from baton.kernels.quantized_kv import Arena
from baton.kernels.soft_cap import soft_cap_
from baton.kernels.take_rows import take_rows


class Decoder(nn.Module):
    """`norm` is the last one, of the kind that adds."""

    def __init__(
        self,
        config: ModelConfig,
        new_block: Callable[[LayerConfig], nn.Module],
        norm: nn.Module,
        *,
        embed_scale: float | None = None,
        has_learned_positions: bool = False,
    ) -> None:
        super().__init__()
        width = config.hidden_size
        self.embed = Embedding(
            config.vocab_size, width, scale=embed_scale, is_tied=config.tie_word_embeddings
        )
        self.positions = (
            Embedding(config.max_position_embeddings, width) if has_learned_positions else None
        )
        self.blocks = nn.ModuleList(new_block(layer) for layer in config.layers)
        self.norm = norm
        self.head = None if config.tie_word_embeddings else Linear(width, config.vocab_size)
        self.logit_softcap = config.logit_softcap
        self.latent = None if config.latent is None else config.latent.shape
        self.angles = nn.ModuleList(
            RotaryAngles(rope, config.max_model_len) for rope in config.ropes
        )
        self.angles_of_block = [
            None if layer.rope is None else config.ropes.index(layer.rope)
            for layer in config.layers
        ]

    def forward(self, batch: Batch, arenas: Sequence[Arena], on_layer: OnLayer) -> Tensor:
        """Write the tokens' KV into the arenas, one a layer; return the outputs [S, D]."""
        sequences = batch.sequences
        rotations = [angles(sequences.positions) for angles in self.angles]
        x: Tensor = self.embed(batch.tokens)
        if self.positions is not None:
            x = add(x, self.positions(sequences.positions))
        residual: Tensor | None = None
        layers = zip(self.blocks, arenas, self.angles_of_block, strict=True)
        for layer, (block, arena, index) in enumerate(layers):
            rotation = None if index is None else rotations[index]
            x, residual = block(x, residual, rotation, arena, sequences)
            on_layer(layer)
        assert residual is not None
        rows = batch.output_rows
        x, _ = self.norm(take_rows(x, rows), take_rows(residual, rows))
        return x

    def logits(self, x: Tensor) -> Tensor:
        """[S, D] -> float32 [S, V]"""
        last = self.embed if self.head is None else self.head
        wide: Tensor = logits(x, last.weight)
        if last.ranks.size > 1:
            wide = torch.cat(last.ranks.all_gather(wide), dim=1)
        return wide if self.logit_softcap is None else soft_cap_(wide, self.logit_softcap)
