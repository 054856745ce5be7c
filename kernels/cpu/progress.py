"""Reports the progress of compilation: `kernels: 12 of 43 compiled, 8 s`.

terminal    one line, which is overwritten, also by a message after a failed build
elsewhere   a line at the beginning, one every few seconds, and one at the end

A build that finds everything compiled reports nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TextIO

from baton.core.clock import Clock, monotonic
from baton.kernels.cpu.build import Report

EVERY_S = 5.0


class BuildProgress:
    """Calls `say` when a build begins and ends, and every few seconds."""

    def __init__(self, say: Callable[[str], object], *, every_s: float, clock: Clock = monotonic):
        self._say = say
        self._every_s = every_s
        self._clock = clock
        self._started_at = clock()
        self._said_at: float | None = None

    def __call__(self, num_compiled: int, num_sources: int) -> None:
        if not num_sources:
            return
        now = self._clock()
        is_due = self._said_at is None or now - self._said_at >= self._every_s
        if is_due or num_compiled == num_sources:
            self._said_at = now
            seconds = now - self._started_at
            self._say(f"kernels: {num_compiled} of {num_sources} compiled, {seconds:.0f} s")


def progress_on(file: TextIO) -> Report:
    """Progress in the form that suits `file`."""
    if not file.isatty():
        return BuildProgress(lambda line: print(line, file=file, flush=True), every_s=EVERY_S)
    line_by_line = BuildProgress(
        lambda line: print(line, end="\r", file=file, flush=True), every_s=0
    )

    def report(num_compiled: int, num_sources: int) -> None:
        line_by_line(num_compiled, num_sources)
        if 0 < num_sources == num_compiled:
            print(file=file, flush=True)

    return report
