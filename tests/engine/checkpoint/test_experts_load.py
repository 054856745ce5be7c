"""Checkpoints of experts: a tensor each, all in one, of which one is missing, in few bits."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.engine.model_runs import assert_near, logits_in_chunks, make_prompt, make_runner
from tests.engine.prepared_weights import as_tensor, weights_of
from tests.tiny_checkpoints import (
    FAMILIES,
    make_llama4,
    make_mixtral,
    make_qwen2_moe,
    make_qwen3_moe,
)
from torch import Tensor

from baton.core.errors import CheckpointError, InvalidConfig
from baton.engine.checkpoint.install import install_expert
from baton.engine.checkpoint.load import load_model, read_config
from baton.engine.checkpoint.prepared_bytes import prepared_bytes
from baton.engine.layers.moe import Experts
from baton.engine.models.registry import family_of
from baton.kernels.experts.packed_quantized_experts import PackedQuantizedExperts
from baton.kernels.experts.quantized_experts import QuantizedExperts

EXPERT = re.compile(r"(.*\.experts\.)(\d+)\.(\w+)\.weight")
PARTS = {
    "gate_up_proj": (("w1", "w3"), ("gate_proj", "up_proj")),
    "down_proj": (("w2",), ("down_proj",)),
}
"""Of Mixtral, and of Qwen."""


def edit_tensors(folder: Path, edit: Callable[[dict[str, Tensor]], Mapping[str, Tensor]]) -> None:
    save_file(dict(edit(load_file(folder / "model.safetensors"))), folder / "model.safetensors")


def fuse(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """As transformers 5 holds them: [E, 2F, D] and [E, D, F]."""
    fused = {name: tensor for name, tensor in tensors.items() if not EXPERT.match(name)}
    experts = [found.groups() for name in tensors if (found := EXPERT.match(name))]
    for prefix in {prefix for prefix, _, _ in experts}:
        numbers = sorted({int(number) for start, number, _ in experts if start == prefix})
        is_mixtral = "block_sparse_moe" in prefix
        for target, names in PARTS.items():
            each = [
                torch.cat([tensors[f"{prefix}{e}.{part}.weight"] for part in names[not is_mixtral]])
                for e in numbers
            ]
            fused[prefix + target] = torch.stack(each)
    return {name.replace("block_sparse_moe", "mlp"): tensor for name, tensor in fused.items()}


@pytest.mark.parametrize("make", [make_mixtral, make_qwen2_moe, make_qwen3_moe])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_experts_in_one_tensor_are_those_that_have_each_their_own(
    make: Callable[..., Path], dtype: str, tmp_path: Path
) -> None:
    folder = make(tmp_path)
    apart = dict(weights_of(load_model(folder, dtype=dtype).model))
    edit_tensors(folder, fuse)
    reports: list[tuple[int, int]] = []

    together = load_model(
        folder, dtype=dtype, progress=lambda done, total: reports.append((done, total))
    )

    for name, weight in weights_of(together.model):
        assert torch.equal(as_tensor(weight), as_tensor(apart[name])), name
    assert reports == sorted(reports)
    assert reports[-1][0] == reports[-1][1]


def test_llama_4_is_found_within_a_model_that_sees_as_well(tmp_path: Path) -> None:
    folder, prompt = make_llama4(tmp_path), make_prompt(30)
    alone = logits_in_chunks(make_runner(folder), prompt, 7)
    path = folder / "config.json"
    config = {
        "architectures": ["Llama4ForConditionalGeneration"],
        "text_config": json.loads(path.read_text()),
        "vision_config": {"hidden_size": 8},
    }
    path.write_text(json.dumps(config))

    edit_tensors(
        folder,
        lambda tensors: {
            **{f"language_model.{name}": tensor for name, tensor in tensors.items()},
            "vision_model.patch_embedding.linear.weight": torch.ones(3, 8),
            "multi_modal_projector.linear_1.weight": torch.ones(2, 2),
        },
    )

    within = make_runner(folder)
    assert torch.equal(logits_in_chunks(within, prompt, 7), alone)
    assert within.info.architecture == "Llama4ForConditionalGeneration"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"no_rope_layers": [1, 0]}, "`no_rope_layers` must be 4 times 0 or 1"),
        ({"layer_types": ["sliding_attention"] * 4}, "`layer_types` must be 4 times"),
        ({"moe_layers": [9]}, "`moe_layers` must be numbers of layers below 4"),
        ({"intermediate_size_mlp": "wide"}, "`intermediate_size_mlp` must be a positive integer"),
    ],
)
def test_keys_of_llama_4_that_make_no_sense_are_named(
    change: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    folder = make_llama4(tmp_path)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))

    with pytest.raises(CheckpointError, match=complaint):
        read_config(folder)


@pytest.mark.parametrize("name", ["mixtral", "qwen2 moe", "qwen3 moe", "llama4"])
@pytest.mark.parametrize("quantize", ["none", "int8", "int4"])
def test_the_memory_of_experts_is_known_before_they_are_read(
    name: str, quantize: str, tmp_path: Path
) -> None:
    folder = FAMILIES[name](tmp_path)
    config = read_config(folder)
    planned = family_of(config.architecture).build(config)

    loaded = load_model(folder, dtype="bfloat16", quantize=quantize).model

    for prefix, module in loaded.named_modules():
        if isinstance(module, Experts):
            found = module.gate_up.nbytes + module.down.nbytes
            wanted = prepared_bytes(planned.get_submodule(prefix), "bfloat16", quantize)
            assert found >= wanted  # panels are filled up
            assert found < 1.5 * wanted


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("model.layers.1.block_sparse_moe.experts.4.w3.weight", "missing tensors: {name}"),
        ("model.layers.0.block_sparse_moe.gate.weight", "missing tensors: {name}"),
    ],
)
def test_an_expert_that_is_lost_is_missed(name: str, complaint: str, tmp_path: Path) -> None:
    folder = make_mixtral(tmp_path)

    edit_tensors(folder, lambda tensors: {k: v for k, v in tensors.items() if k != name})

    with pytest.raises(CheckpointError, match=complaint.format(name=re.escape(name))):
        load_model(folder)


def test_experts_of_an_odd_width_are_multiplied_as_they_are(tmp_path: Path) -> None:
    """Two numbers of a row lie together where operators multiply bfloat16."""
    folder, prompt = make_mixtral(tmp_path, intermediate_size=47), make_prompt(20)
    exact = logits_in_chunks(make_runner(folder), prompt, 7)

    found = logits_in_chunks(make_runner(folder, dtype="bfloat16"), prompt, 7)

    assert (found - exact).square().mean(-1).sqrt().median() < 0.1 * exact.std()


def test_an_expert_too_many_is_refused(tmp_path: Path) -> None:
    folder = make_mixtral(tmp_path)
    name = "model.layers.0.block_sparse_moe.experts.5.w1.weight"

    edit_tensors(folder, lambda tensors: {**tensors, name: torch.zeros(48, 32)})

    with pytest.raises(CheckpointError, match=f"unexpected tensors: {name}"):
        load_model(folder)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"num_experts_per_tok": 9}, "9 of 5 experts"),
        ({"num_local_experts": None}, "`num_experts` is missing"),
        ({"num_local_experts": "many"}, "`num_local_experts` must be a positive integer"),
    ],
)
def test_keys_that_make_no_sense_are_named(
    change: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    folder = make_mixtral(tmp_path)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))

    with pytest.raises(CheckpointError, match=complaint):
        read_config(folder)


def test_dense_layers_are_where_the_configuration_says(tmp_path: Path) -> None:
    layers = {"num_hidden_layers": 6, "decoder_sparse_step": 2, "mlp_only_layers": [3]}
    folder = make_qwen3_moe(tmp_path, **layers)

    found = [layer.moe is not None for layer in read_config(folder).layers]

    assert found == [False, True, False, False, False, True]


@pytest.mark.parametrize("quantize", ["int8", "int4"])
def test_experts_and_shared_ones_are_quantised_and_routers_are_not(
    quantize: str, tmp_path: Path
) -> None:
    folder = make_qwen2_moe(tmp_path)

    loaded = load_model(folder, quantize=quantize)

    found = dict(weights_of(loaded.model))
    experts = found["blocks.0.ffn.experts.gate_up"]
    assert isinstance(experts, PackedQuantizedExperts)
    assert experts.bits == (8 if quantize == "int8" else 4)
    exact = dict(weights_of(load_model(folder).model))
    for name in ("blocks.1.ffn.router.weight", "blocks.1.ffn.shared_gate.weight"):
        assert torch.equal(as_tensor(found[name]), as_tensor(exact[name]))
    for name in ("blocks.1.ffn.shared.down.weight", "blocks.1.ffn.experts.down"):
        assert not torch.equal(as_tensor(found[name]), as_tensor(exact[name]))


def test_a_model_of_experts_in_eight_bits_is_near_the_exact_one(tmp_path: Path) -> None:
    folder, prompt = make_mixtral(tmp_path, num_experts_per_tok=5), make_prompt(30)

    exact = logits_in_chunks(make_runner(folder), prompt, 7)
    found = logits_in_chunks(make_runner(folder, quantize="int8"), prompt, 7)

    assert (found - exact).square().mean().sqrt() < 0.1 * exact.std()


@pytest.mark.parametrize("quantize", ["int8", "int4"])
def test_devices_other_than_the_cpu_get_experts_for_triton(quantize: str, tmp_path: Path) -> None:
    """As a GPU would: `cpu:0` is no device that operators run on."""
    model = load_model(make_mixtral(tmp_path)).model
    experts = model.get_submodule("blocks.0.ffn.experts")
    assert isinstance(experts, Experts)
    experts.down = torch.nn.Parameter(torch.empty(5, 32, 64, device="meta"), False)
    weights = torch.randn(5, 32, 64, generator=torch.Generator().manual_seed(0))

    for expert, weight in enumerate(weights):
        install_expert(model, "blocks.0.ffn.experts.down", expert, weight, "cpu:0", quantize)

    kept: object = experts.down
    assert isinstance(kept, QuantizedExperts)
    steps = weights.abs().amax() / (127 if quantize == "int8" else 7)
    assert (as_tensor(kept) - weights).abs().max() <= steps * 0.51


def test_a_width_that_is_no_groups_of_four_bits_is_refused_with_the_remedy(tmp_path: Path) -> None:
    model = load_model(make_mixtral(tmp_path)).model

    with pytest.raises(InvalidConfig, match=r"experts\.down: K = 48 .* set quantize to int8"):
        install_expert(model, "blocks.0.ffn.experts.down", 0, torch.ones(32, 48), "cpu:0", "int4")


@pytest.mark.parametrize("make", [make_mixtral, make_qwen3_moe, make_llama4])
def test_weights_made_up_are_one_model_whatever_reads_them(
    make: Callable[..., Path], tmp_path: Path
) -> None:
    folder = make(tmp_path)
    one, other = (make_runner(folder, load_format="dummy") for _ in range(2))

    logits = logits_in_chunks(one, make_prompt(20), 7)

    assert one.info.fingerprint == other.info.fingerprint
    assert logits.isfinite().all()
    assert 0.01 < logits.std() < 10
    assert_near(logits_in_chunks(other, make_prompt(20), 7), logits)
