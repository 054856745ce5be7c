"""GLM-5: DeepSeek V3.2 in which only some layers have an index; the others use its choice.

`indexer_types` names these layers one by one; or a pattern does ("FSSF"); or they are every n-th
layer from an offset on, and all layers before it.
"""

from __future__ import annotations

from collections.abc import Sequence

from baton.engine.models.config.keys import ConfigKeys
from baton.engine.models.config.model_config import ModelConfig
from baton.engine.models.families import deepseek_v3, deepseek_v32, mixtral
from baton.engine.models.skeleton.family import Family

FULL, SHARED = "full", "shared"
LETTERS = {"F": FULL, "S": SHARED}


def parse(keys: ConfigKeys) -> ModelConfig:
    is_interleaved = keys.flag("indexer_rope_interleave", True)
    return deepseek_v32.parse_sparse(keys, _parse_indexed(keys), is_interleaved=is_interleaved)


def _parse_indexed(keys: ConfigKeys) -> Sequence[bool]:
    num_layers = keys.count("num_hidden_layers")
    types = keys.value("indexer_types", _types_by_pattern(keys))
    if types is None:
        step, offset = keys.count("index_topk_freq", 1), keys.count("index_skip_topk_offset", 2)
        return [max(layer - offset + 1, 0) % step == 0 for layer in range(num_layers)]
    if not isinstance(types, list) or len(types) != num_layers or not {*types} <= {FULL, SHARED}:
        raise keys.complaint("indexer_types", f"must be {num_layers} times {FULL!r} or {SHARED!r}")
    if types[0] != FULL:
        raise keys.complaint("indexer_types", f"must begin with {FULL!r}: nothing is chosen before")
    return [kind == FULL for kind in types]


def _types_by_pattern(keys: ConfigKeys) -> object:
    pattern = keys.value("index_topk_pattern")
    return [LETTERS.get(letter) for letter in pattern] if isinstance(pattern, str) else pattern


GLM_MOE_DSA = Family(
    description="GLM-5: sparse attention as in DeepSeek V3.2, several layers to an index",
    parse=parse,
    build=deepseek_v32.SparseDecoder,
    checkpoint=deepseek_v32.CHECKPOINT,
    other_names=(mixtral.FUSED,),
    further_layers="model.layers.{i}.",
    defaults={
        **deepseek_v32.DEFAULTS,
        "index_n_heads": 32,
        "max_position_embeddings": 202752,
        "n_group": 1,
        "q_lora_rank": 2048,
        "qk_nope_head_dim": 192,
        "rms_norm_eps": 1e-5,
        "topk_group": 1,
        "v_head_dim": 256,
    },
    must_be=deepseek_v3.DEEPSEEK_V3.must_be,
)
