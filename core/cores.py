"""How many cores this process may use, which in a container are fewer than the machine has.

cores = min(affinity, quota / period of the process's control group and of those above it)

version 2   cpu.max             `QUOTA PERIOD`, or `max PERIOD`
version 1   cpu.cfs_quota_us    -1: unlimited; cpu.cfs_period_us
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from baton.core.control_groups import folders_of_version_1, folders_of_version_2, text_of


def usable_cores(root: Path = Path("/")) -> float:
    """Cores by affinity and control groups; a quota may leave a fraction of one, never 0."""
    return min([_affinity(), *_quotas(root)])


def _affinity() -> float:
    if hasattr(os, "sched_getaffinity"):
        return float(len(os.sched_getaffinity(0)))
    return float(os.cpu_count() or 1)


def _quotas(root: Path) -> Iterator[float]:
    for folder in folders_of_version_2(root):
        quota, _, period = text_of(folder / "cpu.max").partition(" ")
        yield from _cores(quota, period)
    for folder in folders_of_version_1(root, "cpu"):
        yield from _cores(
            text_of(folder / "cpu.cfs_quota_us"), text_of(folder / "cpu.cfs_period_us")
        )


def _cores(quota: str, period: str) -> Iterator[float]:
    if quota.strip().isdigit() and period.strip().isdigit() and int(quota) > 0 < int(period):
        yield int(quota) / int(period)
