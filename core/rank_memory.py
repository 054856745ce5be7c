"""The protocol between a lead and its ranks about the memory that each rank processes itself.

    lead    RankLine.ask("checksums", ...) ---->  a rank: checksums its own blocks OwnRows
            RankLine.ask("read", ...) --------->          reads from a peer        Introduction
            RankLine.ask("write_rows", ...) --->          verifies and writes      OwnRows

The bytes of a piece that several ranks have read are `RankRows`: each rank holds its part.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

from baton.core.errors import TransferCut
from baton.core.kv_pool import DeviceWrite

ANSWER_S = 10.0
"""Seconds for a rank to sum up some blocks, or to copy to its host what it has read."""


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
