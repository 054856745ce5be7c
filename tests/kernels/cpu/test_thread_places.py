"""Threads that compute stay on their CPUs, and memory is had by those that read it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from ctypes import CDLL
from pathlib import Path

import pytest
import torch

from baton.kernels.cpu import huge_pages
from baton.kernels.cpu.library import library
from baton.kernels.cpu.shared_mapping import num_resident
from baton.kernels.cpu.shared_pages import SharedPages
from baton.kernels.cpu.thread_places import place_threads
from baton.kernels.residual.rms_norm import rms_norm

NUM_BYTES = 8 << 20


@pytest.fixture
def kernels() -> Iterator[CDLL]:
    """Two threads compute; behind it they run anywhere again."""
    found, before = library(), torch.get_num_threads()
    if found is None or len(os.sched_getaffinity(0)) < 2:
        pytest.skip("no operators here, or one CPU")
    anywhere = os.sched_getaffinity(0)
    torch.set_num_threads(2)
    yield found
    place_threads(found, [anywhere, anywhere])
    compute()
    place_threads(found, [])
    torch.set_num_threads(before)


def compute() -> dict[str, str]:
    """A pass that two threads share. Returns CPUs that each thread of this process may be on."""
    x = torch.ones(4096, 1024)
    for _ in range(20):
        rms_norm(x, torch.ones(1024), 1e-5)
    return {
        path.parent.name: line.split()[1]
        for path in Path("/proc/self/task").glob("*/status")
        for line in path.read_text().splitlines()
        if line.startswith("Cpus_allowed_list")
    }


def test_each_thread_stays_on_its_cpus(kernels: CDLL) -> None:
    one, other = sorted(os.sched_getaffinity(0))[:2]
    compute()  # the helper is there

    for mine, helpers in ((one, other), (other, one)):
        place_threads(kernels, [{mine}, {helpers}])

        deadline = time.monotonic() + 60  # a helper goes where it belongs when it wakes up
        while str(helpers) not in compute().values() and time.monotonic() < deadline:
            pass
        found = compute()
        assert found.pop(str(os.getpid())) == str(mine)
        assert str(helpers) in found.values()


def test_weights_are_had_at_once_by_threads_that_are_apart_and_else_when_written(
    kernels: CDLL,
) -> None:
    def is_had() -> bool:
        whole = huge_pages.empty((NUM_BYTES,), torch.uint8)
        cut = SharedPages().cut((NUM_BYTES,))
        had = {num_resident(each.data_ptr() & -4096, NUM_BYTES) for each in (whole, cut)}
        assert had <= {0, NUM_BYTES}
        return had == {NUM_BYTES}

    one, other = sorted(os.sched_getaffinity(0))[:2]

    place_threads(kernels, [{one}, {other}])
    assert is_had()
    place_threads(kernels, [{one}, {one}])
    assert not is_had()
    place_threads(kernels, [])
    assert not is_had()
