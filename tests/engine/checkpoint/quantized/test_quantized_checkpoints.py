"""Models whose checkpoints come quantised: what is computed, and what stays in few bits."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import torch
from bench.quantization.checkpoint_writer import LAYOUTS, write_layout
from safetensors.torch import load_file, save_file
from tests.engine.model_runs import assert_near, logits_in_chunks, make_prompt, make_runner
from tests.engine.prepared_weights import AnyWeight, as_tensor, weights_of
from tests.tiny_checkpoints import (
    make_deepseek_v3,
    make_llama,
    make_qwen3_moe,
    transformers_logits,
)

from baton.core.errors import CheckpointError
from baton.engine.checkpoint.files.tensor_files import read_entries
from baton.engine.checkpoint.load import check_model, load_model
from baton.engine.checkpoint.quantized.methods import as_whole, parse_layout
from baton.kernels.experts.packed_quantized_experts import PackedQuantizedExperts
from baton.kernels.experts.quantized_experts import QuantizedExperts
from baton.kernels.products.int4_weight import Int4Weight
from baton.kernels.products.int8_weight import Int8Weight
from baton.kernels.products.quantized_weight import QuantizedWeight

SHAPES = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 32, "num_hidden_layers": 1}
ON_CPUS = {"gptq 4": Int4Weight, "packed 4": Int4Weight, "int8 channel": Int8Weight}
"""Layouts of which everything stays quantized there; what others hold is widened."""
NEAR = 2.0**-8
"""Of scales in bfloat16."""


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("original"), **SHAPES)


@pytest.fixture(scope="module", params=list(LAYOUTS))
def layout(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(original: Path, layout: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_layout(original, tmp_path_factory.mktemp("layout") / "model", LAYOUTS[layout])


def plain_copy(folder: Path, into: Path) -> Path:
    """The same model with its weights at full width."""
    into.mkdir()
    config = json.loads((folder / "config.json").read_text())
    layout = parse_layout(config)
    whole = as_whole(read_entries(folder), layout, ())
    tensors = {name: entry.load(torch.float32).contiguous() for name, entry in whole.items()}
    save_file(tensors, into / "model.safetensors", metadata={"format": "pt"})
    del config["quantization_config"]
    (into / "config.json").write_text(json.dumps(config))
    return into


def matrices(folder: Path, *, quantize: str = "none", device: str = "cpu") -> dict[str, AnyWeight]:
    """Of the blocks."""
    weights = weights_of(load_model(folder, quantize=quantize, device=device).model)
    return {
        name: weight
        for name, weight in weights
        if name.startswith("blocks") and "norm" not in name and name.endswith("weight")
    }


def test_logits_are_those_of_transformers_with_the_weights_that_are_meant(
    folder: Path, tmp_path: Path
) -> None:
    prompt = make_prompt(40)
    expected = transformers_logits(plain_copy(folder, tmp_path / "plain"), prompt)

    found = logits_in_chunks(make_runner(folder, quantize="wide"), prompt, 7)

    assert_near(found, expected[[*range(6, 40, 7), 39]])


def test_a_cpu_keeps_what_its_operators_multiply(folder: Path, layout: str) -> None:
    wide, kept = matrices(folder, quantize="wide"), matrices(folder)

    if layout in ON_CPUS:
        assert {type(weight) for weight in kept.values()} == {ON_CPUS[layout]}
    for name, weight in kept.items():
        expected, found = as_tensor(wide[name]), as_tensor(weight)
        bound = NEAR if isinstance(weight, Int4Weight) else 0
        assert bool(((found - expected).abs() <= bound * expected.abs()).all())


def test_a_gpu_keeps_what_is_stored(folder: Path, layout: str) -> None:
    """As it would: `cpu:0` is no device that operators run on."""
    wide, kept = matrices(folder, quantize="wide"), matrices(folder, device="cpu:0")

    for name, weight in kept.items():
        assert isinstance(weight, QuantizedWeight)
        assert torch.equal(as_tensor(weight), as_tensor(wide[name]))
        bits = 8 * weight.nbytes / weight.to_dense().numel()
        # Items, with a scale in 32 bits, eight of a zero, and an order for each input.
        assert bits <= (4 + 40 / 128 + 64 / 128 if "4" in layout or layout == "awq" else 9)


@pytest.mark.parametrize("device", ["cpu", "cpu:0"])
def test_logits_of_what_stays_are_near_those_of_what_is_widened(
    folder: Path, layout: str, device: str
) -> None:
    """The root mean square of the error: activations may be rounded to eight bits, or e4m3."""
    prompt = make_prompt(30)
    wide = logits_in_chunks(make_runner(folder, quantize="wide"), prompt, 7)

    found = logits_in_chunks(make_runner(folder, device=device), prompt, 7)

    bound = 0.3 if layout.startswith("fp8") else 0.1
    assert (found - wide).square().mean().sqrt() < bound * wide.std()


def test_who_rounds_otherwise_is_another_model(folder: Path, layout: str, original: Path) -> None:
    kept, wide = load_model(folder).info, load_model(folder, quantize="wide").info
    quantized = load_model(folder, device="cpu:0").info

    assert wide.fingerprint != load_model(original).info.fingerprint
    assert load_model(folder).info.fingerprint == kept.fingerprint
    if layout in ON_CPUS:
        assert kept.fingerprint != wide.fingerprint
    assert quantized.fingerprint != wide.fingerprint


def test_bits_may_be_asked_for_that_the_checkpoint_has_not(folder: Path) -> None:
    found = matrices(folder, quantize="int8")

    assert {type(weight) for weight in found.values()} == {Int8Weight}


def test_what_happens_to_the_weights_is_said_and_counted(
    folder: Path, layout: str, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[tuple[int, int]] = []

    with caplog.at_level(logging.INFO):
        load_model(folder, progress=lambda *progress: seen.append(progress))

    assert ("7 tensors stay quantized" in caplog.text) == (layout in ON_CPUS)
    assert ("dequantized to float32" in caplog.text) == (layout not in ON_CPUS)
    assert ("not used" in caplog.text) == (layout == "fp8 tensor")
    assert seen[-1][0] == seen[-1][1]


def test_matrices_multiplied_as_one_are_widened_if_one_of_them_is(
    original: Path, tmp_path: Path
) -> None:
    folder = write_layout(original, tmp_path / "model", LAYOUTS["int8 channel"])
    whole = load_file(original / "model.safetensors")
    edited = load_file(folder / "model.safetensors")
    name = "model.layers.0.self_attn.k_proj.weight"
    del edited[f"{name}_scale"]
    save_file({**edited, name: whole[name]}, folder / "model.safetensors")

    found = matrices(folder)

    assert not isinstance(found["blocks.0.attn.qkv.weight"], Int8Weight)
    assert isinstance(found["blocks.0.attn.out.weight"], Int8Weight)


def with_biases(folder: Path, value: float) -> Path:
    tensors = load_file(folder / "model.safetensors")
    biases = {
        name.replace("qweight", "bias"): torch.full((tensor.shape[1],), value)
        for name, tensor in tensors.items()
        if name.endswith("qweight")
    }
    save_file({**tensors, **biases}, folder / "model.safetensors")
    return folder


def test_biases_of_zeros_that_a_model_has_not_are_passed_over(
    original: Path, tmp_path: Path
) -> None:
    folder = write_layout(original, tmp_path / "model", LAYOUTS["gptq 4"])
    check_model(with_biases(folder, 0.0))

    with pytest.raises(CheckpointError, match="unexpected tensors"):
        check_model(with_biases(folder, 0.5))


def test_a_pickled_checkpoint_is_read_alike(folder: Path, layout: str, tmp_path: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())

    assert load_model(tmp_path).info.fingerprint == load_model(folder).info.fingerprint


def test_weights_of_another_width_are_refused(original: Path, tmp_path: Path) -> None:
    folder = write_layout(original, tmp_path / "model", LAYOUTS["awq"])
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "intermediate_size": 264}))

    with pytest.raises(CheckpointError, match=r"gate_proj.weight is \[256, 128\], not \[264, 128"):
        check_model(folder)


def test_a_method_that_is_not_known_is_refused_before_anything_is_read(
    original: Path, tmp_path: Path
) -> None:
    folder = write_layout(original, tmp_path / "model", LAYOUTS["awq"])
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"]["quant_method"] = "quip"
    (folder / "config.json").write_text(json.dumps(config))

    with pytest.raises(CheckpointError, match="'quip'; supported are gptq, awq, fp8"):
        check_model(folder)


MOE_SHAPES = {**SHAPES, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128}
MOE_LAYOUTS = ("gptq 4", "awq", "fp8 blocks", "fp8 tensor", "int8 channel", "mxfp4")


@pytest.fixture(scope="module", params=MOE_LAYOUTS)
def mixture(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path]:
    layout, folder = str(request.param), tmp_path_factory.mktemp("mixture")
    wide = make_qwen3_moe(folder / "wide", **MOE_SHAPES, mlp_only_layers=[])
    return layout, write_layout(wide, folder / "model", LAYOUTS[layout])


@pytest.mark.parametrize("device", ["cpu", "cpu:0"])
def test_experts_stay_in_few_bits_as_matrices_do(mixture: tuple[str, Path], device: str) -> None:
    layout, folder = mixture
    kinds = (PackedQuantizedExperts,) if device == "cpu" else (QuantizedExperts,)
    stays = device == "cpu:0" or layout in ON_CPUS
    bound = NEAR if layout == "gptq 4" and device == "cpu" else 0
    wide = dict(weights_of(load_model(folder, quantize="wide").model))

    kept = dict(weights_of(load_model(folder, device=device).model))

    for name in ("blocks.0.ffn.experts.gate_up", "blocks.0.ffn.experts.down"):
        assert isinstance(kept[name], kinds) == stays
        expected, found = as_tensor(wide[name]), as_tensor(kept[name])
        assert bool(((found - expected).abs() <= bound * expected.abs()).all())


@pytest.mark.parametrize("device", ["cpu", "cpu:0"])
def test_logits_of_experts_that_stay_are_near(mixture: tuple[str, Path], device: str) -> None:
    layout, folder = mixture
    prompt = make_prompt(20)
    wide = logits_in_chunks(make_runner(folder, quantize="wide"), prompt, 7)

    found = logits_in_chunks(make_runner(folder, device=device), prompt, 7)

    # Which experts a token goes to may change with what a router sees.
    rounds_activations = layout in ON_CPUS if device == "cpu" else layout.startswith("fp8")
    bound = 0.4 if rounds_activations else 1e-4
    assert (found - wide).square().mean().sqrt() < bound * wide.std()


@pytest.mark.parametrize("device", ["cpu", "cpu:0"])
def test_blocks_of_e4m3_go_with_latent_attention_and_experts_in_groups(
    tmp_path: Path, device: str
) -> None:
    """As DeepSeek publishes its models: edges that are no whole blocks, scales beside each."""
    wide = make_deepseek_v3(tmp_path / "wide", moe_intermediate_size=128, hidden_size=128)
    folder = write_layout(wide, tmp_path / "model", LAYOUTS["fp8 blocks"])
    prompt = make_prompt(30)
    expected = transformers_logits(plain_copy(folder, tmp_path / "plain"), prompt)

    found = logits_in_chunks(make_runner(folder, device=device), prompt, 7)

    expected = expected[[*range(6, 30, 7), 29]]
    if device == "cpu":
        assert_near(found, expected)
    assert (found - expected).square().mean().sqrt() < 0.6 * expected.std()
    kept = dict(weights_of(load_model(folder, device=device).model))
    assert isinstance(kept["blocks.2.ffn.experts.down"], QuantizedExperts) == (device == "cpu:0")


def test_in_a_dtype_without_operators_it_is_said_what_is_faster(
    original: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Most checkpoints of GPTQ and AWQ declare it."""
    folder = write_layout(original, tmp_path / "model", LAYOUTS["gptq 4"])

    with caplog.at_level(logging.WARNING):
        load_model(folder, dtype="float16")

    assert "dtype bfloat16 is faster" in caplog.text
