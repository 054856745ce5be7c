"""Available memory: the machine's, or less if a control group limits it.

    version 2   memory.max              memory.current          memory.stat  inactive_file
    version 1   memory.limit_in_bytes   memory.usage_in_bytes   memory.stat  total_inactive_file

Page cache counts as used, but the kernel reclaims it, so it is subtracted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from baton.core.control_groups import folders_of_version_1, folders_of_version_2, text_of

UNLIMITED = 1 << 60
"""Version 1 says `unlimited` with a number near this or above."""
GIVEN_BACK = ("inactive_file", "active_file", "slab_reclaimable")
"""Reclaimable entries of cgroup v2's memory.stat; v1 has no number for the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFacts:
    total: int
    """Bytes, as are all here; 0: unknown."""
    available: int
    swap: int = 0
    """Free swap."""
    limit: int | None = None
    """The limit of the control group (a container's), or of the one around it that leaves less;
    None: no limit."""
    used_of_limit: int = 0
    """Bytes used, without what the kernel gives back."""
    num_killed: int = 0
    """Processes of the group that the kernel has ended because of its limit, so far."""

    @property
    def left(self) -> int:
        """Memory available before the OOM killer acts."""
        if self.limit is None:
            return self.available
        return max(0, min(self.available, self.limit - self.used_of_limit))

    @property
    def whole(self) -> int:
        return self.total if self.limit is None else min(self.limit, self.total or self.limit)

    @property
    def most(self) -> int:
        """The most bytes that could be available if other processes freed theirs."""
        return self.whole + self.swap


def read_memory(root: Path = Path("/")) -> MemoryFacts:
    entries = {}
    for line in text_of(root / "proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        entries[name] = int(value.split()[0]) * 1024
    limited = min(_limited(root), key=lambda found: found[0] - found[1], default=(None, 0))
    return MemoryFacts(
        total=entries.get("MemTotal", 0),
        available=entries.get("MemAvailable", entries.get("MemFree", 0)),
        swap=entries.get("SwapTotal", 0),
        limit=limited[0],
        used_of_limit=limited[1],
        num_killed=_num_killed(root),
    )


def _limited(root: Path) -> Iterator[tuple[int, int]]:
    """Limit and use of each group that has one."""
    for folder in folders_of_version_2(root):
        given_back = _sum(folder / "memory.stat", GIVEN_BACK)
        yield from _limit(folder / "memory.max", folder / "memory.current", given_back)
    for folder in folders_of_version_1(root, "memory"):
        given_back = _sum(folder / "memory.stat", [f"total_{name}" for name in GIVEN_BACK])
        used = folder / "memory.usage_in_bytes"
        yield from _limit(folder / "memory.limit_in_bytes", used, given_back)


def _limit(limit: Path, used: Path, given_back: int) -> Iterator[tuple[int, int]]:
    num_bytes = _number(text_of(limit))
    if num_bytes is not None and num_bytes < UNLIMITED:
        yield num_bytes, max(0, (_number(text_of(used)) or 0) - given_back)


def _num_killed(root: Path) -> int:
    """OOM kills of the group; in version 2 including its subgroups."""
    for folder in folders_of_version_2(root):
        if (folder / "memory.events").exists():
            return _sum(folder / "memory.events", ["oom_kill"])
    for folder in folders_of_version_1(root, "memory"):
        if (folder / "memory.oom_control").exists():
            return _sum(folder / "memory.oom_control", ["oom_kill"])
    return _sum(root / "proc/vmstat", ["oom_kill"])  # the machine's


def _sum(path: Path, names: list[str] | tuple[str, ...]) -> int:
    """Sum of some entries of a file of `NAME NUMBER` lines."""
    total = 0
    for line in text_of(path).splitlines():
        name, _, value = line.partition(" ")
        if name in names:
            total += _number(value) or 0
    return total


def _number(text: str) -> int | None:
    return int(text) if text.strip().isdigit() else None
