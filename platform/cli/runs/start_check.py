"""Checks a deployment in a second process while the first prepares the start.

    serve    -> check    the configuration and the model folder, JSON, on its standard input
    check    -> serve    the verdict, JSON, on its standard output; nothing if it could not judge

It does not import torch, which would take longer than the check, but a substitute with shapes only
(`baton.platform.doctor.torch_of_shapes`); cases that need more are checked with torch. A start that
was checked before, and has enough memory, is not checked again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, NoReturn, Self

import msgspec

from baton.core.errors import BatonError, CheckpointError, InvalidConfig
from baton.platform.cli.runs.judged_starts import JudgedStart, Needs
from baton.platform.config.deployment import DeploymentConfig
from baton.platform.doctor import torch_of_shapes
from baton.platform.machine.memory import MemoryFacts

COMMAND = (sys.executable, "-m", "baton.platform.cli.runs.start_check")
WITH_TORCH = "--with-torch"


class Question(msgspec.Struct, frozen=True, kw_only=True):
    config: DeploymentConfig
    folder: str
    memory: MemoryFacts


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    refusal: str = ""
    is_of_model: bool = False
    """Whether the refusal is about the model; else it is about the configuration."""
    warning: str = ""
    needs: Needs | None = None
    """The needs of a start that is neither refused nor warned of."""


class StartCheck:
    """The checking process. It answers one question, and ends at the latest with this context."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._start: JudgedStart | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    @property
    def is_known(self) -> bool:
        """Whether the start was checked before, so that no process was started."""
        return self._process is None

    def ask(self, config: DeploymentConfig, folder: Path, memory: MemoryFacts) -> None:
        self._start = JudgedStart(config, folder)
        if self._start.is_known(memory):
            return
        question = Question(config=config, folder=str(folder), memory=memory)
        self._process = subprocess.Popen(
            COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # the parent handles Ctrl-C
        )
        assert self._process.stdin is not None, "it is a pipe"
        self._process.stdin.write(msgspec.json.encode(question) + b"\n")
        self._process.stdin.flush()

    def warning(self) -> str:
        """Wait for the verdict; works in a fork of the asking process, too. Return a warning, if
        any. Raises CheckpointError or InvalidConfig if the start is refused."""
        if self._process is None or self._start is None:
            return ""
        assert self._process.stdout is not None, "it is a pipe"
        line = self._process.stdout.readline()
        verdict = msgspec.json.decode(line, type=Verdict) if line else Verdict()
        if verdict.needs is not None:
            self._start.keep(verdict.needs)
        if verdict.refusal:
            kind = CheckpointError if verdict.is_of_model else InvalidConfig
            raise kind(verdict.refusal)
        return verdict.warning


def judge(question: Question) -> Verdict:
    from baton.platform.doctor.start_check import check_start

    try:
        wanted, warning = check_start(question.config, Path(question.folder), question.memory)
    except BatonError as error:
        return Verdict(refusal=str(error), is_of_model=isinstance(error, CheckpointError))
    if warning:
        return Verdict(warning=warning)
    if wanted is None:
        return Verdict(needs=Needs())
    return Verdict(needs=Needs(start_bytes=wanted.start_bytes, full_bytes=wanted.full_bytes))


def judge_by_shapes(question: Question) -> Verdict | None:
    """The verdict without torch, which this process cannot import afterwards; None if torch is
    needed."""
    torch_of_shapes.install()
    try:
        if question.config.device == "auto" and not question.config.ray.address:
            torch_of_shapes.is_available()  # checked first, to avoid useless imports
        return judge(question)
    except (torch_of_shapes.NeedsTorch, Exception):  # any error caused by the substitute
        return None


def _restart_with_torch(line: bytes) -> NoReturn:
    with _nameless_file() as asked:
        asked.write(line)
        asked.seek(0)
        os.dup2(asked.fileno(), sys.stdin.fileno())
        os.execv(sys.executable, [*COMMAND, WITH_TORCH])


def _nameless_file() -> IO[bytes]:
    """An anonymous file, in memory if possible, since a container may have no writable folder."""
    if sys.platform == "linux":
        return os.fdopen(os.memfd_create("baton-start-check"), "w+b")
    return TemporaryFile()


def main(arguments: Sequence[str]) -> None:
    line = sys.stdin.buffer.readline()
    if not line:
        return
    question = msgspec.json.decode(line, type=Question)
    verdict = judge(question) if WITH_TORCH in arguments else judge_by_shapes(question)
    if verdict is None:
        _restart_with_torch(line)
    sys.stdout.buffer.write(msgspec.json.encode(verdict) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
