"""The processes that this one has started, and those that they have, as Linux tells of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

PROCESSES = Path("/proc")


def descendants(pid: int) -> frozenset[int]:
    """By id; none where the system does not tell."""
    children: dict[int, list[int]] = {}
    for path in PROCESSES.glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):  # it has ended meanwhile
            behind_name = path.read_text().rpartition(")")[2].split()
            children.setdefault(int(behind_name[1]), []).append(int(path.parent.name))
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        new = set(children.get(waiting.pop(), ())) - found
        found |= new
        waiting += new
    return frozenset(found)


def end(pids: Iterable[int]) -> None:
    """At once. Whoever has ended already, or is not ours to end, is left out."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
