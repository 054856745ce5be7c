"""Descendants of this process, from Linux's /proc."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

PROCESSES = Path("/proc")
REPLICA = "ray::ServeReplica:"


def descendants(pid: int) -> frozenset[int]:
    """Ids of a process's descendants; empty without /proc."""
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


def replicas_below(pid: int) -> dict[int, str]:
    """What Ray calls its workers, by process: of `ray::ServeReplica:app:Decode` the last part, in
    lower case."""
    found = {}
    for child in descendants(pid):
        with suppress(OSError):  # it has ended meanwhile
            title = (PROCESSES / str(child) / "cmdline").read_bytes().decode(errors="replace")
            if title.startswith(REPLICA):
                name = title.removeprefix(REPLICA).partition("\0")[0].split()[0]
                found[child] = name.rpartition(":")[2].lower()
    return found


def end(pids: Iterable[int]) -> None:
    """Kill processes at once, skipping those that have ended or belong to others."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
