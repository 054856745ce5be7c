"""The skeleton of a decoder: embedding, blocks, norm, head.

T = tokens of this pass, all requests end to end; S = those whose logits are wanted; D = model
width; H = head width; V = vocabulary. The residual stream is carried beside x, so that adding it
and normalising are one operation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from baton.engine.batch import Batch
from baton.engine.checkpoint.config import ModelConfig
from baton.engine.layers.attention import Attention
from baton.engine.layers.embedding import Embedding
from baton.engine.layers.feed_forward import SwiGlu
from baton.engine.layers.linear import Linear
from baton.engine.layers.norm import AddRmsNorm


class Block(nn.Module):
    def __init__(self, width: int, eps: float, attention: Attention, ffn: SwiGlu) -> None:
        super().__init__()
        self.attn_norm = AddRmsNorm(width, eps)
        self.attn = attention
        self.ffn_norm = AddRmsNorm(width, eps)
        self.ffn = ffn

    def forward(
        self,
        x: Tensor,
        residual: Tensor | None,
        rotation: tuple[Tensor, Tensor],
        arena: Tensor,
        batch: Batch,
    ) -> tuple[Tensor, Tensor]:
        x, residual = self.attn_norm(x, residual)
        x = self.attn(x, rotation, arena, batch)
        x, residual = self.ffn_norm(x, residual)
        return self.ffn(x), residual


class Decoder(nn.Module):
    frequencies: Tensor  # [H/2] radians a position

    def __init__(self, config: ModelConfig, new_block: Callable[[], Block]) -> None:
        super().__init__()
        width = config.hidden_size
        self.embed = Embedding(config.vocab_size, width)
        self.blocks = nn.ModuleList(new_block() for _ in range(config.num_layers))
        self.norm = AddRmsNorm(width, config.rms_norm_eps)
        self.head = None if config.tie_word_embeddings else Linear(width, config.vocab_size)
        self.register_buffer("frequencies", config.rope.frequencies(), persistent=False)

    def forward(self, batch: Batch, arenas: Sequence[Tensor]) -> Tensor:
        """Write the tokens' KV into the arenas, one a layer; return float32 logits [S, V]."""
        rotation = self._rotation(batch.positions)
        x: Tensor = self.embed(batch.tokens)
        residual: Tensor | None = None
        for block, arena in zip(self.blocks, arenas, strict=True):
            x, residual = block(x, residual, rotation, arena, batch)
        assert residual is not None
        x, _ = self.norm(x[batch.sample_rows], residual[batch.sample_rows])
        logits: Tensor = self.embed.logits(x) if self.head is None else self.head(x)
        return logits.float()

    def _rotation(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        angles = torch.outer(positions.float(), self.frequencies)  # [T, H/2]
        return angles.cos(), angles.sin()
