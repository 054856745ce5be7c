"""How many cores this process may use, which in a container are fewer than the machine has.

    cores = min(affinity, quota / period of the process's control group and of those above it)

    version 2   /sys/fs/cgroup/GROUP/cpu.max                  `QUOTA PERIOD`, or `max PERIOD`
    version 1   /sys/fs/cgroup/cpu/GROUP/cpu.cfs_quota_us     -1: unlimited; cpu.cfs_period_us

GROUP is what /proc/self/cgroup says. A container may see only its own group, mounted as the root:
what lies on the path and is not there limits nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_VERSION_2 = ""
"""The controllers of the line in /proc/self/cgroup that is version 2's: none are named."""


def usable_cores(root: Path = Path("/")) -> float:
    """Cores by affinity and control groups; a quota may leave a fraction of one, never 0."""
    return min([_affinity(), *_quotas(root)])


def _affinity() -> float:
    if hasattr(os, "sched_getaffinity"):
        return float(len(os.sched_getaffinity(0)))
    return float(os.cpu_count() or 1)


def _quotas(root: Path) -> Iterator[float]:
    groups = _groups(root)
    for above in _with_parents(groups.get(_VERSION_2, "/")):
        quota, _, period = _text(root / "sys/fs/cgroup" / above / "cpu.max").partition(" ")
        yield from _cores(quota, period)
    for above in _with_parents(groups.get("cpu", "/")):
        folder = root / "sys/fs/cgroup/cpu" / above
        yield from _cores(_text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us"))


def _groups(root: Path) -> dict[str, str]:
    """This process's group by controller, of lines such as `1:cpu,cpuacct:/docker/2f0a`."""
    group_by_controller: dict[str, str] = {}
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        group_by_controller |= dict.fromkeys(controllers.split(","), group)
    return group_by_controller


def _with_parents(group: str) -> list[PurePosixPath]:
    path = PurePosixPath(group.lstrip("/"))
    return [path, *path.parents]


def _cores(quota: str, period: str) -> Iterator[float]:
    if quota.strip().isdigit() and period.strip().isdigit() and int(quota) > 0 < int(period):
        yield int(quota) / int(period)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
