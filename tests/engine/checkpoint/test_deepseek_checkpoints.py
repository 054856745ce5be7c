"""Checkpoints of DeepSeek: what may be in them, and what their configuration says."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from bench.quantization.checkpoint_writer import LAYOUTS, write_layout
from safetensors.torch import load_file, save_file
from tests.engine.checkpoint.quantized.test_quantized_checkpoints import plain_copy
from tests.engine.model_runs import (
    assert_near,
    logits_in_chunks,
    make_prompt,
    make_runner,
)
from tests.tiny_checkpoints import (
    DEEPSEEK_YARN,
    make_deepseek_v2,
    make_deepseek_v3,
    transformers_logits,
)

from baton.core.errors import CheckpointError
from baton.engine.checkpoint.files.tensor_files import read_entries
from baton.engine.checkpoint.load import load_model, read_config
from baton.engine.models.config.keys import ConfigKeys
from baton.engine.models.config.rope import parse_score_factor
from baton.engine.models.registry import family_of


def test_experts_may_be_stored_in_one_tensor(tmp_path: Path) -> None:
    folder, prompt = make_deepseek_v3(tmp_path), make_prompt(20)
    expected = logits_in_chunks(make_runner(folder), prompt, 7)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    for layer in (1, 2):
        experts = f"model.layers.{layer}.mlp.experts."
        by_kind = {
            kind: torch.stack([tensors.pop(f"{experts}{e}.{kind}.weight") for e in range(8)])
            for kind in ("gate_proj", "up_proj", "down_proj")
        }
        gate_up = torch.cat((by_kind["gate_proj"], by_kind["up_proj"]), dim=1)
        tensors[f"{experts}gate_up_proj"] = gate_up
        tensors[f"{experts}down_proj"] = by_kind["down_proj"]
    save_file(tensors, path, metadata={"format": "pt"})

    assert torch.equal(logits_in_chunks(make_runner(folder), prompt, 7), expected)


def test_weights_in_blocks_of_eight_bits_are_what_their_scales_make_of_them(tmp_path: Path) -> None:
    """As DeepSeek publishes V3: what is made of latents is widened, like all else on a CPU."""
    prompt, original = make_prompt(20), make_deepseek_v3(tmp_path / "original")
    folder = write_layout(original, tmp_path / "fp8", LAYOUTS["fp8 blocks"])
    assert "model.layers.1.self_attn.kv_b_proj.weight_scale_inv" in read_entries(folder)

    found = logits_in_chunks(make_runner(folder, dtype="float32"), prompt, 7)

    plain = plain_copy(folder, tmp_path / "plain")
    assert_near(found, logits_in_chunks(make_runner(plain, dtype="float32"), prompt, 7))


def test_matrices_may_be_quantised_but_not_what_is_made_of_latents(tmp_path: Path) -> None:
    folder, prompt = make_deepseek_v3(tmp_path, hidden_size=64), make_prompt(20)

    rounded = make_runner(folder, quantize="int8")

    logits = logits_in_chunks(rounded, prompt, 7)
    expected = transformers_logits(folder, prompt)[[6, 13, 19]]
    error = (logits - expected).square().mean(-1).sqrt().median()
    assert 0 < error < 0.3 * expected.std()


def test_layers_behind_the_last_are_left_alone_but_no_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, prompt = make_deepseek_v3(tmp_path), make_prompt(20)
    expected = logits_in_chunks(make_runner(folder), prompt, 7)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors["model.layers.3.eh_proj.weight"] = torch.ones(32, 64)
    save_file(tensors, path, metadata={"format": "pt"})

    with caplog.at_level(logging.INFO):
        assert torch.equal(logits_in_chunks(make_runner(folder), prompt, 7), expected)
    assert "MTP layers" in caplog.text

    tensors["model.layers.2.eh_proj.weight"] = torch.ones(32, 64)
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"unexpected tensors: model\.layers\.2\.eh_proj"):
        load_model(folder)


RAW: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
}


def test_what_is_absent_has_the_defaults_of_the_family() -> None:
    v3 = family_of("DeepseekV3ForCausalLM").parse_config(RAW)
    assert v3.latent is not None
    assert (v3.latent.shape.latent_dim, v3.latent.query_rank) == (512, 1536)
    assert (v3.latent.is_interleaved, v3.heads.head_dim) == (True, 576)
    assert [layer.moe is None for layer in v3.layers] == [True] * 3 + [False] * 2
    moe = v3.layers[3].moe
    assert moe is not None and moe.has_correction and moe.shared_width == 32
    routing = moe.routing
    assert (routing.num_experts, routing.num_choices, routing.scale) == (256, 8, 2.5)

    lite = {**RAW, "q_lora_rank": None, "num_experts_per_tok": 6, "n_shared_experts": None}
    v2 = family_of("DeepseekV2ForCausalLM").parse_config(lite)
    assert v2.latent is not None and v2.latent.query_rank is None
    moe = v2.layers[0].moe
    assert moe is not None and not moe.has_correction and moe.shared_width == 0
    assert moe.routing.groups is None


V2_LITE: dict[str, Any] = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "first_k_dense_replace": 1,
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "n_group": 1,
    "num_attention_heads": 16,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 27,
    "q_lora_rank": None,
    "routed_scaling_factor": 1.0,
    "topk_group": 1,
    "topk_method": "greedy",
    "vocab_size": 102400,
}
V2: dict[str, Any] = {
    **V2_LITE,
    "hidden_size": 5120,
    "intermediate_size": 12288,
    "moe_intermediate_size": 1536,
    "n_group": 8,
    "n_routed_experts": 160,
    "num_attention_heads": 128,
    "num_hidden_layers": 60,
    "q_lora_rank": 1536,
    "topk_group": 3,
    "topk_method": "group_limited_greedy",
}
V3: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_attention_heads": 128,
    "num_hidden_layers": 61,
    "num_nextn_predict_layers": 1,
    "vocab_size": 129280,
}


@pytest.mark.parametrize(("raw", "billions"), [(V2_LITE, 15.7), (V2, 235.7), (V3, 671.0)])
def test_published_models_have_as_many_parameters_as_their_authors_say(
    raw: dict[str, Any], billions: float
) -> None:
    family = family_of(raw["architectures"][0])

    model = family.build(family.parse_config(raw))

    total = sum(parameter.numel() for parameter in model.parameters())
    assert round(total / 1e9, 1) == billions


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"scoring_func": "softmax"}, "`scoring_func` is 'softmax'; supported is 'sigmoid'"),
        ({"topk_method": "greedy"}, "`topk_method` is 'greedy'; supported is 'noaux_tc'"),
        ({"moe_layer_freq": 2}, "`moe_layer_freq` is 2; supported is 1"),
        ({"kv_lora_rank": 0}, "`kv_lora_rank` must be a positive integer"),
        ({"qk_rope_head_dim": 7}, "RoPE needs pairs of them"),
        ({"n_group": 7}, "`n_routed_experts`, `num_experts_per_tok`: 256 experts do not come in"),
    ],
)
def test_what_is_not_implemented_is_refused_by_its_key(change: dict[str, Any], what: str) -> None:
    with pytest.raises(CheckpointError, match=what):
        family_of("DeepseekV3ForCausalLM").parse_config({**RAW, **change})


def test_scores_are_sharpened_as_far_as_the_context_was_stretched(tmp_path: Path) -> None:
    keys = DEEPSEEK_YARN | {"factor": 40.0, "mscale_all_dim": 1.0}
    config = read_config(make_deepseek_v2(tmp_path, rope_parameters=keys))

    scale = config.layers[0].attention.scoring.scale
    assert scale == pytest.approx(24**-0.5 * 1.3688879454**2)  # 0.1 ln 40 + 1


def test_scores_are_left_alone_where_nothing_says_otherwise() -> None:
    yarn = {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 128}
    for parameters in (None, {"mscale_all_dim": 1.0}, yarn, {**yarn, "mscale_all_dim": 0}):
        assert parse_score_factor(ConfigKeys({"rope_parameters": parameters})) == 1.0
