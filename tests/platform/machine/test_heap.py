"""A process that keeps what it freed; in a process of its own, for it lasts."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from baton.platform.machine.heap import BY_OPERATOR, keep_freed_memory

FAULTS = """
import ctypes, resource, sys
from baton.platform.machine.heap import keep_freed_memory

def num_faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

PR_SET_THP_DISABLE = 41  # a huge page would be one fault
ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)
if sys.argv[1] == "kept":
    assert keep_freed_memory()
for _ in range(2):
    before = num_faults()
    blocks = [bytearray(2 << 20) for _ in range(6)]
    del blocks
print(num_faults() - before)
"""
HELD = """
import ctypes, mmap, pathlib, sys, threading
from baton.platform.machine.heap import keep_freed_memory

assert keep_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.argtypes, libc.malloc.restype = (ctypes.c_size_t,), ctypes.c_void_p
libc.memset.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
libc.free.argtypes = (ctypes.c_void_p,)
freed, measured = threading.Barrier(9), threading.Barrier(9)

def num_held():
    _, resident, shared, *_ = pathlib.Path("/proc/self/statm").read_text().split()
    return (int(resident) - int(shared)) * mmap.PAGESIZE

def use():
    blocks = [libc.malloc(2 << 20) for _ in range(24)]
    for block in blocks:
        libc.memset(block, 1, 2 << 20)
    for block in blocks:
        libc.free(block)
    freed.wait()
    measured.wait()

before = num_held()
threads = [threading.Thread(target=use) for _ in range(8)]
for thread in threads:
    thread.start()
freed.wait()
print(num_held() - before)
measured.wait()
"""
NUM_BYTES = 6 * (2 << 20)
NUM_FREED_BY_THREADS = 8 * 24 * (2 << 20)

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is GNU's")


def told_by(script: str, *arguments: str) -> int:
    plain = {name: value for name, value in os.environ.items() if name not in BY_OPERATOR}
    run = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        check=True,
        capture_output=True,
        text=True,
        env={**plain, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    return int(run.stdout)


def test_memory_that_was_freed_is_used_again_without_a_fault_for_each_page() -> None:
    num_pages = NUM_BYTES // os.sysconf("SC_PAGESIZE")

    kept = told_by(FAULTS, "kept")

    assert kept <= told_by(FAULTS, "as ever")
    assert kept < num_pages // 16


def test_threads_give_back_most_of_what_they_freed() -> None:
    assert told_by(HELD) < NUM_FREED_BY_THREADS // 3


def test_what_the_operator_says_of_the_heap_holds() -> None:
    assert not any(keep_freed_memory({name: "1"}) for name in BY_OPERATOR)
