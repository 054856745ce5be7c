"""Decoders whose residual is several streams, and whose attention is compressed (DeepSeek V4).

    streams = the embedding, n times                                     [T, n, D]
    x, post, comb = hyper(streams)            streams = expand(streams, attn(norm(x)), post, comb)
    x, post, comb = hyper(streams)            streams = expand(streams, ffn(norm(x)), post, comb)
    out = norm(head(streams))                                            [S, D]

See kernels/residual/hyper_connections.py for the mixing of streams. Experts may be chosen by token
id.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor, nn

from baton.engine.batch.batch import Batch, OnLayer
from baton.engine.layers.compressed_attention import CompressedAttention
from baton.engine.layers.feed_forward import LimitedFeedForward
from baton.engine.layers.hash_moe import HashMoeFeedForward, HashRouter
from baton.engine.layers.hyper_connections import HyperConnection, HyperHead
from baton.engine.layers.moe import Experts, MoeFeedForward
from baton.engine.layers.norm import RmsNorm
from baton.engine.layers.rope import RotaryAngles
from baton.engine.layers.router import Router
from baton.engine.models.config.model_config import LayerConfig, ModelConfig
from baton.engine.models.skeleton.decoder import Decoder
from baton.engine.models.skeleton.taps import AuxHiddenStates
from baton.kernels.attention.layer_kv import LayerCache
from baton.kernels.cache_write.rotation import Rotation
from baton.kernels.elementwise.take_rows import take_rows
from baton.kernels.paging.sequences import Sequences
from baton.kernels.residual.hyper_connections import expand_streams, spread_streams


class StreamBlock(nn.Module):
    """streams' = expand(attn(norm(collapsed streams))), and the same with the feed-forward."""

    def __init__(self, config: ModelConfig, layer: LayerConfig) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.norm_eps
        assert config.compressed is not None and config.hyper is not None
        assert layer.rope is not None
        self.attn_hyper = HyperConnection(width, config.hyper, eps)
        self.attn_norm = RmsNorm(width, eps)
        self.attn = CompressedAttention(
            width,
            config.heads,
            layer.attention,
            config.compressed,
            layer.compression,
            RotaryAngles(layer.rope, config.max_model_len),
        )
        self.ffn_hyper = HyperConnection(width, config.hyper, eps)
        self.ffn_norm = RmsNorm(width, eps)
        self.ffn = _feed_forward(config, layer)

    def forward(
        self,
        streams: Tensor,
        tokens: Tensor,
        rotation: Rotation,
        cache: LayerCache,
        sequences: Sequences,
    ) -> Tensor:
        """streams [T, n, D], tokens [T]"""
        x, post, comb = self.attn_hyper(streams)
        y = self.attn(self.attn_norm(x), rotation, cache, sequences)
        streams = expand_streams(streams, y, post, comb)
        x, post, comb = self.ffn_hyper(streams)
        x = self.ffn_norm(x)
        by_token = isinstance(self.ffn, HashMoeFeedForward)
        y = self.ffn(x, tokens) if by_token else self.ffn(x)
        return expand_streams(streams, y, post, comb)


class StreamDecoder(Decoder):
    """n streams, which begin as copies of the embedding, and are merged before the last norm."""

    narrows_last_layer: ClassVar[bool] = False
    is_capturable: ClassVar[bool] = False
    """Without compiled operators, attention loops over requests."""

    def __init__(self, config: ModelConfig) -> None:
        width, eps = config.hidden_size, config.norm_eps
        super().__init__(config, lambda layer: StreamBlock(config, layer), RmsNorm(width, eps))
        assert config.hyper is not None
        self.num_streams = config.hyper.num_streams
        self.collapse = HyperHead(width, config.hyper, eps)

    def forward(
        self,
        batch: Batch,
        caches: Sequence[LayerCache],
        on_layer: OnLayer,
        taps: AuxHiddenStates | None = None,
    ) -> Tensor:
        assert taps is None, "taps are of one stream"
        streams = spread_streams(self.embedded(batch), self.num_streams)  # [T, n, D]
        self.adapters.rows = batch.adapters
        rotations = [angles(batch.sequences.positions) for angles in self.angles]
        for layer, cache in zip(self.layers, caches, strict=True):
            rotation = rotations[self.angles_of_block[layer] or 0]
            streams = self.blocks[layer](streams, batch.tokens, rotation, cache, batch.sequences)
            on_layer(layer)
        wanted = take_rows(streams.flatten(1), batch.output_rows)
        out: Tensor = self.norm(self.collapse(wanted.view(-1, *streams.shape[1:])))
        return out


def _feed_forward(config: ModelConfig, layer: LayerConfig) -> MoeFeedForward:
    width, moe = config.hidden_size, layer.moe
    assert moe is not None, "all layers have experts"
    experts = Experts(
        moe.routing.num_experts, width, moe.expert_width, moe.gating, num_slots=moe.num_slots
    )
    shared = LimitedFeedForward(width, moe.shared_width, moe.gating)
    if moe.num_hashed_tokens:
        by_token = HashRouter(width, moe.routing, moe.num_hashed_tokens)
        return HashMoeFeedForward(router=by_token, experts=experts, shared=shared)
    router = Router(width, moe.routing, has_correction=moe.has_correction)
    return MoeFeedForward(router=router, experts=experts, shared=shared)
