"""Reads that each rank of a D makes itself, into buffers on its own device.

    lead    FarReads: read(id, ...) --------->  RankReads: its agent reads from P's memory
                      <-- landed -------------
            RankedRows: write_rows(id, ...) -->  verifies, and writes to its own blocks
                      <-- what was wrong -----
            drop(id) ------------------------->  gives the read up, or its buffer back

A read that is given up keeps its buffer at the rank until NIXL says that it is over, and writes to
no block meanwhile.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import TypeAlias

import torch

from baton.core.kv_pool import DeviceWrite
from baton.core.rank_memory import Answer, OwnRows, RankLine
from baton.kv_transfer.transport.nixl.reading import Name, Reading
from baton.kv_transfer.transport.nixl.reads import CreateAgent, NixlReads, ReadResult

ReadId: TypeAlias = tuple[str, int]
"""The name of the reader at the lead that has asked for it, and a number of its own."""


class RankReads:
    """At a rank that follows a lead: reads, verifies and writes what the lead asks it to."""

    def __init__(self, rows: OwnRows, create: CreateAgent, device: torch.device) -> None:
        """`rows`: the rank's own blocks, on that device."""
        self._rows = rows
        self._create = create
        self._device = device
        self._reads: NixlReads | None = None
        self._read_by_id: dict[ReadId, asyncio.Future[ReadResult]] = {}

    @property
    def answers(self) -> Mapping[str, Answer]:
        """By name; all on one event loop."""
        return {
            "add_peer": self._add_peer,
            "forget_peer": self._forget_peer,
            "read": self._read,
            "drop": self._drop,
            "look": self._look,
            "sum_up": self._sum_up,
            "write_rows": self._write_rows,
        }

    async def _add_peer(self, metadata: bytes) -> Name:
        return await self._agent().add_peer(metadata)

    async def _forget_peer(self, name: Name) -> None:
        self._agent().forget_peer(name)

    async def _read(self, read_id: ReadId, reading: Reading) -> None:
        """Return when it has landed. Raises what `NixlReads.read` raises."""
        landed = self._read_by_id[read_id] = self._agent().read(reading)
        await asyncio.wait({landed})
        if landed.cancelled():  # dropped, so nobody waits for this answer
            return
        if (error := landed.exception()) is not None:
            self._read_by_id.pop(read_id, None)
            raise error

    async def _drop(self, read_id: ReadId) -> None:
        landed = self._read_by_id.pop(read_id, None)
        if landed is None or landed.cancel() or landed.exception() is not None:
            return
        landed.result().give_back()

    async def _look(self, read_id: ReadId) -> bytes:
        return await asyncio.to_thread(self._landed(read_id).look)

    async def _sum_up(self, read_id: ReadId, unit_bytes: int) -> bytes:
        return await asyncio.to_thread(self._landed(read_id).sum_up, unit_bytes)

    async def _write_rows(self, writes: Sequence[DeviceWrite], unit_bytes: int) -> list[list[int]]:
        here = [replace(each, rows=self._landed(each.rows).memory) for each in writes]
        return await asyncio.to_thread(self._rows.write_rows, here, unit_bytes)

    def _landed(self, read_id: ReadId) -> ReadResult:
        return self._read_by_id[read_id].result()

    def _agent(self) -> NixlReads:
        if self._reads is None:
            name = f"baton-{secrets.token_hex(8)}"
            self._reads = NixlReads(partial(self._create, name), self._device)
        return self._reads


@dataclass(frozen=True, slots=True, eq=False)
class FarRead:
    """A read that has landed at a rank. Call `give_back` once, from any thread."""

    line: RankLine
    id: ReadId

    def give_back(self) -> None:
        self.line.ask("drop", self.id)

    def look(self) -> Future[bytes]:
        return self.line.ask("look", self.id)

    def sum_up(self, unit_bytes: int) -> Future[bytes]:
        return self.line.ask("sum_up", self.id, unit_bytes)


class FarReads:
    """At the lead: what `NixlReads` is, of another rank. Belongs to an event loop."""

    def __init__(self, line: RankLine) -> None:
        self._line = line
        self._name = secrets.token_hex(8)
        self._numbers = count()

    async def add_peer(self, metadata: bytes) -> Name:
        """Raises TransportFailed."""
        name: Name = await asyncio.wrap_future(self._line.ask("add_peer", metadata))
        return name

    def forget_peer(self, name: Name) -> None:
        self._line.ask("forget_peer", name)

    def read(self, reading: Reading) -> asyncio.Future[FarRead]:
        """See `NixlReads.read`."""
        return asyncio.create_task(self._read(reading))

    async def _read(self, reading: Reading) -> FarRead:
        read = FarRead(self._line, (self._name, next(self._numbers)))
        try:
            await asyncio.wrap_future(self._line.ask("read", read.id, reading))
        except BaseException:
            read.give_back()
            raise
        return read
