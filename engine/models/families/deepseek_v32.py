"""DeepSeek V3.2: V3 with sparse attention: an index in each layer chooses the keys of a query.

GLM-5 uses parts of this file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from torch import Tensor, nn

from baton.engine.batch.batch import OnLayer
from baton.engine.layers.block import SparseBlock
from baton.engine.layers.indexer import IndexConfig
from baton.engine.layers.norm import AddRmsNorm
from baton.engine.layers.sparse_mla import SparseLatentAttention
from baton.engine.models.config.keys import ConfigKeys
from baton.engine.models.config.model_config import LayerConfig, ModelConfig
from baton.engine.models.families import deepseek_v2, deepseek_v3, mixtral
from baton.engine.models.skeleton.decoder import Decoder
from baton.engine.models.skeleton.family import Family
from baton.engine.models.skeleton.feed_forwards import feed_forward_of
from baton.engine.models.skeleton.taps import AuxCapture
from baton.kernels.attention.layer_kv import LayerCache
from baton.kernels.latent_attention.choose_tokens import Chosen
from baton.kernels.paging.sequences import Sequences

DENSE, SPARSE = "dense", "sparse"
"""Values of `mlp_layer_types` for layers without and with experts."""
INDEXED, INDEXED_BEFORE = "indexed_attention", "deepseek_sparse_attention"
"""Value of `layer_types` for all layers, in current and in older configurations."""


class SparseDecoder(Decoder):
    """Passes the chosen keys of a layer on to the next."""

    is_mixed_capturable: ClassVar[bool] = False
    """A graph would rank, for each of its tokens, as many keys as a request may ever have."""

    def __init__(self, config: ModelConfig) -> None:
        width, eps = config.hidden_size, config.norm_eps
        super().__init__(config, lambda layer: _new_block(config, layer), AddRmsNorm(width, eps))
        self.latent = None  # there is no other form, which no tape has

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
        rotations = [angles(sequences.positions) for angles in self.angles]
        chosen: Chosen | None = None
        for layer, cache in zip(self.layers, caches, strict=True):
            if tapping is not None:
                tapping.see(layer, x, residual)
            rotation = rotations[self.angles_of_block[layer] or 0]
            block = self.blocks[layer]
            wanted = rows if layer == self.layers[-1] else None
            x, residual, chosen = block(x, residual, rotation, cache, sequences, chosen, wanted)
            on_layer(layer)
        assert residual is not None
        return x, residual


def _new_block(config: ModelConfig, layer: LayerConfig) -> nn.Module:
    width, eps, latent = config.hidden_size, config.norm_eps, config.latent
    assert latent is not None and config.index is not None
    return SparseBlock(
        attn_norm=AddRmsNorm(width, eps),
        attn=SparseLatentAttention(
            width, latent, layer.attention, config.index, has_index=layer.has_index
        ),
        ffn_norm=AddRmsNorm(width, eps),
        ffn=feed_forward_of(config, layer),
    )


def parse(keys: ConfigKeys) -> ModelConfig:
    every = [True] * keys.count("num_hidden_layers")
    return parse_sparse(keys, every, is_interleaved=False)


def parse_sparse(
    keys: ConfigKeys, has_index: Sequence[bool], *, is_interleaved: bool
) -> ModelConfig:
    """Layers with an index, and whether adjacent dimensions are rotated together in it."""
    config = deepseek_v3.parse(keys)
    assert config.latent is not None
    if config.latent.query_rank is None:
        raise keys.complaint("q_lora_rank", "is missing: the index reads the queries' latent")
    index = IndexConfig(
        num_heads=keys.count("index_n_heads"),
        head_dim=keys.count("index_head_dim", least=config.latent.shape.rope_dim),
        num_chosen=keys.count("index_topk"),
        is_interleaved=is_interleaved,
    )
    kinds = [DENSE if layer.moe is None else SPARSE for layer in config.layers]
    if keys.value("mlp_layer_types", kinds) != kinds:
        raise keys.complaint("mlp_layer_types", "says otherwise than `first_k_dense_replace`")
    types = keys.value("layer_types", [INDEXED])
    if not isinstance(types, list) or not {*types} <= {INDEXED, INDEXED_BEFORE}:
        raise keys.complaint("layer_types", f"must be {INDEXED!r} in all layers")
    layers = [
        replace(layer, has_index=has) for layer, has in zip(config.layers, has_index, strict=True)
    ]
    return replace(config, layers=tuple(layers), index=index)


INDEXER = {
    "blocks.{i}.attn.indexer.q.weight": ("model.layers.{i}.self_attn.indexer.wq_b.weight",),
    "blocks.{i}.attn.indexer.k.weight": ("model.layers.{i}.self_attn.indexer.wk.weight",),
    "blocks.{i}.attn.indexer.k_norm.weight": ("model.layers.{i}.self_attn.indexer.k_norm.weight",),
    "blocks.{i}.attn.indexer.k_norm.bias": ("model.layers.{i}.self_attn.indexer.k_norm.bias",),
    "blocks.{i}.attn.indexer.weights.weight": (
        "model.layers.{i}.self_attn.indexer.weights_proj.weight",
    ),
}
CHECKPOINT = {**deepseek_v2.CHECKPOINT, **INDEXER}
DEFAULTS = {
    **deepseek_v3.DEEPSEEK_V3.defaults,
    "index_head_dim": 128,
    "index_topk": 2048,
}

DEEPSEEK_V32 = Family(
    description="DeepSeek V3.2: V3 with sparse attention, whose tokens an index chooses",
    parse=parse,
    build=SparseDecoder,
    checkpoint=CHECKPOINT,
    other_names=(mixtral.FUSED,),
    further_layers="model.layers.{i}.",
    defaults={**DEFAULTS, "index_n_heads": 64, "max_position_embeddings": 163840},
    must_be=deepseek_v3.DEEPSEEK_V3.must_be,
)
