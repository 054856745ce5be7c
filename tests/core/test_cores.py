"""A process counts the cores it may use, not those of the machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from baton.core.cores import usable_cores


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)


def machine(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_without_a_control_group_all_cores_of_the_affinity_are_usable(tmp_path: Path) -> None:
    assert usable_cores(tmp_path) == 8


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"sys/fs/cgroup/cpu.max": "max 100000\n"}, 8),
        ({"sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1.5),
        ({"sys/fs/cgroup/cpu.max": "6400000 100000\n"}, 8),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/cpu.max": "200000 100000\n"}, 2),
        ({"proc/self/cgroup": "0::/not/seen\n", "sys/fs/cgroup/cpu.max": "300000 100000\n"}, 3),
    ],
)
def test_the_tightest_quota_of_version_2_counts(
    files: dict[str, str], cores: float, tmp_path: Path
) -> None:
    assert usable_cores(machine(tmp_path, files)) == cores


@pytest.mark.parametrize(("quota", "cores"), [("-1\n", 8), ("250000\n", 2.5), ("0\n", 8)])
def test_a_quota_of_version_1_counts(quota: str, cores: float, tmp_path: Path) -> None:
    group = "sys/fs/cgroup/cpu/docker/2f0a"
    files = {
        "proc/self/cgroup": "8:pids:/\n4:cpu,cpuacct:/docker/2f0a\n0::/\n",
        f"{group}/cpu.cfs_quota_us": quota,
        f"{group}/cpu.cfs_period_us": "100000\n",
    }

    assert usable_cores(machine(tmp_path, files)) == cores
