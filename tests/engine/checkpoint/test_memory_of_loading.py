"""What a process holds while it loads a model, and after."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tiny_checkpoints import make_llama, make_llama4, make_mixtral

from baton.kernels.cpu.library import library

MB = 1e6
SLACK = 24 * MB
"""Threads, allocator, code that runs for the first time."""
EXPERTS = [
    pytest.param(make_mixtral, {}, id="an expert a tensor", marks=pytest.mark.wide),
    pytest.param(
        make_llama4, {"num_hidden_layers": 2, "moe_layers": [0, 1]}, id="all in one tensor"
    ),
]

LOAD = """
import json, sys
from pathlib import Path
from dataclasses import replace
from types import SimpleNamespace
import torch
from tests.engine.prepared_weights import weights_of
from baton.engine.checkpoint.load import load_model
from baton.engine.mesh.mesh import Mesh
from baton.engine.mesh.ranks import ONE_RANK
from baton.kernels.products.packed_weight import pack

def one_of(weight):  # experts are read one by one
    return weight.nbytes // weight.shape[0] if len(weight.shape) == 3 else weight.nbytes

def held(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name))

pack(torch.ones(64, 64)).logits(torch.ones(2, 64))
before = held("VmRSS")
Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
rank, size, axes = int(sys.argv[2]), int(sys.argv[3]), sys.argv[4].split()
member = SimpleNamespace(rank=rank, size=size)
mesh = Mesh(**dict.fromkeys(axes, size))
groups = replace(ONE_RANK, mesh=mesh, everyone=member, **dict.fromkeys(axes, member))
loaded = load_model(Path(sys.argv[1]), groups=groups)
weights = [weight for _, weight in weights_of(loaded.model)]
print(json.dumps({
    "most": held("VmHWM") - before,
    "after": held("VmRSS") - before,
    "weights": sum(weight.nbytes for weight in weights),
    "largest": max(one_of(weight) for weight in weights),
}))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(
        tmp_path_factory.mktemp("model"),
        dtype=torch.bfloat16,
        hidden_size=1024,
        intermediate_size=4096,
        num_hidden_layers=2,
        num_attention_heads=16,
        num_key_value_heads=4,
        head_dim=64,
        vocab_size=24_000,
        tie_word_embeddings=True,
    )


@functools.cache
def loaded(folder: Path, rank: int = 0, size: int = 1, axis: str = "tensor") -> dict[str, int]:
    answer = subprocess.run(
        [sys.executable, "-c", LOAD, str(folder), str(rank), str(size), axis],
        check=True,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[3],  # where `tests` is found
    )
    held: dict[str, int] = json.loads(answer.stdout)
    return held


@pytest.mark.skipif(library() is None, reason="there is no C++ compiler")
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_model_is_never_in_memory_twice(folder: Path) -> None:
    held = loaded(folder)

    assert held["weights"] > 100 * MB
    assert held["most"] < held["weights"] + held["largest"] + SLACK
    assert held["after"] < held["weights"] + SLACK


@pytest.mark.skipif(library() is None, reason="there is no C++ compiler")
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("make", "layers"),
    EXPERTS,
)
def test_experts_are_never_in_memory_twice(
    make: Callable[..., Path], layers: dict[str, Any], tmp_path: Path
) -> None:
    sizes = {"hidden_size": 1024, "intermediate_size": 1024, "num_local_experts": 10}
    folder = make(tmp_path, dtype=torch.bfloat16, **sizes, **layers)

    held = loaded(folder)

    assert held["weights"] > 100 * MB
    assert held["largest"] < 5 * MB
    assert held["most"] < held["weights"] + held["largest"] + SLACK
    assert held["after"] < held["weights"] + SLACK


@pytest.mark.wide
@pytest.mark.skipif(library() is None, reason="there is no C++ compiler")
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_rank_holds_only_its_share(folder: Path) -> None:
    whole_bytes = loaded(folder)["weights"]

    held = loaded(folder, rank=3, size=4)

    assert held["weights"] < whole_bytes / 4 + MB  # and the norms
    assert held["most"] < held["weights"] + 4 * held["largest"] + SLACK  # a whole matrix is mapped
    assert held["after"] < held["weights"] + SLACK


@pytest.mark.wide
@pytest.mark.skipif(library() is None, reason="there is no C++ compiler")
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_stage_holds_only_its_layers_and_what_is_before_or_behind_them(folder: Path) -> None:
    whole_bytes, table_bytes = loaded(folder)["weights"], 24_000 * 1024 * 2

    first, last = (loaded(folder, rank, 2, "pipeline") for rank in range(2))

    assert first["weights"] + last["weights"] == whole_bytes + table_bytes  # at both ends
    for held in (first, last):
        assert held["weights"] < whole_bytes / 2 + table_bytes
        assert held["most"] < held["weights"] + held["largest"] + SLACK
        assert held["after"] < held["weights"] + SLACK


@pytest.mark.wide
@pytest.mark.skipif(library() is None, reason="there is no C++ compiler")
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("make", "layers"),
    EXPERTS,
)
def test_a_rank_holds_only_its_own_experts(
    make: Callable[..., Path], layers: dict[str, Any], tmp_path: Path
) -> None:
    sizes = {"hidden_size": 1024, "intermediate_size": 1024, "num_local_experts": 10}
    folder = make(tmp_path, dtype=torch.bfloat16, **sizes, **layers)
    whole_bytes = loaded(folder)["weights"]

    held = loaded(folder, 1, 2, "tensor expert")

    assert held["weights"] < whole_bytes / 2 + MB
    assert held["most"] < held["weights"] + held["largest"] + SLACK
    assert held["after"] < held["weights"] + SLACK
