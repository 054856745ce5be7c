"""The multi-token prediction head (DeepSeek V3, 2024): a layer after the last, for one token more.

    y[t]  = W (norm(embedding of token t + 1), norm(h[t]))          h: the model's output
    g     = norm(the layer, over y)                                 with KV of its own
    logits of token t + 2 = head(g[t])

Embedding and head are the model's own; checkpoints repeat them. To draft further tokens, g[t]
stands for h[t + 1].

T tokens, D model width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor, nn

from baton.core.kv_layout import OUTPUTS, KvLayout
from baton.engine.batch.batch import ignore_layer
from baton.engine.layers.join import Join
from baton.engine.layers.norm import RmsNorm
from baton.engine.models.config.arrangement import FIRST_HALF, SECOND_HALF
from baton.engine.models.config.model_config import ModelConfig
from baton.engine.models.heads.draft_head import End
from baton.engine.models.skeleton.decoder import Decoder
from baton.engine.models.skeleton.family import Family
from baton.kernels.attention.layer_kv import LayerCache
from baton.kernels.paging.sequences import Sequences

LAYER = "blocks.{i}."
"""Prefix of our names in a layer."""
OWN = {
    "embed_norm.weight": ("enorm.weight",),
    "hidden_norm.weight": ("hnorm.weight",),
    "join.first.weight": ("eh_proj.weight",),
    "join.second.weight": ("eh_proj.weight",),
    "layer.norm.weight": ("shared_head.norm.weight",),
}
"""Ours <- theirs, after the prefix of the layer."""


class MtpHead(nn.Module):
    taps: tuple[int, ...] = ()
    features = OUTPUTS
    shares: tuple[End, ...] = ("embed", "head")

    def __init__(self, config: ModelConfig, family: Family) -> None:
        """A head without weights. Its layer is built like the model's last, with its own index."""
        super().__init__()
        self.width = width = config.hidden_size
        eps = config.norm_eps
        self.embed_norm = RmsNorm(width, eps)
        self.hidden_norm = RmsNorm(width, eps)
        self.join = Join(width, width)
        layer = replace(config.layers[-1], has_index=config.index is not None)
        self.config = replace(config, layers=(layer,))
        self.layer: Decoder = family.build(self.config)
        del self.layer.embed
        self.layer.head = None

    def layout(self, of_model: KvLayout) -> KvLayout:
        """The layout of its own KV."""
        side_caches = self.config.side_caches(of_model.dtype)
        return replace(of_model, num_layers=1, side_caches=side_caches)

    def share(self, model: Decoder) -> None:
        """After loading: share embedding and head with `model`."""
        self.layer.embed, self.layer.head = model.embed, model.head

    def forward(
        self,
        hidden: Tensor,
        next_tokens: Tensor,
        sequences: Sequences,
        caches: Sequence[LayerCache],
    ) -> Tensor:
        """The model's outputs [T, D], and the following tokens [T] -> [T, D]"""
        embedded = self.embed_norm(self.layer.embed(next_tokens))
        x = self.join((embedded, self.hidden_norm(hidden)))
        x, residual = self.layer.through(x, None, sequences, caches, ignore_layer)
        out: Tensor = self.layer.norm(x, residual)[0]
        return out

    def joined(self, features: Tensor) -> Tensor:
        return features.clone()

    def logits(self, out: Tensor) -> Tensor:
        """[S, D] -> float32 [S, V]"""
        return self.layer.logits(out)

    def mask(self) -> None:
        """None: this head drafts token by token."""


def names_of(family: Family, layer: int) -> Family:
    """The family with the checkpoint names of one layer after the last."""
    prefix = family.further_layers.format(i=layer)
    own = {ours: tuple(prefix + name for name in theirs) for ours, theirs in OWN.items()}
    return replace(
        family,
        checkpoint={**own, **_names_in_layer(family.checkpoint, layer)},
        other_names=tuple(_names_in_layer(table, layer) for table in family.other_names),
        arrangements={
            **family.arrangements,
            "join.first.weight": FIRST_HALF,
            "join.second.weight": SECOND_HALF,
        },
    )


def _names_in_layer(table: Mapping[str, tuple[str, ...]], layer: int) -> dict[str, tuple[str, ...]]:
    return {
        "layer." + ours.replace("{i}", "0"): tuple(t.replace("{i}", str(layer)) for t in theirs)
        for ours, theirs in table.items()
        if ours.startswith(LAYER)
    }
