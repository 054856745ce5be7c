"""`config.json`: both spellings are understood, and nothing unsupported slips through."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tiny_checkpoints import LLAMA3_ROPE
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from baton.core.errors import CheckpointError
from baton.engine.checkpoint.config import ModelConfig, parse_config, parse_eos, read_json
from baton.engine.layers.attention import HeadShape
from baton.engine.layers.rope import LinearScaling, Llama3Scaling

LLAMA3_SCALING = {key: value for key, value in LLAMA3_ROPE.items() if key != "rope_theta"}

RAW: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "hidden_act": "silu",
}


def parse(**changes: Any) -> ModelConfig:
    raw = {**RAW, **changes}
    return parse_config({key: value for key, value in raw.items() if value != "absent"})


def test_what_is_absent_has_the_defaults_of_llama() -> None:
    config = parse()

    assert config.heads == HeadShape(num_heads=4, num_kv_heads=4, head_dim=16)
    assert (config.rope.theta, config.rope.scaling, config.rope.head_dim) == (10000.0, None, 16)
    assert (config.rms_norm_eps, config.max_position_embeddings) == (1e-6, 2048)
    assert config.tie_word_embeddings is False
    assert config.dtype is None
    assert config.eos_token_ids == ()


@pytest.mark.parametrize(
    "spelling",
    [
        {"rope_parameters": LLAMA3_ROPE},
        {"rope_theta": 10000.0, "rope_scaling": LLAMA3_SCALING},
        {"rope_theta": 10000.0, "rope_parameters": LLAMA3_SCALING},
        {"rope_theta": 10000.0, "rope_parameters": LLAMA3_ROPE, "rope_scaling": None},
    ],
)
def test_old_and_new_spellings_of_rope_mean_the_same(spelling: dict[str, Any]) -> None:
    assert parse(**spelling).rope == parse(rope_parameters=LLAMA3_ROPE).rope
    assert isinstance(parse(**spelling).rope.scaling, Llama3Scaling)


def test_the_oldest_spelling_of_a_scaling_type_is_known() -> None:
    config = parse(rope_scaling={"type": "linear", "factor": 2.0})

    assert config.rope.scaling == LinearScaling(factor=2.0)


@pytest.mark.parametrize(
    "parameters",
    [
        {"rope_type": "default", "rope_theta": 1e6},
        {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
        {**LLAMA3_ROPE, "rope_theta": 5e5, "original_max_position_embeddings": 8192},
    ],
)
def test_frequencies_are_those_of_transformers(parameters: dict[str, Any]) -> None:
    config = LlamaConfig(hidden_size=512, num_attention_heads=4, rope_parameters=parameters)
    rope_type = parameters["rope_type"]

    ours = parse(head_dim=128, rope_parameters=parameters).rope.frequencies()

    if rope_type == "default":
        exponents = torch.arange(0, 128, 2, dtype=torch.int64).float() / 128
        theirs = 1.0 / (parameters["rope_theta"] ** exponents)
    else:
        theirs, _ = ROPE_INIT_FUNCTIONS[rope_type](config, device="cpu")
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=0)


@pytest.mark.parametrize(("key", "value"), [("dtype", "bfloat16"), ("torch_dtype", "bfloat16")])
def test_both_names_of_the_dtype_are_known(key: str, value: str) -> None:
    assert parse(**{key: value}).dtype == "bfloat16"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"architectures": []}, "`architectures` must name one"),
        ({"hidden_size": "absent"}, "`hidden_size` is missing"),
        ({"vocab_size": -1}, "`vocab_size` must be a positive integer"),
        ({"num_hidden_layers": True}, "`num_hidden_layers` must be a positive integer"),
        ({"num_key_value_heads": 3}, "no multiple of `num_key_value_heads` 3"),
        ({"head_dim": 7}, "`head_dim` 7 is odd"),
        ({"hidden_act": "gelu"}, "`hidden_act` is 'gelu'; supported is 'silu'"),
        ({"attention_bias": True}, "`attention_bias` is True; supported is False"),
        ({"mlp_bias": True}, "`mlp_bias`"),
        ({"use_sliding_window": True}, "`use_sliding_window`"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "`layer_types`"),
        ({"quantization_config": {"quant_method": "gptq"}}, "`quantization_config`"),
        ({"partial_rotary_factor": 0.5}, "`partial_rotary_factor`"),
        ({"rms_norm_eps": 0}, "`rms_norm_eps` must be a positive number"),
        ({"tie_word_embeddings": "yes"}, "`tie_word_embeddings` must be true or false"),
        ({"dtype": "float64"}, "`dtype` is 'float64'; supported are float32, bfloat16, float16"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4}}, "'yarn'; supported are default"),
        ({"rope_parameters": {"rope_type": "linear"}}, "`rope_parameters.factor`"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"rope_parameters": {**LLAMA3_ROPE, "high_freq_factor": 1.0}}, "must exceed"),
        ({"rope_theta": 5e5, "rope_parameters": {"rope_theta": 1e4}}, "500000.0 on its own"),
        ({"eos_token_id": "</s>"}, "`eos_token_id`"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(CheckpointError) as refusal:
        parse(**change)

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
