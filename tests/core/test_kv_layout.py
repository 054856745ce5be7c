from __future__ import annotations

import os
import pickle
import subprocess
import sys

from baton.core.kv_layout import KvLayout

LAYOUT = KvLayout(
    model_fingerprint=b"m",
    dtype="bfloat16",
    num_layers=2,
    num_kv_heads=1,
    head_dim=8,
    block_size=16,
)
IN_ANOTHER_PROCESS = (
    "import pickle, sys; layout = pickle.load(sys.stdin.buffer); hash(layout);"
    "sys.stdout.buffer.write(pickle.dumps(layout))"
)


def test_a_layout_of_another_process_is_found_where_an_equal_one_is() -> None:
    environment = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    pickled = pickle.dumps(LAYOUT)
    command = [sys.executable, "-c", IN_ANOTHER_PROCESS]
    there = subprocess.run(
        command, input=pickled, env=environment, capture_output=True, check=True
    ).stdout

    assert {LAYOUT: "here"}.get(pickle.loads(there)) == "here"
