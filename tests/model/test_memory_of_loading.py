"""What a process holds while it loads a model, and after."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.tiny_checkpoints import make_llama

from baton.kernels.cpu.library import library

MB = 1e6
SLACK = 24 * MB
"""Threads, allocator, code that runs for the first time."""

LOAD = """
import json, sys
from pathlib import Path
import torch
from tests.model.kept_weights import weights_of
from baton.engine.checkpoint.load import load_model
from baton.kernels.packed_weight import pack

def held(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name))

pack(torch.ones(64, 64)).logits(torch.ones(2, 64))
before = held("VmRSS")
Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
loaded = load_model(Path(sys.argv[1]))
weights = [weight for _, weight in weights_of(loaded.model)]
print(json.dumps({
    "most": held("VmHWM") - before,
    "after": held("VmRSS") - before,
    "weights": sum(weight.nbytes for weight in weights),
    "largest": max(weight.nbytes for weight in weights),
}))
"""


@pytest.mark.skipif(library() is None, reason="there is no C++ compiler")
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_model_is_never_in_memory_twice(tmp_path: Path) -> None:
    folder = make_llama(
        tmp_path,
        dtype=torch.bfloat16,
        hidden_size=1024,
        intermediate_size=4096,
        num_hidden_layers=4,
        vocab_size=24_000,
        tie_word_embeddings=True,
    )

    answer = subprocess.run(
        [sys.executable, "-c", LOAD, str(folder)],
        check=True,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],  # where `tests` is found
    )

    held = json.loads(answer.stdout)
    assert held["weights"] > 150 * MB
    assert held["most"] < held["weights"] + held["largest"] + SLACK
    assert held["after"] < held["weights"] + SLACK
