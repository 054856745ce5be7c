"""The kernels compile for a Hopper, fit into it, and use its tensor cores: no GPU is needed.

The interpreter, which checks what they compute, would take what no compiler does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

SHARED_BYTES = 227 << 10
"""That one program can have."""
SPILLED_BYTES = 256
"""Of a thread, at most: more is read and written in loops."""
ROOT = Path(__file__).parents[3]

needs_compiler = pytest.mark.skipif(
    not find_spec("triton.backends.nvidia"), reason="Triton without its compiler for NVIDIA"
)


@pytest.mark.wide  # a minute of compilation
@needs_compiler
def test_kernels_compile_for_hopper_and_fit() -> None:
    environment = os.environ | {"TRITON_INTERPRET": "0", "PYTHONPATH": f"{ROOT}/src:{ROOT}"}

    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.kernels.gpu.hopper_launches"],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )

    assert run.returncode == 0, run.stderr
    built = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(built) > 20
    assert not [kernel for kernel in built if kernel["shared_bytes"] > SHARED_BYTES]
    assert not [kernel for kernel in built if kernel["spilled_bytes"] > SPILLED_BYTES]
    by_tiles = [kernel for kernel in built if kernel["name"] == "_attend_tiles"]
    assert by_tiles
    assert all(kernel["has_wgmma"] for kernel in by_tiles)
