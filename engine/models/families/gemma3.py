"""Gemma 3, text: Gemma 2 with norms over heads, and other rotary positions in layers without a
window.

The last of each `sliding_window_pattern` layers sees all tokens, with low rotary frequencies that
may be scaled; the others have a window, and high frequencies. Scores are not soft-capped.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from baton.engine.layers.attention import AttentionKind
from baton.engine.models.config.keys import ConfigKeys
from baton.engine.models.config.model_config import (
    FULL,
    SLIDING,
    LayerConfig,
    ModelConfig,
    parse_decoder,
    parse_heads,
    parse_windows,
)
from baton.engine.models.config.rope import RopeKeys, parse_rope
from baton.engine.models.families import gemma2, qwen3
from baton.engine.models.skeleton.family import Family
from baton.kernels.products.linear import GATES

GLOBAL = RopeKeys(layer_type=FULL, default_theta=1e6)
LOCAL = RopeKeys(layer_type=SLIDING, theta="rope_local_base_freq", is_scaled=False)


def parse(keys: ConfigKeys) -> ModelConfig:
    heads, scoring = parse_heads(keys), gemma2.parse_scoring(keys)
    far = parse_rope(keys, heads.head_dim, GLOBAL)
    near = parse_rope(keys, heads.head_dim, LOCAL)
    pattern = keys.count("sliding_window_pattern")
    windows = parse_windows(
        keys,
        keys.optional_count("sliding_window"),
        [(i + 1) % pattern != 0 for i in range(keys.count("num_hidden_layers"))],
    )
    layers = [
        LayerConfig(
            rope=far if window is None else near,
            attention=AttentionKind(window=window, scoring=scoring),
        )
        for window in windows
    ]
    has_bias = keys.flag("attention_bias", False)
    return replace(
        parse_decoder(keys, heads, layers, GATES),
        has_qkv_bias=has_bias,
        has_out_bias=has_bias,
        logit_softcap=keys.optional_positive("final_logit_softcapping"),
    )


GEMMA3 = Family(
    description="Gemma 3, text: norms over heads, windows with rotary positions of their own",
    parse=parse,
    build=partial(gemma2.build, has_head_norm=True),
    checkpoint={**gemma2.CHECKPOINT, **qwen3.HEAD_NORMS},
    names={"hidden_act": "hidden_activation"},
    defaults={
        **gemma2.DEFAULTS,
        "max_position_embeddings": 131072,
        "sliding_window_pattern": 6,
    },
    must_be={"use_bidirectional_attention": (False, None), "attn_logit_softcapping": (None,)},
)
