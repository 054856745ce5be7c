"""Kinds of CPU whose bits differ have different fingerprints, and those whose bits do not the same.

Each kind that this CPU is of computes the same models in a process of its own, with the library
that a CPU of that kind would take.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import pytest
from tests.tiny_checkpoints import make_deepseek_v3, make_gemma3, make_llama, make_qwen3_moe

from baton.kernels.cpu import build
from baton.kernels.cpu.library import find_compiler

KINDS = build.supported_targets()[1:]
MODELS = (make_llama, make_gemma3, make_qwen3_moe, make_deepseek_v3)
Computed = dict[str, tuple[str, str]]
"""By case, what names the bits and what they are."""

pytestmark = [
    pytest.mark.wide,
    pytest.mark.timeout(1800),  # each kind may have to be compiled first
    pytest.mark.skipif(find_compiler() is None, reason="no compiler here"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="kinds of x86-64"),
]


def computed_by(kind: str, folders: list[Path]) -> Computed:
    done = subprocess.run(
        [sys.executable, "-m", "tests.engine.checkpoint.computing_of_a_kind", *map(str, folders)],
        env={**os.environ, "BATON_CPU_KERNELS": kind},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    computed: Computed = json.loads(done.stdout.splitlines()[-1])
    return computed


def test_fingerprints_of_kinds_are_equal_exactly_where_their_bits_are(tmp_path: Path) -> None:
    folders = [make(tmp_path / make.__name__) for make in MODELS]
    by_kind = {kind: computed_by(kind, folders) for kind in ("vectors", *KINDS)}

    for one, other in combinations(by_kind, 2):
        mine, theirs = by_kind[one], by_kind[other]
        for case in mine:
            (name, bits), (other_name, other_bits) = mine[case], theirs[case]
            if name == other_name:
                assert bits == other_bits, f"{case}: {one} and {other} pass for the same"
        for dtype in ("float32", "bfloat16"):
            of_dtype = [case for case in mine if dtype in case]
            has_one_name = all(mine[case][0] == theirs[case][0] for case in of_dtype)
            has_same_bits = all(mine[case][1] == theirs[case][1] for case in of_dtype)
            assert has_one_name == has_same_bits, f"{dtype}: {one} and {other}"
