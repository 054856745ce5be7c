"""What a GPU has kernels of its own for is run before requests come."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from baton.engine.batch.static_batch import PassLimits
from baton.engine.passes.warm_up import warm_up_passes

ROOT = Path(__file__).parents[3]
FAMILIES = ["llama", "gemma2", "gpt-oss", "deepseek v3.2"]


@pytest.mark.parametrize(("max_tokens", "max_requests"), [(20, 1), (100, 7), (9000, 64)])
def test_passes_of_all_kinds_fit_where_the_largest_do(max_tokens: int, max_requests: int) -> None:
    limits = PassLimits(max_tokens=max_tokens, max_requests=max_requests, max_blocks=500)
    passes = warm_up_passes(limits, 16, 7000)

    assert {len(chunks) for chunks in passes} == ({1} if max_requests == 1 else {1, 2})
    lengths = {len(chunk.tokens) for chunks in passes for chunk in chunks}
    assert {1, 2, 8, 16, min(max_tokens, 7000)} <= lengths
    for chunks in passes:
        assert sum(len(chunk.tokens) for chunk in chunks) <= max_tokens
        for chunk in chunks:
            end = chunk.start + len(chunk.tokens)
            assert end <= 7000
            assert len(chunk.blocks) == -(-end // 16)
            own = chunk.blocks[chunk.start // 16 :]
            assert list(own) == list(range(1, len(own) + 1))


@pytest.mark.wide  # a minute: four models
@pytest.mark.skipif(
    not find_spec("triton.backends.nvidia"), reason="Triton without its compiler for NVIDIA"
)
def test_no_pass_behind_them_launches_a_kernel_that_was_not_compiled() -> None:
    environment = os.environ | {"TRITON_INTERPRET": "0", "PYTHONPATH": f"{ROOT}/src:{ROOT}"}

    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.engine.passes.kernels_of_passes", *FAMILIES],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )

    assert run.returncode == 0, run.stderr
    assert len(run.stdout.splitlines()) == len(FAMILIES), run.stdout
