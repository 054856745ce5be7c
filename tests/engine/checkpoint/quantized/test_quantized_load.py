"""Loading with fewer bits: which weights are rounded, and where that is refused."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from tests.engine.prepared_weights import as_tensor, weights_of
from tests.tiny_checkpoints import FAMILIES, make_llama, make_qwen3

from baton.core.errors import InvalidConfig
from baton.engine.checkpoint.install import install, rounding_of
from baton.engine.checkpoint.load import check_model, load_model
from baton.kernels.cpu import operators
from baton.kernels.experts.packed_quantized_experts import PackedQuantizedExperts
from baton.kernels.products.packed_quantized_weight import PackedQuantizedWeight
from baton.kernels.products.quantized_weight import QuantizedWeight


def bits_of(folder: Path, quantize: str) -> dict[str, int]:
    weights = weights_of(load_model(folder, quantize=quantize).model)
    return {name: w.bits for name, w in weights if isinstance(w, PackedQuantizedWeight)}


@pytest.mark.parametrize("quantize", ["int8", "int4"])
def test_all_matrices_that_are_multiplied_have_few_bits(tmp_path: Path, quantize: str) -> None:
    found = bits_of(make_llama(tmp_path), quantize)

    in_blocks = {name: bits for name, bits in found.items() if name.startswith("blocks")}
    assert len(in_blocks) == 2 * 4
    assert set(in_blocks.values()) == {8 if quantize == "int8" else 4}
    assert found["head.weight"] == 8
    assert "embed.weight" not in found


def test_a_table_that_is_the_head_as_well_has_eight_bits(tmp_path: Path) -> None:
    found = bits_of(make_qwen3(tmp_path, tie_word_embeddings=True), "int4")

    assert found["embed.weight"] == 8
    assert "head.weight" not in found


def test_none_leaves_all_as_it_is(tmp_path: Path) -> None:
    assert bits_of(make_llama(tmp_path), "none") == {}


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_weights_of_every_family_are_near_those_of_the_checkpoint(
    tmp_path: Path, family: str
) -> None:
    folder = FAMILIES[family](tmp_path)
    exact = dict(weights_of(load_model(folder).model))
    for name, weight in weights_of(load_model(folder, quantize="int8").model):
        wanted, found = as_tensor(exact[name]).float(), as_tensor(weight).float()
        is_rounded = isinstance(weight, PackedQuantizedWeight | PackedQuantizedExperts)
        step = wanted.abs().max() / 127 if is_rounded else 0
        assert (found - wanted).abs().max() <= step * 0.51


def test_the_model_says_what_it_is_and_is_another(tmp_path: Path) -> None:
    folder = make_llama(tmp_path)
    infos = [load_model(folder, quantize=quantize).info for quantize in ("none", "int8", "int4")]

    assert [info.quantize for info in infos] == ["none", "int8", "int4"]
    assert len({info.fingerprint for info in infos}) == 3


@pytest.mark.parametrize("quantize", ["int8", "int4"])
def test_devices_other_than_the_cpu_get_weights_for_triton(tmp_path: Path, quantize: str) -> None:
    folder = make_llama(tmp_path)
    model, weight = load_model(folder).model, torch.randn(48, 64)

    install(model, "blocks.0.attn.qkv.weight", weight, "cpu:0", quantize)
    install(model, "head.weight", weight, "cpu:0", quantize)

    found = dict(weights_of(model))
    kept, head = found["blocks.0.attn.qkv.weight"], found["head.weight"]
    assert isinstance(kept, QuantizedWeight)
    assert isinstance(head, QuantizedWeight)
    assert kept.items.dtype is (torch.int8 if quantize == "int8" else torch.uint8)
    assert head.items.dtype is torch.int8


def test_weights_that_devices_round_otherwise_are_another_model() -> None:
    """Their KV differs: nobody must go on from that of another."""
    quantized, wide = torch.float16, torch.float32  # for float16 there are no operators
    ways = [("cpu", quantized), ("cpu", wide), ("cuda:0", wide)]

    assert len({rounding_of("int4", *way) for way in ways}) == (
        3 if operators.runs(torch.ones(1)) else 2
    )
    assert len({rounding_of("none", *way) for way in ways}) == 1


def test_a_width_that_is_no_groups_of_four_bits_is_refused_with_the_remedy(tmp_path: Path) -> None:
    model = load_model(make_llama(tmp_path)).model

    with pytest.raises(InvalidConfig, match=r"blocks\.0\.attn\.qkv\.weight: K = 40 .* int8"):
        install(model, "blocks.0.attn.qkv.weight", torch.randn(48, 40), "cpu:0", "int4")


def test_other_devices_and_other_bits_are_refused(tmp_path: Path) -> None:
    folder = make_llama(tmp_path)

    with pytest.raises(InvalidConfig, match="meta"):
        load_model(folder, quantize="int8", device="meta")
    with pytest.raises(InvalidConfig, match="int8, int4"):
        load_model(folder, quantize="int3")


@pytest.mark.parametrize("quantize", ["int8", "int4"])
def test_a_dtype_whose_products_are_never_compiled_is_refused_with_the_remedy(
    quantize: str, tmp_path: Path
) -> None:
    folder = make_llama(tmp_path)
    refusal = f"'{quantize}' with dtype 'float16' is not supported on a CPU.* float32 or bfloat16"

    with pytest.raises(InvalidConfig, match=refusal):
        load_model(folder, dtype="float16", quantize=quantize)
    with pytest.raises(InvalidConfig, match=refusal):
        check_model(folder, dtype="float16", quantize=quantize, device="cpu")


def test_what_a_device_elsewhere_multiplies_is_for_it_to_say(tmp_path: Path) -> None:
    check_model(make_llama(tmp_path), dtype="float16", quantize="int8")


def test_without_compiled_products_it_is_said_that_they_are_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(operators, "runs", lambda *tensors: False)

    with caplog.at_level(logging.WARNING):
        loaded = load_model(make_llama(tmp_path), quantize="int4")

    assert "slow" in caplog.text
    assert all(torch.isfinite(as_tensor(weight)).all() for _, weight in weights_of(loaded.model))
