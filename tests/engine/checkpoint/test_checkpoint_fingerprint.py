"""Fingerprints: equal exactly when KV may be shared."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.tiny_checkpoints import LLAMA3_ROPE, make_llama

from baton.engine.checkpoint.fingerprint import NUM_SAMPLES, SAMPLE_BYTES, WHOLE_BYTES
from baton.engine.checkpoint.load import load_model
from baton.kernels.cpu import library as of_this_cpu
from baton.kernels.cpu.library import library
from baton.kernels.cpu.matrix_tiles import Tiles


def fingerprint(folder: Path, **options: Any) -> bytes:
    return load_model(folder, **options).info.fingerprint


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_llama(tmp_path / "model")


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def edit_weight(folder: Path, name: str, *place: int) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors[name][place] += 1
    save_file(tensors, folder / "model.safetensors")


def test_copies_of_a_folder_are_equal_whatever_their_times(folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    os.utime(copy / "model.safetensors", (0, 0))

    assert fingerprint(copy) == fingerprint(folder)


def test_shards_and_spellings_do_not_matter(folder: Path, tmp_path: Path) -> None:
    sharded = make_llama(tmp_path / "sharded", max_shard_size="10KB")
    edit_config(sharded, use_cache=False, rope_theta=10000.0, rope_parameters=None)

    assert fingerprint(sharded) == fingerprint(folder)


def test_a_single_changed_weight_is_seen(folder: Path) -> None:
    before = fingerprint(folder)

    edit_weight(folder, "model.layers.1.mlp.down_proj.weight", 3, 4)

    assert fingerprint(folder) != before


@pytest.mark.parametrize(
    "change",
    [
        {"rms_norm_eps": 1e-5},
        {"rope_parameters": LLAMA3_ROPE},
        {"max_position_embeddings": 256},
        {"tie_word_embeddings": True},
    ],
)
def test_another_architecture_is_seen(folder: Path, change: dict[str, Any]) -> None:
    before = fingerprint(folder)

    edit_config(folder, **change)

    assert fingerprint(folder) != before


def test_another_serving_dtype_is_seen(folder: Path) -> None:
    assert len({fingerprint(folder, dtype=dtype) for dtype in ("float32", "bfloat16")}) == 2
    assert fingerprint(folder, dtype="auto") == fingerprint(folder, dtype="float32")


@pytest.mark.skipif(library() is None, reason="no compiled operators here")
@pytest.mark.parametrize(("dtype", "is_seen"), [("bfloat16", True), ("float32", False)])
def test_sums_of_matrix_tiles_are_seen(
    dtype: str, is_seen: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have other bits, in bfloat16: KV by tiles and KV by vectors are never mixed."""
    names = set()
    for tiles in (Tiles.NONE, Tiles.AMX):
        monkeypatch.setattr(of_this_cpu, "tiles_in_use", lambda tiles=tiles: tiles)
        names.add(fingerprint(folder, dtype=dtype))

    assert len(names) == 1 + is_seen


def test_large_tensors_are_sampled_from_end_to_end(tmp_path: Path) -> None:
    folder = make_llama(tmp_path, vocab_size=8192)  # an embedding of 1 MiB
    name, num_bytes = "model.embed_tokens.weight", 8192 * 32 * 4
    assert num_bytes > WHOLE_BYTES
    row_bytes = 32 * 4
    stride_rows = (num_bytes - SAMPLE_BYTES) // (NUM_SAMPLES - 1) // row_bytes
    seen = {fingerprint(folder)}

    for row in (0, 8191, stride_rows + SAMPLE_BYTES // row_bytes // 2):
        edit_weight(folder, name, row, 5)
        assert fingerprint(folder) not in seen
        seen.add(fingerprint(folder))


def test_all_weights_moving_a_little_is_seen(tmp_path: Path) -> None:
    folder = make_llama(tmp_path, vocab_size=8192)
    before = fingerprint(folder)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.embed_tokens.weight"] += 1e-3 * torch.randn(8192, 32)
    save_file(tensors, folder / "model.safetensors")

    assert fingerprint(folder) != before
