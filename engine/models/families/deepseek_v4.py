"""DeepSeek V4-Flash: windows and compressed entries, hyper-connections, experts by token or router.

Layers see a window of tokens, and most of them also compressed entries of the whole context: either
one entry every few tokens, of which an index chooses some, or one every many tokens, all of which
are used. The residual is several streams. The first layers choose experts by token id. Checkpoints
may have a layer after the last that predicts a further token: it is not loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from baton.engine.layers.attention import AttentionKind, HeadShape
from baton.engine.layers.compressed_attention import (
    CompressedConfig,
    Compression,
    IndexConfig,
)
from baton.engine.layers.hyper_connections import HyperConfig
from baton.engine.layers.rope import Rope
from baton.engine.layers.rope_scaling import YarnScaling
from baton.engine.models.config.keys import ConfigKeys
from baton.engine.models.config.model_config import (
    SLIDING,
    LayerConfig,
    ModelConfig,
    parse_decoder,
    parse_heads,
)
from baton.engine.models.config.moe import MoeConfig, parse_routing
from baton.engine.models.config.rope import RopeKeys, parse_rope
from baton.engine.models.skeleton.family import Family
from baton.engine.models.skeleton.stream_decoder import StreamDecoder
from baton.kernels.cache_write.windows import Windows
from baton.kernels.experts.moe import CLAMPED, Gating
from baton.kernels.experts.routing import Score
from baton.kernels.products.linear import GATES

SPARSE, HEAVY = "compressed_sparse_attention", "heavily_compressed_attention"
"""Values of `layer_types` besides windows alone: overlapping entries chosen by an index, and
others."""
KINDS = {0: SLIDING, 4: SPARSE, 128: HEAVY}
"""Kind of attention by compression ratio, as published in `compress_ratios`."""
BY_TOKEN, BY_ROUTER = "hash_moe", "moe"
PLAIN_ROPE = RopeKeys(layer_type="main", is_scaled=False, may_be_partial=True)
ROPE_OF_ENTRIES = RopeKeys(
    layer_type="compress",
    theta="compress_rope_theta",
    default_theta=160000.0,
    may_be_partial=True,
)


def parse(keys: ConfigKeys) -> ModelConfig:
    heads = parse_heads(keys)
    if heads.num_kv_heads != 1:
        raise keys.complaint("num_key_value_heads", "must be 1")
    compressed = _parse_compressed(keys, heads)
    ropes = _parse_ropes(keys, heads.head_dim)
    by_kind = _parse_compressions(keys, heads.head_dim)
    kind = AttentionKind(window=keys.count("sliding_window"), has_sinks=True)
    moe = _parse_moe(keys)
    by_token = replace(moe, num_hashed_tokens=keys.count("vocab_size"), has_correction=False)
    layers = [
        LayerConfig(
            rope=ropes.of_tokens if name == SLIDING else ropes.of_entries,
            attention=kind,
            moe=by_token if choice == BY_TOKEN else moe,
            compression=by_kind[name],
        )
        for name, choice in zip(_layer_types(keys), _choices(keys), strict=True)
    ]
    return replace(
        parse_decoder(keys, heads, layers, GATES),
        compressed=compressed,
        hyper=HyperConfig(
            num_streams=keys.count("hc_mult"),
            num_rounds=keys.count("hc_sinkhorn_iters"),
            eps=keys.positive("hc_eps"),
        ),
    )


def _parse_compressed(keys: ConfigKeys, heads: HeadShape) -> CompressedConfig:
    groups, query_width = keys.count("o_groups"), heads.num_heads * heads.head_dim
    if query_width % groups:
        raise keys.complaint("o_groups", f"must divide the {query_width} outputs of all heads")
    return CompressedConfig(
        query_rank=keys.count("q_lora_rank"),
        out_groups=groups,
        out_rank=keys.count("o_lora_rank"),
        norm_eps=keys.positive("rms_norm_eps", 1e-6),
    )


class _Ropes(NamedTuple):
    of_tokens: Rope
    """RoPE of layers with a window only."""
    of_entries: Rope
    """RoPE of layers that compress, for their entries and tokens."""


def _parse_ropes(keys: ConfigKeys, head_dim: int) -> _Ropes:
    """Entries use YaRN; its attention factor is 1 unless it is given."""
    share = keys.count("qk_rope_head_dim") / head_dim
    keys = keys.with_default("partial_rotary_factor", share)
    of_tokens, of_entries = (parse_rope(keys, head_dim, at) for at in (PLAIN_ROPE, ROPE_OF_ENTRIES))
    if keys.value("rope_parameters") is None and isinstance(of_entries.scaling, YarnScaling):
        scaling = replace(of_entries.scaling, attention_factor=1.0)
        of_entries = replace(of_entries, scaling=scaling)
    return _Ropes(of_tokens, of_entries)


def _parse_compressions(keys: ConfigKeys, head_dim: int) -> dict[str, Compression | None]:
    found = keys.value("compress_rates", {})
    old = {SPARSE: "compress_rate_csa", HEAVY: "compress_rate_hca"}
    rates = {kind: ratio for ratio, kind in KINDS.items() if ratio}
    for kind, key in old.items():
        given = found.get(kind) if isinstance(found, dict) else None
        rates[kind] = keys.count(key, rates[kind]) if given is None else given
        if not isinstance(rates[kind], int) or rates[kind] < 1:
            raise keys.complaint("compress_rates", "must have a positive number for each kind")
    index = IndexConfig(
        num_heads=keys.count("index_n_heads"),
        width=keys.count("index_head_dim", least=keys.count("qk_rope_head_dim")),
        top_k=keys.count("index_topk"),
    )
    sparse = Windows(num_tokens=rates[SPARSE], num_series=2, width=head_dim)
    heavy = Windows(num_tokens=rates[HEAVY], num_series=1, width=head_dim)
    return {
        SLIDING: None,
        SPARSE: Compression(windows=sparse, index=index),
        HEAVY: Compression(windows=heavy),
    }


def _parse_moe(keys: ConfigKeys) -> MoeConfig:
    width = keys.count("moe_intermediate_size")
    return MoeConfig(
        routing=parse_routing(
            keys,
            score=Score.ROOT_OF_SOFTPLUS,
            is_normalised=True,
            scale=keys.positive("routed_scaling_factor"),
        ),
        expert_width=width,
        shared_width=width,
        gating=Gating(
            activation=CLAMPED, alpha=1.0, limit=keys.positive("swiglu_limit"), offset=0.0
        ),
        has_correction=True,
    )


def _layer_types(keys: ConfigKeys) -> Sequence[str]:
    """Published as numbers; some are for layers after the last."""
    num_layers = keys.count("num_hidden_layers")
    ratios = keys.value("compress_ratios")
    if keys.value("layer_types") is None and isinstance(ratios, list):
        if len(ratios) < num_layers or any(ratio not in KINDS for ratio in ratios):
            raise keys.complaint("compress_ratios", f"must be {num_layers} of {list(KINDS)}")
        return [KINDS[ratio] for ratio in ratios[:num_layers]]
    default = [HEAVY if i < 2 or i % 2 == 0 else SPARSE for i in range(num_layers)]
    return _names(keys, "layer_types", default, tuple(KINDS.values()))


def _choices(keys: ConfigKeys) -> Sequence[str]:
    num_layers = keys.count("num_hidden_layers")
    num_by_token = keys.count("num_hash_layers", least=0)
    default = [BY_TOKEN if i < num_by_token else BY_ROUTER for i in range(num_layers)]
    return _names(keys, "mlp_layer_types", default, (BY_TOKEN, BY_ROUTER))


def _names(
    keys: ConfigKeys, key: str, default: Sequence[str], known: Sequence[str]
) -> Sequence[str]:
    names = keys.value(key, default)
    if (
        not isinstance(names, list)
        or len(names) != len(default)
        or any(name not in known for name in names)
    ):
        raise keys.complaint(key, f"must be {len(default)} of {', '.join(map(repr, known))}")
    return names


def _hyper(ours: str, theirs: str) -> dict[str, tuple[str, ...]]:
    parts = {"mix.weight": "fn", "scale": "scale", "base": "base"}
    return {f"{ours}.{part}": (f"{theirs}_{name}",) for part, name in parts.items()}


def _compressor(ours: str, theirs: str) -> dict[str, tuple[str, ...]]:
    return {
        f"{ours}.inputs.weight": (f"{theirs}.wkv.weight", f"{theirs}.wgate.weight"),
        f"{ours}.bias": (f"{theirs}.ape",),
        f"{ours}.norm.weight": (f"{theirs}.norm.weight",),
    }


ATTENTION = {
    "blocks.{i}.attn.q_a.weight": ("model.layers.{i}.attn.wq_a.weight",),
    "blocks.{i}.attn.q_a_norm.weight": ("model.layers.{i}.attn.q_norm.weight",),
    "blocks.{i}.attn.q_b.weight": ("model.layers.{i}.attn.wq_b.weight",),
    "blocks.{i}.attn.kv_a.weight": ("model.layers.{i}.attn.wkv.weight",),
    "blocks.{i}.attn.kv_a_norm.weight": ("model.layers.{i}.attn.norm.weight",),
    "blocks.{i}.attn.sinks": ("model.layers.{i}.attn.attn_sink",),
    "blocks.{i}.attn.out_a.weight": ("model.layers.{i}.attn.wo_a.weight",),
    "blocks.{i}.attn.out.weight": ("model.layers.{i}.attn.wo_b.weight",),
    **_compressor("blocks.{i}.attn.compressor", "model.layers.{i}.attn.compressor"),
    "blocks.{i}.attn.chooser.q.weight": ("model.layers.{i}.attn.indexer.wq_b.weight",),
    "blocks.{i}.attn.chooser.weights.weight": (
        "model.layers.{i}.attn.indexer.weights_proj.weight",
    ),
    **_compressor("blocks.{i}.attn.chooser.compressor", "model.layers.{i}.attn.indexer.compressor"),
}
EXPERTS = {
    "blocks.{i}.ffn.router.weight": ("model.layers.{i}.ffn.gate.weight",),
    "blocks.{i}.ffn.router.correction": ("model.layers.{i}.ffn.gate.bias",),
    "blocks.{i}.ffn.router.table": ("model.layers.{i}.ffn.gate.tid2eid",),
    "blocks.{i}.ffn.experts.gate_up": (
        "model.layers.{i}.ffn.experts.{e}.w1.weight",
        "model.layers.{i}.ffn.experts.{e}.w3.weight",
    ),
    "blocks.{i}.ffn.experts.down": ("model.layers.{i}.ffn.experts.{e}.w2.weight",),
    "blocks.{i}.ffn.shared.gate_up.weight": (
        "model.layers.{i}.ffn.shared_experts.w1.weight",
        "model.layers.{i}.ffn.shared_experts.w3.weight",
    ),
    "blocks.{i}.ffn.shared.down.weight": ("model.layers.{i}.ffn.shared_experts.w2.weight",),
}
CHECKPOINT = {
    "embed.weight": ("model.embed_tokens.weight",),
    "blocks.{i}.attn_norm.weight": ("model.layers.{i}.attn_norm.weight",),
    "blocks.{i}.ffn_norm.weight": ("model.layers.{i}.ffn_norm.weight",),
    **_hyper("blocks.{i}.attn_hyper", "model.layers.{i}.hc_attn"),
    **_hyper("blocks.{i}.ffn_hyper", "model.layers.{i}.hc_ffn"),
    **ATTENTION,
    **EXPERTS,
    **_hyper("collapse", "model.hc_head.hc"),
    "norm.weight": ("model.norm.weight",),
    "head.weight": ("head.weight",),
}
"""Weight names as transformers saves them; which of them a model has depends on its
configuration."""
PUBLISHED = {"embed.weight": ("embed.weight",), **_hyper("collapse", "hc_head")}
"""Weight names of the authors where they differ; all are without `model.`"""

DEEPSEEK_V4 = Family(
    description="DeepSeek V4-Flash: compressed contexts, hyper-connections, hashed experts",
    parse=parse,
    build=StreamDecoder,
    checkpoint=CHECKPOINT,
    other_names=(PUBLISHED,),
    base_prefix="model.",
    integers=(".tid2eid",),
    foreign=("mtp.", "model.mtp."),
    names={"intermediate_size": "moe_intermediate_size"},
    defaults={
        "compress_rope_theta": 160000.0,
        "eos_token_id": 1,
        "hc_eps": 1e-6,
        "hc_mult": 4,
        "hc_sinkhorn_iters": 20,
        "head_dim": 512,
        "hidden_act": "silu",
        "index_head_dim": 128,
        "index_n_heads": 64,
        "index_topk": 512,
        "max_position_embeddings": 1048576,
        "n_routed_experts": 256,
        "num_experts_per_tok": 6,
        "num_hash_layers": 3,
        "num_key_value_heads": 1,
        "o_groups": 8,
        "o_lora_rank": 1024,
        "q_lora_rank": 1024,
        "qk_rope_head_dim": 64,
        "routed_scaling_factor": 1.5,
        "sliding_window": 128,
        "swiglu_limit": 10.0,
    },
    must_be={
        "attention_bias": (False,),
        "hidden_act": ("silu",),
        "mlp_bias": (False,),
        "n_shared_experts": (1,),
        "norm_topk_prob": (True,),
        "scoring_func": ("sqrtsoftplus",),
        "topk_method": ("noaux_tc",),
    },
)
