"""Weights in the layouts of others: what their bits mean, and what rounding to them may cost."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from bench.quantization.checkpoint_writer import (
    AWQ_ORDER,
    E2M1,
    LAYOUTS,
    fp8_blocks,
    gptq,
    mxfp4,
    pack_columns,
    packed,
    round_groups,
)
from safetensors.torch import save_file
from torch import Tensor
from transformers.integrations.finegrained_fp8 import Fp8Dequantize
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from baton.core.errors import CheckpointError
from baton.engine.checkpoint.files.safetensors_file import read_safetensors
from baton.engine.checkpoint.files.tensor_files import TensorEntry
from baton.engine.checkpoint.quantized.entry import QuantizedEntry
from baton.engine.checkpoint.quantized.methods import as_whole, parse_layout

N, K, GROUP = 160, 256, 128
PLAIN_BYTES = 2 * N * K


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def read(
    folder: Path, parts: Mapping[str, Tensor], config: Mapping[str, Any], name: str = "m"
) -> Mapping[str, TensorEntry]:
    """The entries of a checkpoint that holds the parts of one module."""
    path = folder / "model.safetensors"
    save_file({f"{name}.{end}": part.contiguous() for end, part in parts.items()}, path)
    layout = parse_layout({"quantization_config": dict(config)})
    return as_whole(read_safetensors(path), layout, ())


def loaded(
    folder: Path, parts: Mapping[str, Tensor], config: Mapping[str, Any]
) -> tuple[QuantizedEntry, Tensor]:
    entries = read(folder, parts, config)
    entry = entries["m.weight"]
    assert set(entries) == {"m.weight"}
    assert isinstance(entry, QuantizedEntry)
    return entry, entry.load(torch.float32)


def complaint(folder: Path, parts: Mapping[str, Tensor], config: Mapping[str, Any]) -> str:
    with pytest.raises(CheckpointError) as refusal:
        read(folder, parts, config)
    return str(refusal.value)


def limits() -> dict[str, float]:
    """Of |W - W'| over the largest |W| that shares a scale, by layout, from the formats alone."""
    half, zeros = 0.5 / 7, 0.5 * 2 / 15
    float16 = 2.0**-11 * 8 / 7  # of the scale
    whole = {"gptq 4": half, "gptq 4, desc_act": half, "packed 4": half, "gptq 8": 0.5 / 127}
    cut = {"gptq 4, zeros": zeros, "gptq 4, v2": zeros, "awq": zeros, "packed 4, zeros": zeros}
    e4m3 = {name: 2.0**-4 for name in ("fp8 blocks", "fp8 tensor", "fp8 channel")}
    found = {**whole, **cut, **e4m3, "int8 channel": 0.5 / 127, "mxfp4": 1 / 3}
    return {name: limit + 2 * float16 for name, limit in found.items()}


@pytest.mark.parametrize("name", LAYOUTS)
def test_rounding_to_a_layout_costs_no_more_than_half_a_step(tmp_path: Path, name: str) -> None:
    weight = random(N, K)

    _, found = loaded(tmp_path, LAYOUTS[name].encode(weight), LAYOUTS[name].config)

    if name in ("gptq 4, desc_act", "fp8 tensor", "fp8 blocks"):
        largest = weight.abs().max().expand(N, K)  # groups are scattered, or wider than a row
    else:
        size = K if "channel" in name else 32 if name == "mxfp4" else GROUP
        groups = weight.view(N, -1, size)
        # With zeros a step follows from the range, which can be twice the largest number.
        largest = groups.abs().amax(-1, keepdim=True).expand_as(groups).reshape(N, K)
    assert found.shape == (N, K)
    assert bool(((found - weight).abs() <= limits()[name] * largest).all())
    assert not torch.equal(found, weight)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_product_is_off_by_no_more_than_the_roundings_of_its_terms(
    tmp_path: Path, name: str
) -> None:
    weight, x = random(N, K), random(7, K)

    _, found = loaded(tmp_path, LAYOUTS[name].encode(weight), LAYOUTS[name].config)

    bound = x.abs().sum(1, keepdim=True) * limits()[name] * weight.abs().max()
    assert bool(((x @ found.T - x @ weight.T).abs() <= bound).all())


@pytest.mark.parametrize("name", LAYOUTS)
def test_what_is_read_is_what_was_written_but_for_the_dtype(tmp_path: Path, name: str) -> None:
    entry, wide = loaded(tmp_path, LAYOUTS[name].encode(random(N, K)), LAYOUTS[name].config)

    assert torch.equal(entry.load(torch.bfloat16), wide.bfloat16())
    assert torch.equal(entry.load_matrix(0, torch.float32), wide)
    assert entry.num_bytes < PLAIN_BYTES


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_fingerprint_sees_every_part(tmp_path: Path, name: str) -> None:
    parts = LAYOUTS[name].encode(random(N, K))
    parts.pop("input_scale", None)
    entry, _ = loaded(tmp_path, parts, LAYOUTS[name].config)
    whole = entry.piece(0, entry.num_bytes)

    assert len(whole) == entry.num_bytes
    assert entry.piece(100, 3000) == whole[100:3100]
    for part in parts.values():
        assert bytes(part.contiguous().view(-1).view(torch.uint8).tolist()) in whole


def test_equal_bytes_that_mean_another_weight_have_another_fingerprint(tmp_path: Path) -> None:
    parts = gptq(random(N, K), is_symmetric=False)
    config = {"quant_method": "gptq", "bits": 4, "group_size": GROUP}
    one, as_one = loaded(tmp_path, parts, config)
    other, as_other = loaded(tmp_path, parts, {**config, "checkpoint_format": "gptq_v2"})

    assert one.piece(0, 64) != other.piece(0, 64)
    assert not torch.equal(as_one, as_other)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("has_order", [False, True])
@pytest.mark.parametrize("is_v2", [False, True])
def test_gptq_is_read_item_by_item_as_its_format_says(
    tmp_path: Path, bits: int, has_order: bool, is_v2: bool
) -> None:
    weight = random(32, 128)
    order = torch.randperm(128) if has_order else None
    parts = gptq(weight, bits, 32, is_symmetric=False, order=order, is_v2=is_v2)
    count, mask = 32 // bits, 2**bits - 1
    expected = torch.empty(32, 128)
    for n in range(32):
        for k in range(128):
            g = int(parts["g_idx"][k])
            q = int(parts["qweight"][k // count, n]) >> bits * (k % count) & mask
            word = int(parts["qzeros"][g, n // count])
            if not is_v2:  # to the whole word, which may carry
                word += sum(1 << at for at in range(0, 32, bits))
            zero = word >> bits * (n % count) & mask
            expected[n, k] = (q - zero) * parts["scales"][g, n].float()

    version = {"checkpoint_format": "gptq_v2"} if is_v2 else {}
    config = {"quant_method": "gptq", "bits": bits, "group_size": 32, "desc_act": has_order}
    _, found = loaded(tmp_path, parts, {**config, **version})

    assert torch.equal(found, expected)
    assert (found - weight).abs().max() < 0.3


def test_zeros_of_zero_borrow_from_their_neighbours_and_are_given_back(tmp_path: Path) -> None:
    """The first outputs have no number below zero, so that their zero is 0, stored as -1."""
    weight = random(32, 64)
    weight[::2] = weight[::2].abs()
    parts = gptq(weight, 4, 32, is_symmetric=False)
    assert int(round_groups(weight, 4, 32, is_symmetric=False).zeros.min()) == 0

    _, found = loaded(tmp_path, parts, {"quant_method": "gptq", "bits": 4, "group_size": 32})

    assert (found - weight).abs().max() < 0.2


def test_gptq_may_leave_out_the_groups_of_neighbours(tmp_path: Path) -> None:
    parts = gptq(random(N, K))
    config = {"quant_method": "gptq", "bits": 4, "group_size": GROUP}
    _, expected = loaded(tmp_path, parts, config)

    del parts["g_idx"]
    _, found = loaded(tmp_path, parts, config)

    assert torch.equal(found, expected)
    assert "lacks g_idx" in complaint(tmp_path, parts, {**config, "desc_act": True})


@pytest.mark.parametrize("method", ["gptq", "packed"])
def test_one_scale_for_a_whole_output(tmp_path: Path, method: str) -> None:
    weight = random(N, K)
    parts = (gptq if method == "gptq" else packed)(weight, 4, K)
    config = {"quant_method": "gptq", "bits": 4, "group_size": -1}
    if method == "packed":
        config = {"quant_method": "compressed-tensors", "format": "pack-quantized"}

    entry, found = loaded(tmp_path, parts, config)

    assert (found - weight).abs().max() <= weight.abs().max() * 0.08
    quantized = entry.quantized(torch.float32)
    assert quantized is not None
    assert torch.equal(quantized.to_dense(), found)


def test_a_word_of_awq_holds_outputs_in_its_own_order(tmp_path: Path) -> None:
    """Outputs 0, 2, 4, 6, 1, 3, 5, 7 from the lowest bits on."""
    lanes = torch.arange(8).view(1, 8).expand(GROUP, 8)
    word = sum(item << 4 * place for place, item in enumerate(AWQ_ORDER))
    qweight = pack_columns(lanes, 4, AWQ_ORDER)
    assert int(qweight[0, 0]) & 0xFFFFFFFF == word
    parts = {
        "qweight": qweight,
        "qzeros": torch.zeros(1, 1, dtype=torch.int32),
        "scales": torch.full((1, 8), 0.5, dtype=torch.float16),
    }

    _, found = loaded(tmp_path, parts, LAYOUTS["awq"].config)

    assert torch.equal(found, (torch.arange(8) * 0.5).view(8, 1).expand(8, GROUP))


@pytest.mark.parametrize("shape", [(256, 384), (128, 128)])
def test_blocks_of_e4m3_are_read_as_transformers_does(
    tmp_path: Path, shape: tuple[int, int]
) -> None:
    parts = fp8_blocks(random(*shape))

    _, found = loaded(tmp_path, parts, LAYOUTS["fp8 blocks"].config)

    theirs = Fp8Dequantize(None)._dequantize_one(  # type: ignore[no-untyped-call]
        parts["weight"], parts["weight_scale_inv"], torch.float32
    )
    assert torch.equal(found, theirs)


def test_blocks_at_the_edges_are_cut_off(tmp_path: Path) -> None:
    """As those of DeepSeek's latent projection, of 576 outputs."""
    weight = random(200, 300)
    parts = fp8_blocks(weight)

    entry, found = loaded(tmp_path, parts, LAYOUTS["fp8 blocks"].config)

    for n, k in ((0, 0), (127, 128), (128, 127), (199, 299)):
        scale = parts["weight_scale_inv"][n // 128, k // 128]
        assert found[n, k] == parts["weight"][n, k].float() * scale
    assert entry.quantized(torch.float32) is None  # kernels take whole blocks of inputs


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e8m0fnu])
def test_scales_of_blocks_may_be_short(tmp_path: Path, dtype: torch.dtype) -> None:
    parts = fp8_blocks(random(256, 256))
    parts["weight_scale_inv"] = torch.tensor([[0.5, 2.0], [0.25, 1.0]]).to(dtype)

    _, found = loaded(tmp_path, parts, LAYOUTS["fp8 blocks"].config)

    assert torch.equal(found[:128, 128:], parts["weight"][:128, 128:].float() * 2)


def test_stacks_of_experts_in_e4m3_are_read_one_by_one(tmp_path: Path) -> None:
    stack = [fp8_blocks(random(136, 256) * (expert + 1)) for expert in range(3)]
    parts = {end: torch.stack([each[end] for each in stack]) for end in stack[0]}

    entry, found = loaded(tmp_path, parts, LAYOUTS["fp8 blocks"].config)

    for expert, each in enumerate(stack):
        _, alone = loaded(tmp_path, each, LAYOUTS["fp8 blocks"].config)
        assert torch.equal(found[expert], alone)
        assert torch.equal(as_whole_of(tmp_path, parts).load_matrix(expert, torch.float32), alone)
        quantized = entry.quantized(torch.float32, expert)
        assert quantized is not None
        assert torch.equal(quantized.to_dense(), alone)


def as_whole_of(folder: Path, parts: Mapping[str, Tensor]) -> TensorEntry:
    return read(folder, parts, LAYOUTS["fp8 blocks"].config)["m.weight"]


def test_experts_in_mxfp4_are_read_as_transformers_does(tmp_path: Path) -> None:
    blocks, scales = mxfp4(random(3, 64, 96))
    entries = read(
        tmp_path,
        {"gate_up_proj_blocks": blocks, "gate_up_proj_scales": scales},
        {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]},
    )

    entry = entries["m.gate_up_proj"]

    theirs = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    assert entry.shape == theirs.shape == (3, 96, 64)
    assert torch.equal(entry.load(torch.float32), theirs)
    assert torch.equal(entry.load(torch.bfloat16), theirs.bfloat16())
    assert torch.equal(entry.load_matrix(2, torch.float32), theirs[2])


def test_numbers_of_e2m1_are_exact(tmp_path: Path) -> None:
    weight = torch.tensor([*E2M1, *(-value for value in E2M1)]).repeat(4).view(2, 32) * 2.0**-9
    blocks, scales = mxfp4(weight)

    _, found = loaded(
        tmp_path,
        {"weight_packed": blocks.flatten(-2), "weight_scale": scales},
        LAYOUTS["mxfp4"].config,
    )

    assert torch.equal(found, weight)


def test_scales_of_activations_and_of_kv_are_not_taken_for_weights(tmp_path: Path) -> None:
    extra = {"input_scale": torch.ones(1), "k_scale": torch.ones(1), "v_scale": torch.ones(1)}

    entries = read(tmp_path, {**fp8_blocks(random(N, K)), **extra}, LAYOUTS["fp8 blocks"].config)

    assert set(entries) == {"m.weight"}


def test_modules_that_are_not_quantised_are_left_as_they_are(tmp_path: Path) -> None:
    save_file(
        {
            **{f"a.{end}": part for end, part in gptq(random(N, K)).items()},
            "a.bias": torch.zeros(N),
            "b.weight": random(N, K),
            "b.bias": torch.zeros(N),
        },
        tmp_path / "model.safetensors",
    )
    stored = read_safetensors(tmp_path / "model.safetensors")
    layout = parse_layout({"quantization_config": dict(LAYOUTS["gptq 4"].config)})

    assert set(as_whole(stored, layout, ())) == {"a.weight", "b.weight", "b.bias"}
    assert "a.bias" in as_whole(stored, layout, ("a.bias",))
    assert as_whole(stored, None, ()) is stored


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("gptq", "`quantization_config` must be an object"),
        ({"quant_method": "bitsandbytes"}, "quant_method` is 'bitsandbytes'; supported are gptq"),
        ({"quant_method": "gptq", "bits": 3}, "`quantization_config.bits` must be 4 or 8, not 3"),
        ({"quant_method": "gptq"}, "`quantization_config.bits` is missing"),
        (
            {"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"},
            "`quantization_config.checkpoint_format` is 'marlin'; supported is 'gptq' or",
        ),
        (
            {"quant_method": "gptq", "bits": 4, "dynamic": {"+:lm_head": {"bits": 8}}},
            "`quantization_config.dynamic` may only leave modules out",
        ),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "version` must be 'gemm'"),
        ({"quant_method": "awq", "bits": 4, "format": "gemv"}, "format` must be 'gemm'"),
        (
            {"quant_method": "compressed-tensors", "transform_config": {"config_groups": {}}},
            "`quantization_config.transform_config` is given",
        ),
        ({"quant_method": "awq", "bits": 4, "zero_point": False}, "zero_point` must be true"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "weight_block_size` must be two"),
        ({"quant_method": "fp8", "fmt": "e5m2"}, "`quantization_config.fmt` is 'e5m2'"),
        (
            {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"},
            "format` is 'nvfp4-pack-quantized'; supported is 'int-quantized'",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"type": "float", "num_bits": 6}}},
            },
            "`quantization_config.config_groups.group_0.weights.num_bits` must be 4 or 8",
        ),
    ],
)
def test_what_is_not_understood_is_refused_by_its_key(section: object, said: str) -> None:
    with pytest.raises(CheckpointError) as refusal:
        parse_layout({"quantization_config": section})

    assert said in str(refusal.value)


def test_the_section_of_a_model_of_several_parts_is_found() -> None:
    section = {"quant_method": "awq", "bits": 4}

    assert parse_layout({"text_config": {"quantization_config": section}}) is not None
    assert parse_layout({"compression_config": {"quant_method": "compressed-tensors"}}) is not None
    assert parse_layout(json.loads('{"quantization_config": null}')) is None


def without(parts: dict[str, Tensor], end: str) -> dict[str, Tensor]:
    return {name: part for name, part in parts.items() if name != end}


def test_parts_that_are_missing_or_do_not_fit_are_named(tmp_path: Path) -> None:
    weight = random(N, K)
    whole, blocks = gptq(weight), fp8_blocks(weight)
    config = LAYOUTS["gptq 4"].config

    assert "m has a qweight but lacks scales" in complaint(
        tmp_path, without(whole, "scales"), config
    )
    assert f"m.scales is F16 [2, {N}], not F16 or BF16 or F32 [4, {N}]" in complaint(
        tmp_path, whole, {**config, "group_size": 64}
    )
    assert "m.g_idx is I32 [7]" in complaint(
        tmp_path, {**whole, "g_idx": whole["g_idx"][:7]}, config
    )
    assert "neither m.weight_scale_inv nor m.weight_scale" in complaint(
        tmp_path, without(blocks, "weight_scale_inv"), LAYOUTS["fp8 blocks"].config
    )
    assert "one, or one for each output or for each 64 x 64" in complaint(
        tmp_path, blocks, {"quant_method": "fp8", "weight_block_size": [64, 64]}
    )
    assert "m.weight is F8_E5M2" in complaint(
        tmp_path,
        {**blocks, "weight": blocks["weight"].float().to(torch.float8_e5m2)},
        LAYOUTS["fp8 blocks"].config,
    )
    assert "m.weight_packed has no m.weight_shape" in complaint(
        tmp_path, without(packed(weight), "weight_shape"), LAYOUTS["packed 4"].config
    )
    assert "has no m.x_scales beside it" in complaint(
        tmp_path, {"x_blocks": mxfp4(weight)[0]}, {"quant_method": "mxfp4"}
    )


def test_bits_of_items_follow_from_the_shapes_they_are_packed_in(tmp_path: Path) -> None:
    weight = random(N, K)

    _, found = loaded(tmp_path, packed(weight, 8), LAYOUTS["packed 4"].config)

    assert (found - weight).abs().max() < 0.02
