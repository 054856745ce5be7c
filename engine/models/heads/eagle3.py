"""EAGLE-3 (Li et al. 2025): a layer over features of three layers of a model.

    h[t]  = W (inputs of three layers at token t)        or out[t - 1], where these are not known
    pair  = (norm(embedding of token t + 1), norm(h[t]))
    out   = the layer: attention reads pair, and is added to h; then Llama layers, if it has more
    logits of token t + 2 = head(norm(out[t]))           only of the tokens that it can draft

P-EAGLE (2026) drafts k tokens in one pass: the last pair is followed by k - 1 masks, each with a
token of its own and learnt features.

The embedding is the model's, the head its own. T tokens, D model width, F width of three features,
V vocabulary, of which V' tokens can be drafted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from baton.core.kv_layout import KvLayout
from baton.engine.layers.attention import Attention
from baton.engine.layers.linear import Linear
from baton.engine.layers.norm import AddRmsNorm, RmsNorm
from baton.engine.layers.rope import RotaryAngles
from baton.engine.mesh.split import Split
from baton.engine.models.config.arrangement import FIRST_HALF, SECOND_HALF, Arrangement
from baton.engine.models.config.model_config import ModelConfig
from baton.engine.models.heads.draft_head import End, Mask
from baton.engine.models.heads.eagle import LAYER, block_of, layout_of
from baton.engine.models.skeleton.decoder import Decoder
from baton.engine.models.skeleton.feed_forwards import feed_forward_of
from baton.kernels.attention.layer_kv import LayerCache
from baton.kernels.elementwise.add import add
from baton.kernels.paging.sequences import Sequences
from baton.kernels.products.linear import logits

_QKV = "attn.qkv."
_FIRST = {
    **{name: theirs for name, theirs in LAYER.items() if not name.startswith(_QKV)},
    "attn.qkv.first.weight": LAYER["attn.qkv.weight"],
    "attn.qkv.second.weight": LAYER["attn.qkv.weight"],
    "attn.qkv.second.bias": LAYER["attn.qkv.bias"],
    "embed_norm.weight": ("input_layernorm.weight",),
    "hidden_norm.weight": ("hidden_norm.weight",),
}


JOIN = {"fuse.weight": ("fc.weight",)}
"""Ours <- theirs, for the projection of features."""
_FURTHER = {**LAYER, "attn_norm.weight": ("input_layernorm.weight",)}


def _named(
    layer: Mapping[str, tuple[str, ...]], ours: str, theirs: str
) -> dict[str, tuple[str, ...]]:
    return {ours + name: tuple(theirs + part for part in parts) for name, parts in layer.items()}


def checkpoint(num_layers: int) -> dict[str, tuple[str, ...]]:
    """Ours <- theirs."""
    names = {
        **JOIN,
        **_named(_FIRST, "", "midlayer."),
        "norm.weight": ("norm.weight",),
        "head.weight": ("lm_head.weight",),
        "masked": ("mask_hidden",),
    }
    for layer in range(1, num_layers):
        names |= _named(_FURTHER, f"further.{layer - 1}.", f"layers.{layer}.")
    return names


OTHER_NAMES = _named(_FIRST, "", "layers.0.")
"""Names of the first layer as vLLM's tools write them."""
ARRANGEMENTS: Mapping[str, Arrangement] = {
    "attn.qkv.first.weight": FIRST_HALF,
    "attn.qkv.second.weight": SECOND_HALF,
}
NEVER = -1e30
"""The logit of tokens that cannot be drafted; finite, since non-finite logits mean an error."""


class FeatureJoin(nn.Module):
    """The projection of a head's features, without the rest of the head."""

    def __init__(self, width: int, taps: tuple[int, ...], *, features: str = "") -> None:
        """A join without weights. `features`: see `FeatureReader`."""
        super().__init__()
        self.width = width
        self.taps = taps
        self.features = features
        self.fuse = Linear(len(taps) * width, width, split=Split.NONE)

    def joined(self, features: Tensor) -> Tensor:
        joined: Tensor = self.fuse(features)
        return joined


class Eagle3Head(FeatureJoin):
    shares: tuple[End, ...] = ("embed",)

    def __init__(
        self,
        config: ModelConfig,
        taps: tuple[int, ...],
        target_ids: Tensor | None,
        *,
        features: str = "",
        mask_token: int | None = None,
    ) -> None:
        """A head without weights. `target_ids` [V']: the tokens that it can draft; None: all.
        `features`: see `FeatureReader`. `mask_token`: for a head that drafts several tokens at
        once.
        """
        super().__init__(config.hidden_size, taps, features=features)
        width, eps, layer = config.hidden_size, config.norm_eps, config.layers[0]
        self.config = config
        self.target_ids = target_ids
        self.embed_norm = RmsNorm(width, eps)
        self.hidden_norm = RmsNorm(width, eps)
        self.attn = Attention(
            width,
            config.heads,
            layer.attention,
            biases=(config.has_qkv_bias, config.has_out_bias),
            is_joining=True,
        )
        self.ffn_norm = AddRmsNorm(width, eps)
        self.ffn = feed_forward_of(config, layer)
        self.further = nn.ModuleList(
            block_of(config, each, attn_norm=AddRmsNorm(width, eps)) for each in config.layers[1:]
        )
        self.mask_token = mask_token
        self.masked: nn.Parameter | None = None
        if mask_token is not None:
            masked = torch.empty(1, len(taps) * width, device="meta")
            self.masked = nn.Parameter(masked, False)
        self.norm = RmsNorm(width, eps)
        num_drafted = config.vocab_size if target_ids is None else len(target_ids)
        self.head = Linear(width, num_drafted)
        assert layer.rope is not None
        self.angles = RotaryAngles(layer.rope, config.max_model_len)

    def layout(self, of_model: KvLayout) -> KvLayout:
        return layout_of(self.config, of_model)

    def share(self, model: Decoder) -> None:
        """After loading: share the embedding with `model`."""
        self.embed = model.embed

    def forward(
        self,
        hidden: Tensor,
        next_tokens: Tensor,
        sequences: Sequences,
        caches: Sequence[LayerCache],
    ) -> Tensor:
        embedded = self.embed_norm(self.embed(next_tokens))
        pair = embedded, self.hidden_norm(hidden)
        rotation = self.angles(sequences.positions)
        x = self.attn(pair, rotation, caches[0], sequences)
        x, residual = self.ffn_norm(x, hidden)
        x = self.ffn(x)
        for block, cache in zip(self.further, caches[1:], strict=True):
            x, residual = block(x, residual, rotation, cache, sequences)
        return add(x, residual)

    def mask(self) -> Mask | None:
        if self.mask_token is None or self.masked is None:
            return None
        return Mask(self.mask_token, self.joined(self.masked))

    def logits(self, out: Tensor) -> Tensor:
        found = logits(self.norm(out), self.head.weight)
        if self.target_ids is None:
            return found
        spread = found.new_full((len(found), self.config.vocab_size), NEVER)
        return spread.index_copy_(1, self.target_ids.to(found.device), found)
