"""The protocol between a lead and its ranks about the memory that each rank processes itself.

    lead    RankLine.ask("checksums", ...) ---->  a rank: checksums its own blocks OwnRows
            RankLine.ask("read", ...) --------->          reads from a peer        Introduction
            RankLine.ask("write_rows", ...) --->          verifies and writes      OwnRows

The bytes of a piece that several ranks have read are `RankRows`: each rank holds its part.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple, Protocol, TypeAlias

from baton.core.clock import Clock, monotonic
from baton.core.errors import EngineFailed, TransferCut
from baton.core.kv_pool import DeviceWrite

ANSWER_S = 10.0
"""Seconds for a rank to sum up some blocks, or to copy to its host what it has read."""
WRITE_S = 60.0
"""Seconds for a rank to verify and write what it has read, which may compile kernels first. A rank
that takes longer hangs."""


class OwnRows(Protocol):
    """Whole blocks of one process, on the device where they lie; on any thread, which waits."""

    def checksums(
        self, blocks: Sequence[int], planes: range, part: slice, unit_bytes: int
    ) -> bytes:
        """See `BlockSource.checksums`; the numbers of blocks and planes are the memory's own."""

    def write_rows(self, writes: Sequence[DeviceWrite], unit_bytes: int) -> list[list[int]]:
        """See `BlockTargets.write_rows`; `indices` are numbers of blocks."""


class RankLine(Protocol):
    """A lead's line to one of its ranks."""

    def ask(self, what: str, *about: Any) -> Future[Any]:
        """Return at once, on any thread. The future has the rank's answer, or what the rank raised;
        TransportFailed once the rank is gone."""

    def close(self) -> None:
        """The rank answers nothing any more."""


class WriteWatch:
    """The time since when a rank has been writing to its own blocks. Thread-safe.

    A rank whose device hangs may write at any time until its process ends, so its blocks cannot be
    given to anyone before. Therefore such a rank counts as gone after a while, although its process
    answers.
    """

    def __init__(self, clock: Clock = monotonic) -> None:
        self._clock = clock
        self._begun: dict[int, float] = {}
        self._numbers = count()

    @contextmanager
    def writing(self) -> Iterator[None]:
        number = next(self._numbers)
        self._begun[number] = self._clock()
        try:
            yield
        finally:
            del self._begun[number]

    def check(self) -> None:
        """Raises EngineFailed if a write has been under way for longer than `WRITE_S`."""
        longest_s = max((self._clock() - begun for begun in [*self._begun.values()]), default=0.0)
        if longest_s > WRITE_S:
            raise EngineFailed(f"it has been writing KV to its blocks for {longest_s:.0f} s")


class WatchedRows:
    """A rank's rows, each write to which is watched."""

    def __init__(self, rows: OwnRows, watch: WriteWatch) -> None:
        self._rows = rows
        self._watch = watch

    def checksums(
        self, blocks: Sequence[int], planes: range, part: slice, unit_bytes: int
    ) -> bytes:
        """See `OwnRows`."""
        return self._rows.checksums(blocks, planes, part, unit_bytes)

    def write_rows(self, writes: Sequence[DeviceWrite], unit_bytes: int) -> list[list[int]]:
        """See `OwnRows`."""
        with self._watch.writing():
            return self._rows.write_rows(writes, unit_bytes)


Answer: TypeAlias = Callable[..., Coroutine[Any, Any, Any]]
"""The rank's handler of one kind of question; runs on the event loop of its connection."""


class Introduction(NamedTuple):
    """A rank's memory, as others reach it."""

    word: bytes
    """For other replicas: see `ArenaShare.introduction`."""
    answers: Mapping[str, Answer]
    """For the lead: what the rank can be asked, by name."""


@dataclass(frozen=True, slots=True, eq=False)
class RankPart:
    """The part of a piece that one rank has read."""

    rank: int
    """Its number among the shares of the lead's arena."""
    planes: range
    """Counted from the first plane of the piece."""
    span: range
    """Bytes of each block of the whole."""
    rows: Any
    """uint8 [planes x blocks, bytes]: of the lead itself a torch tensor, of others what the rank
    knows it by."""


class RankRows(Protocol):
    """The bytes of a piece, of which each rank has read its part."""

    @property
    def parts(self) -> Sequence[RankPart]: ...

    def checksums(self, unit_bytes: int) -> bytes:
        """Checksums of all units, by plane and block; each rank sums up what it has read."""


def answer_in_time(answer: bytes | Future[bytes]) -> bytes:
    """The answer of the lead itself, or of a rank, which is waited for. Raises TransferCut if it
    takes too long, and what the rank raised."""
    if isinstance(answer, bytes):
        return answer
    try:
        return answer.result(ANSWER_S)
    except TimeoutError:
        raise TransferCut(f"a rank has not answered for {ANSWER_S:g} s") from None
