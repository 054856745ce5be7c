"""The answers of a batch: one line each, in a file per lease epoch, synced to disk before they
count.

    answers.EPOCH    <line of the input> <1 if it was answered, 0 if it failed> <line of the output>

Answers that arrive during a sync are written together in the next one. A truncated line does not
count: its request runs again. If a holder that was thought dead and its successor both answer a
request, the answer of the lower epoch holds.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from baton.gateway.batches.disk import Disk
from baton.gateway.batches.lease import epochs

PREFIX = "answers."
LINE = re.compile(rb"(\d+) ([01]) (\{.*\})\n", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Answered:
    line: int
    """The line's number in the input, from 1."""
    is_ok: bool
    output: bytes
    """A JSON object, without a newline."""


@dataclass(slots=True)
class _Group:
    """Answers that are written and synced together."""

    data: list[bytes] = field(default_factory=list)
    done: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class Journal:
    """The journal of one lease holder. `check` raises if it may not write any more."""

    def __init__(self, folder: Path, epoch: int, check: Callable[[], None], disk: Disk) -> None:
        self._path = folder / f"{PREFIX}{epoch}"
        self._check = check
        self._disk = disk
        self._next = _Group()
        self._error: Exception | None = None
        self._writing: asyncio.Task[None] | None = None

    async def append(self, answered: Answered) -> None:
        """Return once the answer is on disk. Raises LeaseLost, OSError, and then for every later
        call: a line may have been cut, and the next would be read as its rest."""
        group = self._next
        group.data.append(b"%d %d %s\n" % (answered.line, answered.is_ok, answered.output))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write_groups(), name="writes answers")
        await asyncio.shield(group.done)

    async def close(self) -> None:
        """Return once all that was appended is on disk, or failed to be."""
        if self._writing is not None:
            await self._writing

    async def _write_groups(self) -> None:
        while self._next.data:
            group, self._next = self._next, _Group()
            try:
                if self._error is None:
                    await self._disk(self._write, b"".join(group.data))
            except Exception as error:
                self._error = error
            if self._error is None:
                group.done.set_result(None)
            else:
                group.done.set_exception(self._error)
                group.done.exception()  # the waiter may have been cancelled

    def _write(self, data: bytes) -> None:
        self._check()
        with self._path.open("ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())


@dataclass(frozen=True, slots=True)
class Part:
    """The part of a holder's journal that counts; lines it appends later are never read."""

    path: Path
    num_bytes: int


def parts_before(folder: Path, epoch: int) -> list[Part]:
    """The journals of the holders before that epoch, as they are now. Blocks. Raises OSError."""
    paths = [folder / f"{PREFIX}{one}" for one in epochs(folder, PREFIX) if one < epoch]
    return [Part(path, path.stat().st_size) for path in paths]


def part_of(folder: Path, epoch: int) -> list[Part]:
    """The journal of one holder, if it has written any. Blocks. Raises OSError."""
    path = folder / f"{PREFIX}{epoch}"
    return [Part(path, path.stat().st_size)] if path.exists() else []


def read_answers(parts: Iterable[Part]) -> Iterator[Answered]:
    """One answer for each request. Blocks. Raises OSError."""
    seen: set[int] = set()
    for part in parts:
        num_left = part.num_bytes
        with part.path.open("rb") as file:
            for text in file:
                num_left -= len(text)
                if num_left < 0:
                    break
                match = LINE.fullmatch(text)
                if match is not None and int(match[1]) not in seen:
                    seen.add(int(match[1]))
                    yield Answered(int(match[1]), match[2] == b"1", match[3])
