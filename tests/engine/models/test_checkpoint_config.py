"""`config.json`: every spelling is understood, and nothing unsupported slips through."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.tiny_checkpoints import LLAMA3_ROPE

from baton.core.errors import CheckpointError
from baton.engine.layers.attention import HeadShape
from baton.engine.layers.rope_scaling import LinearScaling, Llama3Scaling, LongRopeScaling
from baton.engine.models.config.description import read_json
from baton.engine.models.config.model_config import ModelConfig, parse_eos
from baton.engine.models.registry import ARCHITECTURES, family_of
from baton.kernels.paging.window import Window

RAW: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
}
GPT2_RAW: dict[str, Any] = {"vocab_size": 128, "n_embd": 64, "n_layer": 2, "n_head": 4}
LLAMA3_SCALING = {key: value for key, value in LLAMA3_ROPE.items() if key != "rope_theta"}

ABSENT = object()


def parse(architecture: str = "LlamaForCausalLM", **changes: Any) -> ModelConfig:
    base = GPT2_RAW if architecture.startswith("GPT2") else RAW
    raw = {**base, "architectures": [architecture], **changes}
    kept = {key: value for key, value in raw.items() if value is not ABSENT}
    return family_of(architecture).parse_config(kept)


def windows(config: ModelConfig) -> list[Window]:
    return [layer.attention.window for layer in config.layers]


def test_what_is_absent_has_the_defaults_of_llama() -> None:
    config = parse(num_key_value_heads=ABSENT)

    assert config.heads == HeadShape(num_heads=4, num_kv_heads=4, head_dim=16)
    rope = config.layers[0].rope
    assert rope is not None
    assert (rope.theta, rope.scaling, rope.rotary_dim) == (10000.0, None, 16)
    assert (config.norm_eps, config.max_position_embeddings) == (1e-6, 2048)
    assert (config.num_layers, config.activation, windows(config)) == (2, "silu", [None, None])
    assert config.tie_word_embeddings is False
    assert config.dtype is None
    assert config.eos_token_ids == (2,)
    assert parse(eos_token_id=None).eos_token_ids == ()


def test_every_family_says_what_it_is_in_a_line() -> None:
    descriptions = [family_of(name).description for name in ARCHITECTURES]

    assert len(set(descriptions)) == len(ARCHITECTURES)
    assert all(0 < len(text) < 80 and "\n" not in text for text in descriptions)


def test_a_null_is_the_customary_default_and_not_the_familys() -> None:
    def heads(**changes: Any) -> HeadShape:
        return parse("Qwen3ForCausalLM", num_attention_heads=32, **changes).heads

    absent = heads(num_key_value_heads=ABSENT, head_dim=ABSENT)
    null = heads(num_key_value_heads=None, head_dim=None)

    assert absent == HeadShape(num_heads=32, num_kv_heads=32, head_dim=128)
    assert null == HeadShape(num_heads=32, num_kv_heads=32, head_dim=2)


@pytest.mark.parametrize(
    "spelling",
    [
        {"rope_parameters": LLAMA3_ROPE},
        {"rope_theta": 10000.0, "rope_scaling": LLAMA3_SCALING},
        {"rope_theta": 10000.0, "rope_parameters": LLAMA3_SCALING},
        {"rope_theta": 10000.0, "rope_parameters": LLAMA3_ROPE, "rope_scaling": None},
        {"rope_parameters": LLAMA3_ROPE, "rope_scaling": LLAMA3_SCALING},
    ],
)
def test_old_and_new_spellings_of_rope_mean_the_same(spelling: dict[str, Any]) -> None:
    (rope,) = {layer.rope for layer in parse(**spelling).layers}

    assert rope == parse(rope_parameters=LLAMA3_ROPE).layers[0].rope
    assert rope is not None and isinstance(rope.scaling, Llama3Scaling)


def test_the_oldest_spelling_of_a_scaling_type_is_known() -> None:
    rope = parse(rope_scaling={"type": "linear", "factor": 2.0}).layers[0].rope

    assert rope is not None and rope.scaling == LinearScaling(factor=2.0)


@pytest.mark.parametrize("kind", ["su", "yarn", "longrope"])
def test_phi3_knows_longrope_by_its_old_names(kind: str) -> None:
    factors = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    config = parse(
        "Phi3ForCausalLM",
        partial_rotary_factor=0.5,
        max_position_embeddings=8192,
        rope_scaling={"type": kind, **factors},
    )

    rope = config.layers[0].rope
    assert rope is not None and rope.rotary_dim == 8
    assert isinstance(rope.scaling, LongRopeScaling)
    assert (rope.scaling.original_len, rope.scaling.long_factors) == (4096, (2.0,) * 4)


@pytest.mark.parametrize(
    "spelling",
    [
        {
            "rope_theta": 5e5,
            "rope_local_base_freq": 700.0,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 5e5, "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 700.0},
            }
        },
    ],
)
def test_gemma3_has_angles_of_their_own_for_windows(spelling: dict[str, Any]) -> None:
    near, far = parse("Gemma3ForCausalLM", sliding_window_pattern=2, **spelling).layers

    assert (near.attention.window, far.attention.window) == (4096, None)
    assert near.rope is not None and far.rope is not None
    assert (near.rope.theta, near.rope.scaling) == (700.0, None)
    assert (far.rope.theta, far.rope.scaling) == (5e5, LinearScaling(factor=8.0))


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (lambda: parse("MistralForCausalLM"), [4096, 4096]),
        (lambda: parse("MistralForCausalLM", sliding_window=None), [None, None]),
        (lambda: parse("Phi3ForCausalLM"), [None, None]),
        (lambda: parse("Phi3ForCausalLM", sliding_window=7), [7, 7]),
        (lambda: parse("Qwen2ForCausalLM", sliding_window=7, max_window_layers=1), [None, None]),
        (
            lambda: parse("Qwen2ForCausalLM", use_sliding_window=True, max_window_layers=1),
            [None, 4096],
        ),
        (
            lambda: parse(
                "Qwen3ForCausalLM",
                use_sliding_window=True,
                max_window_layers=0,
                layer_types=["sliding_attention", "full_attention"],
            ),
            [4096, None],
        ),
        (lambda: parse("Gemma2ForCausalLM", num_hidden_layers=3), [4096, None, 4096]),
        (
            lambda: parse("Gemma3ForCausalLM", num_hidden_layers=7, sliding_window=9),
            [9, 9, 9, 9, 9, None, 9],
        ),
    ],
)
def test_layers_see_the_windows_that_their_family_gives_them(
    config: Callable[[], ModelConfig], expected: list[int | None]
) -> None:
    assert windows(config()) == expected


def test_gpt2_reads_its_own_names() -> None:
    config = parse("GPT2LMHeadModel", n_positions=77, layer_norm_epsilon=1e-4)

    assert config.heads == HeadShape(num_heads=4, num_kv_heads=4, head_dim=16)
    assert (config.hidden_size, config.intermediate_size, config.num_layers) == (64, 256, 2)
    assert (config.max_position_embeddings, config.norm_eps) == (77, 1e-4)
    assert config.tie_word_embeddings is True
    assert [layer.rope for layer in config.layers] == [None, None]
    assert parse("GPT2LMHeadModel", n_inner=99).intermediate_size == 99


def test_falcon_has_the_kv_heads_of_its_architecture() -> None:
    def num_kv_heads(**changes: Any) -> int:
        return parse("FalconForCausalLM", num_kv_heads=2, **changes).heads.num_kv_heads

    assert num_kv_heads() == 1
    assert num_kv_heads(multi_query=False) == 4
    assert num_kv_heads(new_decoder_architecture=True) == 2


@pytest.mark.parametrize(("key", "value"), [("dtype", "bfloat16"), ("torch_dtype", "bfloat16")])
def test_both_names_of_the_dtype_are_known(key: str, value: str) -> None:
    assert parse(**{key: value}).dtype == "bfloat16"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"architectures": []}, "`architectures` must name one"),
        ({"hidden_size": ABSENT}, "`hidden_size` is missing"),
        ({"vocab_size": -1}, "`vocab_size` must be a positive integer"),
        ({"num_hidden_layers": True}, "`num_hidden_layers` must be a positive integer"),
        ({"num_key_value_heads": 3}, "no multiple of `num_key_value_heads` 3"),
        ({"head_dim": 7}, "`head_dim` 7 gives 7 dimensions that rotate, and RoPE needs pairs"),
        ({"hidden_act": "gelu"}, "`hidden_act` is 'gelu'; supported is 'silu' or"),
        ({"attention_bias": "yes"}, "`attention_bias` must be true or false"),
        ({"use_sliding_window": True}, "`use_sliding_window`"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "'full_attention' alone"),
        ({"layer_types": ["full_attention"]}, "must be 2 times 'full_attention' or"),
        ({"partial_rotary_factor": 0.5}, "`partial_rotary_factor` is 0.5; supported is 1"),
        ({"rms_norm_eps": 0}, "`rms_norm_eps` must be a positive number"),
        ({"tie_word_embeddings": "yes"}, "`tie_word_embeddings` must be true or false"),
        ({"dtype": "float64"}, "`dtype` is 'float64'; supported are float32, bfloat16, float16"),
        ({"rope_scaling": {"rope_type": "axial"}}, "'axial'; supported are default, linear"),
        ({"rope_scaling": "linear"}, "`rope_scaling` must be an object, not 'linear'"),
        ({"rope_parameters": {"rope_type": "linear"}}, "`rope_parameters.factor`"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"rope_parameters": {**LLAMA3_ROPE, "high_freq_factor": 0.5}}, "must not be below"),
        ({"rope_theta": 5e5, "rope_parameters": {"rope_theta": 1e4}}, "500000.0 on its own"),
        (
            {"rope_parameters": LLAMA3_ROPE, "rope_scaling": {"rope_type": "linear", "factor": 2}},
            "contradict each other",
        ),
        ({"rope_parameters": {"rope_type": "yarn", "truncate": 1}}, "`rope_parameters.truncate`"),
        (
            {"rope_parameters": {"rope_type": "longrope", "short_factor": [1.0]}},
            "`rope_parameters.short_factor` must be 8 numbers",
        ),
        ({"eos_token_id": "</s>"}, "`eos_token_id`"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(CheckpointError) as refusal:
        parse(**change)

    assert complaint in str(refusal.value)


@pytest.mark.parametrize(
    ("architecture", "change", "complaint"),
    [
        ("MistralForCausalLM", {"attention_bias": True}, "`attention_bias` is True; supported"),
        ("MistralForCausalLM", {"layer_types": ["full_attention"] * 2}, "'sliding_attention'"),
        ("Qwen2ForCausalLM", {"mlp_bias": True}, "`mlp_bias`"),
        ("Qwen2ForCausalLM", {"layer_types": ["sliding_attention"] * 2}, "no `sliding_window`"),
        ("Qwen3ForCausalLM", {"max_window_layers": -1}, "must be at least 0"),
        ("Gemma2ForCausalLM", {"hidden_activation": "relu"}, "`hidden_activation` is 'relu'"),
        ("Gemma2ForCausalLM", {"use_bidirectional_attention": True}, "bidirectional_attention"),
        ("Gemma3ForCausalLM", {"attn_logit_softcapping": 50.0}, "`attn_logit_softcapping`"),
        ("Gemma3ForCausalLM", {"rope_parameters": LLAMA3_ROPE}, "one object for each layer type"),
        (
            "Qwen3ForCausalLM",
            {"rope_parameters": {"full_attention": LLAMA3_ROPE}},
            "one object for all layers",
        ),
        ("Phi3ForCausalLM", {"partial_rotary_factor": 1.5}, "over 0 and at most 1"),
        ("GPT2LMHeadModel", {"n_embd": 0}, "`n_embd` must be a positive integer"),
        ("GPT2LMHeadModel", {"activation_function": "tanh"}, "`activation_function` is 'tanh'"),
        ("GPT2LMHeadModel", {"add_cross_attention": True}, "`add_cross_attention`"),
        ("FalconForCausalLM", {"alibi": True}, "`alibi` is True; supported is False"),
        ("FalconForCausalLM", {"parallel_attn": False}, "`parallel_attn` is False"),
        (
            "FalconForCausalLM",
            {"new_decoder_architecture": True, "num_kv_heads": 3},
            "no multiple of `num_kv_heads` 3",
        ),
    ],
)
def test_each_family_refuses_what_it_does_not_implement(
    architecture: str, change: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(CheckpointError) as refusal:
        parse(architecture, **change)

    assert complaint in str(refusal.value)


def test_end_tokens_are_none_one_or_several() -> None:
    assert parse_eos(None) == ()
    assert parse_eos(7) == (7,)
    assert parse_eos([7, 9]) == (7, 9)


@pytest.mark.parametrize("text", ["", "{", "[1]", "\xff"])
def test_a_file_that_holds_no_json_object_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text, encoding="latin-1")

    with pytest.raises(CheckpointError, match=r"config\.json"):
        read_json(path)
