"""EAGLE (Li et al. 2024): one Llama layer that continues the hidden states of a model.

    x[t] = W (embedding of token t + 1, h[t])            h: the model's output, after its norm
    g    = the layer, over x                             without a norm before its attention
    logits of token t + 2 = the model's own head(g[t])   g[t] stands for h[t + 1]

Embedding and head are the model's. T tokens, D model width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor, nn

from baton.core.kv_layout import OUTPUTS, KvLayout
from baton.engine.layers.attention import Attention
from baton.engine.layers.block import Block
from baton.engine.layers.join import Join
from baton.engine.layers.norm import AddRmsNorm
from baton.engine.layers.rope import RotaryAngles
from baton.engine.models.config.arrangement import FIRST_HALF, SECOND_HALF, Arrangement
from baton.engine.models.config.description import unsupported
from baton.engine.models.config.model_config import LayerConfig, ModelConfig
from baton.engine.models.heads.draft_head import End
from baton.engine.models.skeleton.decoder import Decoder
from baton.engine.models.skeleton.feed_forwards import feed_forward_of
from baton.kernels.attention.layer_kv import LayerCache
from baton.kernels.elementwise.add import add
from baton.kernels.paging.sequences import Sequences

LAYER = {
    "attn.qkv.weight": tuple(f"self_attn.{part}_proj.weight" for part in "qkv"),
    "attn.qkv.bias": tuple(f"self_attn.{part}_proj.bias" for part in "qkv"),
    "attn.out.weight": ("self_attn.o_proj.weight",),
    "attn.out.bias": ("self_attn.o_proj.bias",),
    "ffn_norm.weight": ("post_attention_layernorm.weight",),
    "ffn.gate_up.weight": ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
    "ffn.down.weight": ("mlp.down_proj.weight",),
}
"""Ours <- theirs, for the layer."""
CHECKPOINT = {
    "join.first.weight": ("fc.weight",),
    "join.second.weight": ("fc.weight",),
    "join.second.bias": ("fc.bias",),
    **{
        f"block.{ours}": tuple(f"layers.0.{name}" for name in theirs)
        for ours, theirs in LAYER.items()
    },
}


ARRANGEMENTS: Mapping[str, Arrangement] = {
    "join.first.weight": FIRST_HALF,
    "join.second.weight": SECOND_HALF,
}


class _Unnormed(nn.Module):
    """An identity in place of a block's first norm."""

    def forward(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        total = x if residual is None else add(x, residual)
        return total, total


class EagleHead(nn.Module):
    taps: tuple[int, ...] = ()
    features = OUTPUTS
    shares: tuple[End, ...] = ("embed", "head")

    def __init__(self, config: ModelConfig, *, has_bias: bool) -> None:
        """A head without weights. `has_bias`: whether the projection of token and hidden state has
        a bias. Raises CheckpointError if it has several layers."""
        super().__init__()
        if config.num_layers != 1:
            raise unsupported(
                f"`num_hidden_layers` of an EAGLE head is {config.num_layers}; supported is 1"
            )
        width, layer = config.hidden_size, config.layers[0]
        self.config = config
        self.width = width
        self.join = Join(width, width, has_bias=has_bias)
        self.block = block_of(config, layer, attn_norm=_Unnormed())
        assert layer.rope is not None
        self.angles = RotaryAngles(layer.rope, config.max_model_len)

    def layout(self, of_model: KvLayout) -> KvLayout:
        return layout_of(self.config, of_model)

    def share(self, model: Decoder) -> None:
        """After loading: share embedding and head with `model`."""
        self.model = model

    def joined(self, features: Tensor) -> Tensor:
        return features.clone()

    def forward(
        self,
        hidden: Tensor,
        next_tokens: Tensor,
        sequences: Sequences,
        caches: Sequence[LayerCache],
    ) -> Tensor:
        x = self.join((self.model.embed(next_tokens), hidden))
        rotation = self.angles(sequences.positions)
        x, residual = self.block(x, None, rotation, caches[0], sequences)
        return add(x, residual)

    def logits(self, out: Tensor) -> Tensor:
        return self.model.logits(out)

    def mask(self) -> None:
        """None: this head drafts token by token."""


def block_of(config: ModelConfig, layer: LayerConfig, *, attn_norm: nn.Module) -> Block:
    """A Llama layer."""
    return Block(
        attn_norm=attn_norm,
        attn=Attention(
            config.hidden_size,
            config.heads,
            layer.attention,
            biases=(config.has_qkv_bias, config.has_out_bias),
        ),
        ffn_norm=AddRmsNorm(config.hidden_size, config.norm_eps),
        ffn=feed_forward_of(config, layer),
    )


def layout_of(config: ModelConfig, of_model: KvLayout) -> KvLayout:
    """The layout of Llama layers' KV, with the blocks and the dtype of a model's."""
    return replace(
        of_model,
        num_layers=config.num_layers,
        num_kv_heads=config.heads.num_kv_heads,
        head_dim=config.heads.head_dim,
        num_vectors=2,
        side_caches=(),
    )
