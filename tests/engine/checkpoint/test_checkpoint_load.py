"""Loading: what is read, and what is said when it cannot be."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.engine.prepared_weights import as_tensor, weights_of
from tests.tiny_checkpoints import EOS, VOCAB_SIZE, make_llama, make_qwen3

from baton.core.errors import CheckpointError
from baton.engine.checkpoint.load import LoadedModel, load_model, read_config
from baton.engine.checkpoint.serving_dtype import serving_dtype
from baton.platform.doctor.demand import served_dtype

Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("original"))


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "model"))


def edit_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def edit_tensors(folder: Path, edit: Callable[[Tensors], None]) -> None:
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors")


def complaint(folder: Path, **options: Any) -> str:
    with pytest.raises(CheckpointError) as refusal:
        load_model(folder, **options)
    return str(refusal.value)


def weights(folder: Path, **options: Any) -> Tensors:
    return tensors_of(load_model(folder, **options))


def tensors_of(loaded: LoadedModel) -> Tensors:
    return {name: as_tensor(weight) for name, weight in weights_of(loaded.model)}


def test_the_model_is_described_as_its_folder_says(folder: Path) -> None:
    info = load_model(folder).info

    assert info.architecture == "LlamaForCausalLM"
    assert (info.vocab_size, info.max_model_len, info.dtype) == (VOCAB_SIZE, 512, "float32")
    assert (info.num_layers, info.num_kv_heads, info.head_dim) == (2, 2, 8)
    assert info.eos_token_ids == (EOS,)
    layout = info.layout(16)
    assert (layout.block_size, layout.block_bytes) == (16, 2 * 2 * 2 * 16 * 8 * 4)
    assert layout.model_fingerprint == info.fingerprint


def test_end_tokens_come_from_the_generation_config_first(folder: Path) -> None:
    edit_json(folder / "config.json", eos_token_id=[4, 5])
    edit_json(folder / "generation_config.json", eos_token_id=None)
    assert load_model(folder).info.eos_token_ids == (4, 5)

    edit_json(folder / "generation_config.json", eos_token_id=[6, 7])
    assert load_model(folder).info.eos_token_ids == (6, 7)

    (folder / "generation_config.json").unlink()
    assert load_model(folder).info.eos_token_ids == (4, 5)


def test_shards_give_the_same_weights_as_one_file(tmp_path: Path) -> None:
    one = make_llama(tmp_path / "one")
    many = make_llama(tmp_path / "many", max_shard_size="10KB")
    assert len(list(many.glob("*.safetensors"))) > 2

    expected = weights(one)

    found = weights(many)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_weights_are_cast_to_the_wanted_dtype(folder: Path) -> None:
    exact = weights(folder)

    for dtype in ("bfloat16", "float16"):
        loaded = load_model(folder, dtype=dtype)
        assert loaded.info.dtype == dtype
        for name, weight in tensors_of(loaded).items():
            assert torch.equal(weight, exact[name].to(getattr(torch, dtype)))


def test_the_dtype_is_the_declared_one_else_that_of_the_tensors(tmp_path: Path) -> None:
    folder = make_llama(tmp_path, dtype=torch.bfloat16)
    assert load_model(folder).info.dtype == "bfloat16"

    edit_json(folder / "config.json", dtype="float32")
    assert load_model(folder).info.dtype == "float32"

    edit_json(folder / "config.json", dtype=None)
    assert load_model(folder).info.dtype == "bfloat16"
    assert "supported are auto, float32" in complaint(folder, dtype="int8")


def test_what_declares_float16_is_served_by_the_operators_of_a_cpu_and_can_be_rounded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = make_llama(tmp_path, dtype=torch.float16)
    exact = load_file(folder / "model.safetensors")["model.norm.weight"]

    with caplog.at_level(logging.WARNING):
        loaded = load_model(folder)

    assert loaded.info.dtype == "bfloat16"
    assert tensors_of(loaded)["norm.weight"].dtype is torch.bfloat16
    assert torch.equal(tensors_of(loaded)["norm.weight"], exact.bfloat16())
    [said] = [record.message for record in caplog.records if "float16" in record.message]
    assert "served as bfloat16" in said
    assert load_model(folder, quantize="int4").info.dtype == "bfloat16"
    assert load_model(folder, dtype="float16").info.dtype == "float16"
    assert serving_dtype("auto", "float16", "cuda") == "float16"
    assert served_dtype("auto", read_config(folder), "cpu") == "bfloat16"


def test_progress_is_reported_in_bytes(folder: Path) -> None:
    reports: list[tuple[int, int]] = []

    load_model(folder, progress=lambda done, total: reports.append((done, total)))

    tensors = load_file(folder / "model.safetensors").values()
    total = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    assert reports[-1] == (total, total)
    assert reports == sorted(reports) and len(reports) == len(tensors)


def test_an_unknown_architecture_is_refused_with_the_known_ones(folder: Path) -> None:
    edit_json(folder / "config.json", architectures=["MambaForCausalLM"])

    text = complaint(folder)

    assert "'MambaForCausalLM'" in text
    assert "known are LlamaForCausalLM, MistralForCausalLM" in text


def test_missing_unexpected_and_misshapen_tensors_are_named(folder: Path) -> None:
    def spoil(tensors: Tensors) -> None:
        del tensors["model.layers.1.mlp.up_proj.weight"]
        tensors["model.layers.0.self_attn.q_proj.bias"] = torch.zeros(32)
        tensors["model.layers.0.self_attn.k_proj.weight"] = torch.zeros(24, 32)
        tensors["model.norm.weight"] = torch.zeros(32, dtype=torch.int32)

    edit_tensors(folder, spoil)
    text = complaint(folder)

    assert "missing tensors: model.layers.1.mlp.up_proj.weight" in text
    assert "unexpected tensors: model.layers.0.self_attn.q_proj.bias" in text
    assert "model.layers.0.self_attn.k_proj.weight is [24, 32], not [16, 32]" in text
    assert "model.norm.weight is I32" in text


def test_a_head_that_is_not_there_is_missed_unless_it_is_tied(folder: Path) -> None:
    def behead(tensors: Tensors) -> None:
        del tensors["lm_head.weight"]

    edit_tensors(folder, behead)
    assert "missing tensors: lm_head.weight" in complaint(folder)

    edit_json(folder / "config.json", tie_word_embeddings=True)
    assert load_model(folder).model.head is None


def test_what_old_checkpoints_store_in_excess_is_ignored(folder: Path) -> None:
    def add(tensors: Tensors) -> None:
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(4)

    edit_tensors(folder, add)
    edit_json(folder / "config.json", tie_word_embeddings=True)  # and there is an lm_head.weight

    load_model(folder)


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_a_truncated_file_is_refused(folder: Path, keep: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])

    assert str(path) in complaint(folder)


def test_a_file_of_something_else_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")

    assert "is no safetensors file" in complaint(folder)


def test_missing_files_are_named(folder: Path, tmp_path: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert "neither model.safetensors nor model.safetensors.index.json" in complaint(folder)

    (folder / "config.json").unlink()
    assert "config.json does not exist" in complaint(folder)
    assert "config.json does not exist" in complaint(tmp_path / "nowhere")


def test_missing_or_lying_shards_are_named(tmp_path: Path) -> None:
    folder = make_llama(tmp_path, max_shard_size="10KB")
    index = folder / "model.safetensors.index.json"
    weight_map = json.loads(index.read_text())["weight_map"]
    first, last = sorted(set(weight_map.values()))[:: len(set(weight_map.values())) - 1]
    stray = next(tensor for tensor, file in weight_map.items() if file == first)

    edit_json(index, weight_map={**weight_map, stray: last})
    assert f"lists tensors that are not in its files: {stray}" in complaint(folder)

    edit_json(index, weight_map={**weight_map, stray: "../elsewhere.safetensors"})
    assert "outside its folder" in complaint(folder)

    edit_json(index, weight_map=weight_map)
    (folder / last).unlink()
    assert f"{last} does not exist" in complaint(folder)


def test_qwen3_has_its_own_defaults(tmp_path: Path) -> None:
    folder = make_qwen3(tmp_path, head_dim=128, num_attention_heads=32, num_key_value_heads=32)
    raw = json.loads((folder / "config.json").read_text())
    for key in ("head_dim", "num_key_value_heads", "max_position_embeddings"):
        del raw[key]
    (folder / "config.json").write_text(json.dumps(raw))

    info = load_model(folder).info

    assert (info.head_dim, info.num_kv_heads, info.max_model_len) == (128, 32, 32768)
