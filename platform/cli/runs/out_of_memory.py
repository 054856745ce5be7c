"""Processes that the kernel ended for want of memory: who dies so leaves no word of its own.

Counted are those of our control group, or, where there is none, of the machine: whoever it was, and
Serve replaces ours, so that this is a warning, and a reason once Serve gives up.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from baton.platform.cli.terminal.rays_words import MEMORY
from baton.platform.doctor.node_checks import left_of
from baton.platform.machine.memory import MemoryFacts, read_memory

log = logging.getLogger(__name__)


class OutOfMemory:
    def __init__(self, read: Callable[[], MemoryFacts] = read_memory) -> None:
        self._read = read
        self._num_killed = read().num_killed
        self.latest = ""
        """What was said last."""

    def warn(self) -> None:
        if news := self.news():
            log.warning("%s", news)

    def news(self) -> str:
        """What is to be said since the last time; may be empty."""
        memory = self._read()
        number = memory.num_killed - self._num_killed
        if number <= 0:
            return ""
        self._num_killed = memory.num_killed
        whom = "a process" if number == 1 else f"{number} processes"
        self.latest = (
            f"out of memory: the kernel has ended {whom}, and now there are {left_of(memory)}; "
            f"{MEMORY}, or give the machine or the container more"
        )
        return self.latest
