"""A process that judges a deployment beside the one that prepares its start.

    serve    -> check    the configuration and the model folder, JSON, on its standard input
    check    -> serve    the verdict, JSON, on its standard output; nothing: it could not judge

It has no torch, which would take it longer than all the rest, but the shapes that models are
told by (`baton.platform.doctor.torch_of_shapes`); what these do not tell is judged with torch.
What was judged well before, and has room, is not judged again.
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
    """Whether that is the model's fault; else it is the configuration's."""
    warning: str = ""
    needs: Needs | None = None
    """The needs of a start that is neither refused nor warned of."""


class StartCheck:
    """The process. It is asked once, and ends with its answer or with this context."""

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
        """No process was begun: such a start was judged before."""
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
            start_new_session=True,  # Ctrl-C is ours to take
        )
        assert self._process.stdin is not None, "it is a pipe"
        self._process.stdin.write(msgspec.json.encode(question) + b"\n")
        self._process.stdin.flush()

    def warning(self) -> str:
        """Wait for the verdict; also in a fork of the process that asked. Raises CheckpointError or
        InvalidConfig where nothing may be started."""
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
    """The verdict of a process that has not imported torch, and cannot any more; None if it takes
    torch to know."""
    torch_of_shapes.install()
    try:
        if question.config.device == "auto" and not question.config.ray.address:
            torch_of_shapes.is_available()  # asked before modules are imported in vain
        return judge(question)
    except (torch_of_shapes.NeedsTorch, Exception):  # whatever modules did with what is not there
        return None


def _begin_again_with_torch(line: bytes) -> NoReturn:
    with _nameless_file() as asked:
        asked.write(line)
        asked.seek(0)
        os.dup2(asked.fileno(), sys.stdin.fileno())
        os.execv(sys.executable, [*COMMAND, WITH_TORCH])


def _nameless_file() -> IO[bytes]:
    """In memory where the system has that: a container may have no folder to write to."""
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
        _begin_again_with_torch(line)
    sys.stdout.buffer.write(msgspec.json.encode(verdict) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
