"""Detects processes that the kernel's OOM killer ended, which log nothing themselves.

The kernel counts them per control group, or for the machine. Replicas that have disappeared since
the last look are named: Serve replaces them, so this is a warning, and the reason if Serve gives
up.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping

from baton.platform.cli.terminal.rays_words import MEMORY
from baton.platform.doctor.node_checks import left_of
from baton.platform.machine.child_processes import replicas_below
from baton.platform.machine.memory import MemoryFacts, read_memory

log = logging.getLogger(__name__)


def replicas_here() -> Mapping[int, str]:
    return replicas_below(os.getpid())


class OutOfMemory:
    def __init__(
        self,
        read: Callable[[], MemoryFacts] = read_memory,
        replicas: Callable[[], Mapping[int, str]] = replicas_here,
    ) -> None:
        """`replicas`: our live replicas, by process id."""
        self._read = read
        self._replicas = replicas
        self._known = replicas()
        self._num_killed = read().num_killed
        self.latest = ""
        """The last message."""

    def warn(self) -> None:
        if news := self.news():
            log.warning("%s", news)

    def news(self) -> str:
        """The message since the last call; empty if nothing happened."""
        memory, before = self._read(), self._known
        self._known = self._replicas()
        number = memory.num_killed - self._num_killed
        if number <= 0:
            return ""
        self._num_killed = memory.num_killed
        ended = "a process" if number == 1 else f"{number} processes"
        gone = [f"{name}, process {pid}" for pid, name in before.items() if pid not in self._known]
        if gone:
            among = "among those gone: " if len(gone) > number else ""
            ended += f" ({among}{'; '.join(gone)})"
        self.latest = (
            f"out of memory: the kernel has ended {ended}, and now there are {left_of(memory)}; "
            f"{MEMORY}, or give the machine or the container more"
        )
        return self.latest
