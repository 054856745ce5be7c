"""`--load-format dummy`: a model from `config.json` alone, the same one everywhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.engine.prepared_weights import as_tensor, weights_of
from tests.tiny_checkpoints import make_llama, make_qwen3

from baton.core.errors import CheckpointError
from baton.engine.checkpoint.dummy import POOL_SIZE, RandomPool, dummy_entries
from baton.engine.checkpoint.files.tensor_files import read_entries
from baton.engine.checkpoint.load import LoadedModel, load_model

FINGERPRINT = """
import sys
from pathlib import Path
from tests.engine.prepared_weights import as_tensor
from baton.engine.checkpoint.load import load_model
loaded = load_model(Path(sys.argv[1]), load_format="dummy")
weight = as_tensor(loaded.model.blocks[0].ffn.down.weight)
print(loaded.info.fingerprint.hex(), weight.sum().item())
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = make_llama(tmp_path)
    (folder / "model.safetensors").unlink()
    return folder


def load_dummy(folder: Path, **options: Any) -> LoadedModel:
    return load_model(folder, load_format="dummy", **options)


def test_no_weight_file_is_needed_unless_weights_are_wanted(folder: Path) -> None:
    assert load_dummy(folder).info.architecture == "LlamaForCausalLM"

    with pytest.raises(CheckpointError, match=r"holds neither model\.safetensors"):
        load_model(folder)


@pytest.mark.wide
def test_other_processes_make_the_same_weights_under_the_same_name(folder: Path) -> None:
    loaded = load_dummy(folder)

    other = subprocess.run(
        [sys.executable, "-c", FINGERPRINT, str(folder)],
        check=True,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[3],  # where `tests` is found
    )

    name, total = other.stdout.split()
    assert bytes.fromhex(name) == loaded.info.fingerprint
    weight = dict(weights_of(loaded.model))["blocks.0.ffn.down.weight"]
    assert float(total) == as_tensor(weight).sum().item()


def test_its_fingerprint_is_that_of_no_checkpoint(tmp_path: Path) -> None:
    folder = make_llama(tmp_path)

    fingerprints = {load_model(folder).info.fingerprint, load_dummy(folder).info.fingerprint}

    assert len(fingerprints) == 2


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_its_outputs_are_finite_and_of_unit_size(tmp_path: Path, dtype: str) -> None:
    model = load_dummy(make_qwen3(tmp_path, hidden_size=256), dtype=dtype).model

    embeddings = as_tensor(dict(weights_of(model))["embed.weight"])
    logits = model.logits(embeddings[:8])

    assert logits.isfinite().all()
    assert 0.01 < logits.std() < 10


def test_matrices_differ_from_each_other_and_from_row_to_row(folder: Path) -> None:
    entries = dummy_entries({name: e.shape for name, e in read_entries(make_llama(folder)).items()})
    matrices = [entry.load(torch.float32) for entry in entries.values() if len(entry.shape) == 2]

    beginnings = {tuple(row[:16].tolist()) for matrix in matrices for row in matrix}

    assert len(beginnings) == sum(len(matrix) for matrix in matrices)


def test_a_cut_goes_on_at_the_start_of_the_pool() -> None:
    pool = RandomPool()

    values = pool.cut(0, POOL_SIZE)

    cut = pool.cut(POOL_SIZE - 3, 2 * POOL_SIZE + 5)

    assert len(cut) == 2 * POOL_SIZE + 5
    assert torch.equal(cut[:3], values[-3:])
    assert torch.equal(cut[3 : 3 + POOL_SIZE], values)
    assert torch.equal(cut[-2:], values[:2])
    assert torch.equal(pool.cut(7, 4, scale=0.5), values[7:11] / 2)
