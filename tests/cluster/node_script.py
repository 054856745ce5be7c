"""A script that starts Ray nodes and the test that runs it: what they say to each other."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

ROOT = Path(__file__).parents[2]


def answers() -> TextIO:
    """The script's: where its test listens. What Ray prints goes to standard error from here on,
    as it may end in the middle of a line, or begin there."""
    told = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return told


@dataclass(frozen=True, slots=True)
class NodeScript:
    """One that runs."""

    process: subprocess.Popen[str]

    def ask(self, command: str, limit_s: float = 180.0) -> str:
        """Its answer, a line.

        Raises:
            AssertionError: It has ended, or does not answer in time. A test that waits on a thread
                must not wait for ever: the event loop waits for its threads when it is closed.
        """
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended: so says its answer
            print(command, file=self.process.stdin, flush=True)
        return self.answer(limit_s)

    def answer(self, limit_s: float = 180.0) -> str:
        assert self.process.stdout is not None
        has_come, _, _ = select.select([self.process.stdout], [], [], limit_s)
        assert has_come, f"the nodes have not answered in {limit_s} s"
        line = self.process.stdout.readline()
        assert line, "the nodes are gone"
        return line.strip()


@contextmanager
def node_script(name: str, *arguments: str | Path) -> Iterator[NodeScript]:
    """`name`: a module beside this one. It ends when its standard input does."""
    process = subprocess.Popen(
        [sys.executable, "-m", f"tests.cluster.{name}", *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    assert process.stdin is not None
    try:
        yield NodeScript(process)
    finally:
        with suppress(BrokenPipeError):  # what it was told last it did not read
            process.stdin.close()
        try:
            status = process.wait(180)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    assert status == 0
