"""Processes that the kernel ended for want of memory: who dies so leaves no word of its own.

Counted are those of our control group, or, where there is none, of the machine.
"""

from __future__ import annotations

from collections.abc import Callable

from baton.platform.cli.terminal.rays_words import MEMORY
from baton.platform.doctor.node_checks import left_of
from baton.platform.machine.memory import MemoryFacts, read_memory


class OutOfMemory:
    def __init__(self, read: Callable[[], MemoryFacts] = read_memory) -> None:
        self._read = read
        self._num_killed = read().num_killed

    def news(self) -> str:
        """What is to be said since the last time; may be empty."""
        memory = self._read()
        number = memory.num_killed - self._num_killed
        if number <= 0:
            return ""
        self._num_killed = memory.num_killed
        whom = "a process" if number == 1 else f"{number} processes"
        return (
            f"out of memory: the kernel has ended {whom}, and now there are {left_of(memory)}; "
            f"{MEMORY}, or give the machine or the container more"
        )
