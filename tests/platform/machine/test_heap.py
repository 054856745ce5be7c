"""A process that keeps what it freed; in a process of its own, for it lasts."""

from __future__ import annotations

import os
import subprocess
import sys

FAULTS = """
import resource, sys
from baton.platform.machine.heap import keep_freed_memory

def num_faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

if sys.argv[1] == "kept":
    assert keep_freed_memory()
for _ in range(2):
    before = num_faults()
    blocks = [bytearray(2 << 20) for _ in range(16)]
    del blocks
print(num_faults() - before)
"""
NUM_PAGES = 16 * (2 << 20) // 4096


def num_faults(how: str) -> int:
    """In the second round of allocating and freeing that many pages."""
    run = subprocess.run(
        [sys.executable, "-c", FAULTS, how],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    return int(run.stdout)


def test_memory_that_was_freed_is_used_again_without_a_fault_for_each_page() -> None:
    assert num_faults("as ever") > NUM_PAGES // 2
    assert num_faults("kept") < NUM_PAGES // 16
