"""The skeleton of a decoder: embedding, blocks, norm, head.

T = tokens of this pass, of all requests, concatenated; S = those whose outputs are wanted; D =
model width; V = vocabulary. The residual stream is passed separately from x, so that adding it and
normalizing are one operation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from baton.engine.batch.batch import Batch, OnLayer
from baton.engine.layers.adapted import PassAdapters
from baton.engine.layers.embedding import Embedding
from baton.engine.layers.linear import ExactLinear, Linear
from baton.engine.layers.rope import RotaryAngles
from baton.engine.mesh.split import Split
from baton.engine.models.config.model_config import LayerConfig, ModelConfig
from baton.engine.models.skeleton.taps import AuxCapture, AuxHiddenStates
from baton.kernels.attention.layer_kv import LayerCache
from baton.kernels.elementwise.add import add
from baton.kernels.elementwise.soft_cap import soft_cap_
from baton.kernels.paging.sequences import Sequences
from baton.kernels.products.linear import logits


class Decoder(nn.Module):
    """`norm` is the last norm, with residual add."""

    is_capturable: ClassVar[bool] = True
    """Whether a decode pass on a GPU launches the same work for any lengths, so that it can be
    captured."""
    narrows_last_layer: ClassVar[bool] = True
    """Whether the feed-forward of the last layer is given the wanted outputs alone."""
    is_mixed_capturable: ClassVar[bool] = True
    """Whether a pass with prompts does so, without extra cost for the longest possible lengths."""

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
        self.width = width = config.hidden_size
        self.embed = Embedding(
            config.vocab_size, width, scale=embed_scale, is_tied=config.tie_word_embeddings
        )
        self.positions = (
            Embedding(config.max_position_embeddings, width) if has_learned_positions else None
        )
        self.blocks = nn.ModuleList(new_block(layer) for layer in config.layers)
        self.layers = range(config.num_layers)
        """Layers computed on this rank: see `baton.engine.sharding.stages`."""
        self.norm = norm
        self.adapters = PassAdapters()
        """What the layers read the adapters of a pass's rows from."""
        self.head = _head(config)
        self.logit_softcap = config.logit_softcap
        self.latent = None if config.latent is None else config.latent.shape
        self.angles = nn.ModuleList(
            RotaryAngles(rope, config.max_model_len) for rope in config.ropes
        )
        self.angles_of_block = [
            None if layer.rope is None else config.ropes.index(layer.rope)
            for layer in config.layers
        ]

    def forward(
        self,
        batch: Batch,
        caches: Sequence[LayerCache],
        on_layer: OnLayer,
        taps: AuxHiddenStates | None = None,
    ) -> Tensor:
        """Write the tokens' KV into the caches, one per layer; return the outputs [S, D]. `taps`
        receive the inputs of their layers.
        """
        self.adapters.rows = batch.adapters
        x = self.embedded(batch)
        tapping = AuxCapture(taps, batch.output_rows) if taps is not None and taps.is_on else None
        wanted = batch.output_rows
        x, residual = self.through(x, None, batch.sequences, caches, on_layer, tapping, wanted)
        return self.outputs(x, residual)

    def embedded(self, batch: Batch) -> Tensor:
        """[T, D]"""
        x: Tensor = self.embed(batch.tokens)
        if self.positions is not None:
            x = add(x, self.positions(batch.sequences.positions))
        return x

    def through(  # noqa: PLR0913  # the stream, what is kept, and who looks
        self,
        x: Tensor,
        residual: Tensor | None,
        sequences: Sequences,
        caches: Sequence[LayerCache],
        on_layer: OnLayer,
        tapping: AuxCapture | None = None,
        rows: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Run this rank's layers, each with its cache; returns x and residual, both [T, D], or [S,
        D] of `rows` after the model's last layer."""
        rotations = [angles(sequences.positions) for angles in self.angles]
        for layer, cache in zip(self.layers, caches, strict=True):
            if tapping is not None:
                tapping.see(layer, x, residual)
            index = self.angles_of_block[layer]
            rotation = None if index is None else rotations[index]
            wanted = rows if layer == self.layers[-1] else None
            x, residual = self.blocks[layer](x, residual, rotation, cache, sequences, wanted)
            on_layer(layer)
        assert residual is not None
        return x, residual

    def outputs(self, x: Tensor, residual: Tensor) -> Tensor:
        """[S, D] each -> [S, D]"""
        x, _ = self.norm(x, residual)
        return x

    @property
    def last(self) -> Linear | Embedding:
        """The output head: the embedding if the two are tied."""
        return self.embed if self.head is None else self.head

    @property
    def has_plain_head(self) -> bool:
        """Whether logits are products with the head and nothing else, all of them on this rank. A
        soft cap may round two of them to the same number."""
        return self.last.ranks.size == 1 and self.logit_softcap is None

    def logits(self, x: Tensor) -> Tensor:
        """[S, D] -> float32 [S, V]; of a classifier V counts labels."""
        last = self.last
        wide: Tensor = logits(x, last.weight)
        if last.ranks.size > 1:
            wide = torch.cat(last.ranks.all_gather(wide), dim=1)
        return wide if self.logit_softcap is None else soft_cap_(wide, self.logit_softcap)


def _head(config: ModelConfig) -> Linear | None:
    """The output head; None if tied to the embedding."""
    if config.num_labels is not None:  # on every rank: it is small
        return ExactLinear(config.hidden_size, config.num_labels, split=Split.NONE)
    return None if config.tie_word_embeddings else Linear(config.hidden_size, config.vocab_size)
