"""`pytorch_model.bin`: the same model as from safetensors, and nothing but a model."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.engine.prepared_weights import as_tensor, weights_of
from tests.tiny_checkpoints import make_llama

from baton.core.errors import CheckpointError
from baton.engine.checkpoint.load import LoadedModel, check_model, load_model

NAME = "pytorch_model.bin"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("original"))


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    """The original as a `.bin`."""
    folder = Path(shutil.copytree(original, tmp_path / "model"))
    torch.save(load_file(folder / "model.safetensors"), folder / NAME)
    (folder / "model.safetensors").unlink()
    return folder


def split(folder: Path) -> dict[str, str]:
    """Cut the `.bin` into two shards and return the map of its index."""
    tensors = torch.load(folder / NAME, weights_only=True)
    (folder / NAME).unlink()
    weight_map: dict[str, str] = {}
    for number in range(2):
        file = f"pytorch_model-0000{number + 1}-of-00002.bin"
        shard = dict(list(tensors.items())[number::2])
        torch.save(shard, folder / file)
        weight_map |= dict.fromkeys(shard, file)
    write_index(folder, weight_map)
    return weight_map


def write_index(folder: Path, weight_map: dict[str, Any]) -> None:
    (folder / f"{NAME}.index.json").write_text(json.dumps({"weight_map": weight_map}))


def complaint(folder: Path) -> str:
    with pytest.raises(CheckpointError) as refusal:
        check_model(folder)
    return str(refusal.value)


def assert_same(found: LoadedModel, expected: LoadedModel) -> None:
    assert found.info == expected.info
    weights, wanted = dict(weights_of(found.model)), dict(weights_of(expected.model))
    assert weights.keys() == wanted.keys()
    assert all(torch.equal(as_tensor(weights[name]), as_tensor(wanted[name])) for name in wanted)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_it_is_the_model_of_the_safetensors_fingerprint_and_all(
    folder: Path, original: Path, dtype: str
) -> None:
    assert_same(load_model(folder, dtype=dtype), load_model(original, dtype=dtype))


def test_shards_are_one_model(folder: Path, original: Path) -> None:
    split(folder)

    assert_same(load_model(folder), load_model(original))


def test_files_from_before_torch_1_6_are_read(folder: Path, original: Path) -> None:
    tensors = torch.load(folder / NAME, weights_only=True)
    torch.save(tensors, folder / NAME, _use_new_zipfile_serialization=False)

    assert_same(load_model(folder), load_model(original))


def test_parameters_and_transposed_views_are_tensors_too(folder: Path, original: Path) -> None:
    tensors = torch.load(folder / NAME, weights_only=True)
    name = "model.layers.0.mlp.up_proj.weight"
    tensors[name] = tensors[name].t().contiguous().t()
    tensors["model.norm.weight"] = torch.nn.Parameter(tensors["model.norm.weight"])
    torch.save(tensors, folder / NAME)

    assert_same(load_model(folder), load_model(original))


def test_safetensors_are_preferred(folder: Path, original: Path) -> None:
    shutil.copy(original / "model.safetensors", folder)
    (folder / NAME).write_bytes(b"never looked at")

    assert_same(load_model(folder), load_model(original))


def test_large_tensors_have_the_same_fingerprint_too_whatever_their_strides(tmp_path: Path) -> None:
    folder = make_llama(tmp_path / "model", vocab_size=8192)  # an embedding of 1 MiB
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    tensors = load_file(copy / "model.safetensors")
    name = "model.embed_tokens.weight"
    tensors[name] = tensors[name].t().contiguous().t()
    torch.save(tensors, copy / NAME)
    (copy / "model.safetensors").unlink()

    assert_same(load_model(copy), load_model(folder))


class Intruder:
    """Runs a command when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.trace}",)


@pytest.mark.parametrize("is_zip", [True, False])
def test_a_hostile_pickle_is_refused_and_not_run(folder: Path, is_zip: bool) -> None:
    trace = folder / "trace"
    tensors = torch.load(folder / NAME, weights_only=True)
    hostile = {**tensors, "model.norm.weight": Intruder(trace)}
    torch.save(hostile, folder / NAME, _use_new_zipfile_serialization=is_zip)

    text = complaint(folder)

    assert not trace.exists()
    assert f"{folder / NAME} was not loaded, because it holds something other" in text
    assert "weights_only" not in text  # torch recommends to turn it off


@pytest.mark.parametrize(
    "content",
    [
        [torch.zeros(2)],
        {"state_dict": {"a": torch.zeros(2)}, "epoch": 3},
        {0: torch.zeros(2)},
        {"a": torch.zeros(2, device="meta")},
        {"a": torch.eye(2).to_sparse()},
    ],
    ids=["list", "nested", "numbered", "without data", "sparse"],
)
def test_what_is_no_table_of_tensors_is_refused(folder: Path, content: object) -> None:
    torch.save(content, folder / NAME)

    assert f"{folder / NAME} is no checkpoint" in complaint(folder)


@pytest.mark.parametrize("keep", [0, 1, 100, 5000, -1, -1000])
def test_a_truncated_file_is_refused(folder: Path, keep: int) -> None:
    (folder / NAME).write_bytes((folder / NAME).read_bytes()[:keep])

    assert str(folder / NAME) in complaint(folder)


def test_shapes_and_dtypes_are_checked_before_anything_is_read(folder: Path) -> None:
    tensors = torch.load(folder / NAME, weights_only=True)
    tensors["model.layers.0.self_attn.k_proj.weight"] = torch.zeros(24, 32)
    tensors["model.norm.weight"] = torch.zeros(32, dtype=torch.int32)
    del tensors["lm_head.weight"]
    torch.save(tensors, folder / NAME)

    text = complaint(folder)

    assert "model.layers.0.self_attn.k_proj.weight is [24, 32], not [16, 32]" in text
    assert "model.norm.weight is I32" in text
    assert "missing tensors: lm_head.weight" in text


def test_an_index_is_believed_no_more_than_one_of_safetensors(folder: Path) -> None:
    weight_map = split(folder)
    first, last = sorted(set(weight_map.values()))
    stray = next(tensor for tensor, file in weight_map.items() if file == first)

    write_index(folder, {**weight_map, stray: last})
    assert f"lists tensors that are not in its files: {stray}" in complaint(folder)

    for wrong in ("../elsewhere.bin", ["a"], None):
        write_index(folder, {**weight_map, stray: wrong})
        assert "outside its folder" in complaint(folder)

    write_index(folder, weight_map)
    (folder / last).unlink()
    assert f"{last} does not exist" in complaint(folder)
