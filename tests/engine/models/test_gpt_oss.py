"""What is particular about GPT-OSS: its configuration, and experts stored in MXFP4."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from bench.quantization.checkpoint_writer import write_mxfp4_experts
from safetensors.torch import load_file, save_file
from tests.engine.model_runs import assert_near, logits_in_chunks, make_prompt, make_runner
from tests.engine.prepared_weights import weights_of
from tests.tiny_checkpoints import WINDOW, make_gpt_oss, transformers_logits
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from baton.core.errors import CheckpointError
from baton.engine.checkpoint.load import load_model, read_config
from baton.engine.checkpoint.quantized.entry import QuantizedEntry
from baton.engine.layers.rope_scaling import YarnScaling
from baton.engine.models.config.model_config import ModelConfig
from baton.kernels.experts.quantized_experts import QuantizedExperts


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_gpt_oss(tmp_path_factory.mktemp("original"))


@pytest.fixture(scope="module")
def quantized(original: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_mxfp4_experts(original, tmp_path_factory.mktemp("quantized") / "model")


def widened(folder: Path, into: Path) -> Path:
    """The same model at full width, made so by transformers."""
    into.mkdir()
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if name.endswith("_blocks")]:
        whole = name.removesuffix("_blocks")
        blocks, scales = tensors.pop(name), tensors.pop(f"{whole}_scales")
        tensors[whole] = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    save_file(tensors, into / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    del config["quantization_config"]
    (into / "config.json").write_text(json.dumps(config))
    return into


def edited(folder: Path, into: Path, **changes: Any) -> Path:
    into.mkdir()
    (into / "model.safetensors").symlink_to(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    kept = {key: value for key, value in (config | changes).items() if value is not ...}
    (into / "config.json").write_text(json.dumps(kept))
    return into


def test_experts_in_mxfp4_compute_what_transformers_computes(
    quantized: Path, tmp_path: Path
) -> None:
    prompt = make_prompt(40)
    expected = transformers_logits(widened(quantized, tmp_path / "wide"), prompt)

    found = logits_in_chunks(make_runner(quantized), prompt, 7)

    assert_near(found, expected[[*range(6, 40, 7), 39]])


def test_a_gpu_keeps_experts_in_mxfp4_and_computes_the_same(
    quantized: Path, tmp_path: Path
) -> None:
    """As it would: `cpu:0` is no device that operators run on."""
    prompt = make_prompt(40)
    expected = transformers_logits(widened(quantized, tmp_path / "wide"), prompt)

    found = logits_in_chunks(make_runner(quantized, device="cpu:0"), prompt, 7)

    assert_near(found, expected[[*range(6, 40, 7), 39]])
    kept = dict(weights_of(load_model(quantized, device="cpu:0").model))
    for name in ("blocks.0.ffn.experts.gate_up", "blocks.0.ffn.experts.down"):
        experts = kept[name]
        assert isinstance(experts, QuantizedExperts)
        assert 8 * experts.nbytes == 4.25 * torch.Size(experts.shape).numel()


def test_never_are_all_experts_of_a_layer_wide_at_once(
    quantized: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(self: QuantizedEntry, dtype: torch.dtype) -> torch.Tensor:
        raise AssertionError(f"{self.shape} at once")

    monkeypatch.setattr(QuantizedEntry, "load", load)

    assert load_model(quantized).info.architecture == "GptOssForCausalLM"


def test_who_has_other_experts_is_another_model(quantized: Path, original: Path) -> None:
    assert load_model(quantized).info.fingerprint != load_model(original).info.fingerprint


@pytest.mark.parametrize(
    "change",
    [{"sliding_window": WINDOW + 1}, {"swiglu_limit": 2.5}, {"swiglu_alpha": 1.0}],
)
def test_windows_and_gates_matter_to_these_tests(
    original: Path, tmp_path: Path, change: dict[str, Any]
) -> None:
    prompt = make_prompt(40)
    before = logits_in_chunks(make_runner(original), prompt, 7)

    after = logits_in_chunks(make_runner(edited(original, tmp_path / "m", **change)), prompt, 7)

    assert (after - before).abs().max() > 0.05


@pytest.mark.parametrize(
    "edit", [lambda sinks: sinks.mul_(0), lambda sinks: sinks.copy_(sinks.flip(0))]
)
def test_sinks_matter_and_each_is_of_its_head(
    original: Path, tmp_path: Path, edit: Callable[[torch.Tensor], object]
) -> None:
    prompt, folder = make_prompt(40), tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_bytes((original / "config.json").read_bytes())
    tensors = load_file(original / "model.safetensors")
    edit(tensors["model.layers.1.self_attn.sinks"])
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    before = logits_in_chunks(make_runner(original), prompt, 7)

    after = logits_in_chunks(make_runner(folder), prompt, 7)

    assert (after - before).abs().max() > 0.05
    assert_near(after, transformers_logits(folder, prompt)[[*range(6, 40, 7), 39]])


def config_with(original: Path, folder: Path, **changes: Any) -> ModelConfig:
    return read_config(edited(original, folder, **changes))


def test_old_and_absent_rotary_positions_are_those_of_the_published_models(
    original: Path, tmp_path: Path
) -> None:
    yarn = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0}
    old = {**yarn, "truncate": False, "original_max_position_embeddings": 4096}
    absent = config_with(original, tmp_path / "absent", rope_parameters=..., head_dim=...)
    stated = config_with(
        original,
        tmp_path / "old",
        rope_parameters=...,
        rope_scaling=old,
        rope_theta=150000,
        head_dim=...,
    )

    assert absent.ropes == stated.ropes
    [rope] = absent.ropes
    assert rope.theta == 150000.0
    assert rope.rotary_dim == 64
    assert isinstance(rope.scaling, YarnScaling)
    assert not rope.scaling.is_truncated
    assert rope.scaling.attention_factor == pytest.approx(1.3466, abs=1e-4)


def test_windows_alternate_unless_layers_say_otherwise(original: Path, tmp_path: Path) -> None:
    every_other = config_with(original, tmp_path / "a", layer_types=..., num_hidden_layers=4)
    full = config_with(original, tmp_path / "b", layer_types=["full_attention"] * 2)

    assert [layer.attention.window for layer in every_other.layers] == [WINDOW, None] * 2
    assert [layer.attention.window for layer in full.layers] == [None, None]
    assert all(layer.attention.has_sinks for layer in full.layers)


def test_what_the_family_does_not_do_is_refused(original: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="`hidden_act` is 'gelu'"):
        config_with(original, tmp_path / "a", hidden_act="gelu")
    with pytest.raises(CheckpointError, match="`swiglu_limit` must be a positive number"):
        config_with(original, tmp_path / "b", swiglu_limit=0)
    with pytest.raises(CheckpointError, match="`num_experts_per_tok`"):
        config_with(original, tmp_path / "c", num_experts_per_tok=7)
