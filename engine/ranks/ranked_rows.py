"""Blocks on several ranks, each of which checksums, verifies and writes its own part.

    lead      waits for passes, then asks all ranks at once, processes its own part, and collects
    a rank    checksums its heads of some blocks; or takes rows that it has read: checksums and
              compares them, zeroes wrong ones, writes them to its blocks. Only checksums, or the
              indices of wrong units, are sent back

The bytes stay on the device of the rank that stores them. The lead waits for the work it has
launched (launched_work.py) before it asks, so that ranks need not wait for passes of their own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from baton.core.kv_pool import DeviceWrite
from baton.core.rank_memory import Answer, OwnRows, RankLine, RankPart, answer_in_time
from baton.engine.memory.device_rows import DeviceRows
from baton.engine.ranks.launched_work import LaunchedWork
from baton.kernels.paging.checksum import WORD_BYTES

CHECKSUMS, WRITE_ROWS = "checksums", "write_rows"
"""The kinds of questions to ranks."""
SLOW_WRITE_S = 20.0
"""Seconds after which the log names ranks that still write, again and again. A replica of which one
hangs is replaced (`ReplicaCore.check_health`)."""

log = logging.getLogger(__name__)


def answering_checksums(rows: OwnRows) -> Answer:
    """Answers on a rank: checksums of its own blocks. Rows are written by the code that has read
    them there (`kv_transfer/transport/nixl/rank_reads.py`)."""

    async def answer(blocks: Sequence[int], planes: range, part: slice, unit_bytes: int) -> bytes:
        return await asyncio.to_thread(rows.checksums, blocks, planes, part, unit_bytes)

    return answer


@dataclass(frozen=True, slots=True)
class HeldBytes:
    """The bytes that one rank stores of each block of one plane."""

    rank: int
    plane: int
    """The rank's number of the plane."""
    whole: range
    """Their range in a block of the whole cache."""
    inner: int
    """Offset of the first of them in a block of the rank's."""


@dataclass(frozen=True, slots=True)
class RankMemory:
    """The memory of one rank, and the connection to it."""

    first_plane: int
    line: RankLine | None
    """None: the lead itself."""


class RankedRows:
    """Implements `RowsOnDevice`."""

    def __init__(
        self,
        whole: DeviceRows,
        own: OwnRows,
        ranks: Sequence[RankMemory],
        held: Callable[[int], Iterable[HeldBytes]],
        launched: LaunchedWork,
    ) -> None:
        """`whole`: all blocks as mapped by the lead, for data that the lead has read itself.
        `held`: by plane, the ranks from which each byte of a block is read, without overlap."""
        self._whole = whole
        self._own = own
        self._ranks = ranks
        self._held = held
        self._launched = launched

    def takes(self, rows: Any) -> bool:
        return not isinstance(rows, Tensor) or self._whole.takes(rows)

    def checksums(
        self, blocks: Sequence[int], planes: range, part: slice, unit_bytes: int
    ) -> bytes:
        """See `OwnRows`. Raises TransferCut if a rank does not answer in time, or is gone."""
        found = torch.empty(
            len(planes), len(blocks), (part.stop - part.start) // unit_bytes, dtype=torch.int64
        )
        shares = self._shares(planes, part)
        self._launched.await_computed(planes)
        asked: list[tuple[Tensor, Future[bytes] | bytes]] = []
        for (rank, start, stop, shift), rows in sorted(shares.items(), reverse=True):
            first = (start - part.start) // unit_bytes
            place = found[
                rows[0][0] : rows[-1][0] + 1, :, first : first + (stop - start) // unit_bytes
            ]
            own_planes = range(rows[0][1], rows[-1][1] + 1)
            about = blocks, own_planes, slice(start + shift, stop + shift), unit_bytes
            line = self._ranks[rank].line
            if line is None:  # the lead's come last: others begin before
                asked.append((place, self._own.checksums(*about)))
            else:
                asked.append((place, line.ask(CHECKSUMS, *about)))
        for place, answer in asked:
            place.copy_(_words(answer_in_time(answer)).view(place.shape))
        return found.numpy().tobytes()

    def write_rows(self, writes: Sequence[DeviceWrite], unit_bytes: int) -> list[list[int]]:
        """See `OwnRows`. Returns, or raises TransportFailed if a rank is gone, when no rank writes
        any more: so it waits as long as that takes."""
        by_ranks = [number for number, each in enumerate(writes) if self._is_ranked(each)]
        by_lead = [number for number, each in enumerate(writes) if not self._is_ranked(each)]
        bad: list[list[int]] = [[] for _ in writes]
        if by_lead:
            found = self._whole.write_rows([writes[number] for number in by_lead], unit_bytes)
            for number, wrong in zip(by_lead, found, strict=True):
                bad[number] = wrong
        if by_ranks:
            self._write_by_ranks(writes, by_ranks, unit_bytes, bad)
        return [sorted({*wrong}) for wrong in bad]

    def _write_by_ranks(
        self,
        writes: Sequence[DeviceWrite],
        numbers: Sequence[int],
        unit_bytes: int,
        bad: list[list[int]],
    ) -> None:
        by_rank: dict[int, list[_PartWrite]] = {}
        for number in numbers:
            for part in writes[number].rows.parts:
                of_rank = _PartWrite(number, writes[number], part, unit_bytes)
                by_rank.setdefault(part.rank, []).append(of_rank)
        self._launched.await_passes()  # they may still write to these blocks, for another request
        told: list[_Told] = []
        own: list[_PartWrite] = []
        own_writes: list[DeviceWrite] = []
        try:
            for rank, parts in by_rank.items():
                memory = self._ranks[rank]
                shifted = [part.shifted(memory.first_plane) for part in parts]
                if memory.line is None:
                    own, own_writes = parts, shifted
                else:
                    told.append((parts, memory.line.ask(WRITE_ROWS, shifted, unit_bytes)))
            if own:
                _note(own, self._own.write_rows(own_writes, unit_bytes), bad)
        finally:
            _await_written(told)
        for parts, answer in told:
            _note(parts, answer.result(), bad)

    def _is_ranked(self, write: DeviceWrite) -> bool:
        return not isinstance(write.rows, Tensor)

    def _shares(
        self, planes: range, part: slice
    ) -> dict[tuple[int, int, int, int], list[tuple[int, int]]]:
        """The parts of a range of a block by owner: (rank, begin and end in the whole block, shift
        to offsets in the rank's block), with the rows of `planes` and the rank's numbers of these
        planes, which are consecutive."""
        found: dict[tuple[int, int, int, int], list[tuple[int, int]]] = {}
        for row, plane in enumerate(planes):
            for held in self._held(plane):
                start, stop = max(part.start, held.whole.start), min(part.stop, held.whole.stop)
                if start < stop:
                    key = held.rank, start, stop, held.inner - held.whole.start
                    found.setdefault(key, []).append((row, held.plane))
        return found


@dataclass(frozen=True, slots=True, eq=False)
class _PartWrite:
    """One rank's part of one write."""

    number: int
    """The number of the write."""
    write: DeviceWrite
    part: RankPart
    unit_bytes: int

    def shifted(self, first_plane: int) -> DeviceWrite:
        """The write with the rank's numbers of planes."""
        whole, own = self.write.planes, self.part.planes
        planes = range(whole[own.start] - first_plane, whole[own.start] - first_plane + len(own))
        sums = _words(self.write.checksums).view(len(whole), len(self.write.indices), -1)
        expected = sums[own.start : own.stop, :, self._units.start : self._units.stop]
        packed = expected.contiguous().numpy().tobytes()
        return DeviceWrite(self.write.indices, planes, self.part.rows, packed)

    def number_of(self, unit: int) -> int:
        """The index in the whole write of a unit of this part."""
        row, inner = divmod(unit, len(self._units))
        num_each = len(self.write.checksums) // (
            WORD_BYTES * len(self.write.planes) * len(self.write.indices)
        )
        first_row = self.part.planes.start * len(self.write.indices)
        return (first_row + row) * num_each + self._units.start + inner

    @property
    def _units(self) -> range:
        span = self.part.span
        return range(span.start // self.unit_bytes, span.stop // self.unit_bytes)


_Told: TypeAlias = tuple[list[_PartWrite], Future[list[list[int]]]]
"""The writes requested from one rank, and its answer."""


def _note(parts: Sequence[_PartWrite], found: Sequence[list[int]], bad: list[list[int]]) -> None:
    for part, wrong in zip(parts, found, strict=True):
        bad[part.number] += [part.number_of(unit) for unit in wrong]


def _words(checksums: bytes) -> Tensor:
    return torch.frombuffer(bytearray(checksums), dtype=torch.int64)


def _await_written(told: Sequence[_Told]) -> None:
    """Return when no rank is writing any more."""
    rank_by_answer = {answer: parts[0].part.rank for parts, answer in told}
    waited_s = 0.0
    while slow := wait(rank_by_answer, SLOW_WRITE_S).not_done:
        waited_s += SLOW_WRITE_S
        ranks = sorted(rank_by_answer[answer] for answer in slow)
        log.warning("ranks %s have been writing KV for %g s; its blocks wait", ranks, waited_s)
