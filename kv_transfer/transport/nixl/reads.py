"""Reads of other replicas' memory through NIXL, and the thread that runs them.

    WANTED -> posted -> local completion -> LANDED     its bytes are the caller's until given back
                 |             |
                 | given up    `-> FAILED
                 v
            QUARANTINED --- local completion ---> its memory may be used again

What several ranks of a peer keep is one read of several parts, each from another agent, side by
side into one buffer: it lands when all of them are over, and fails with the first that does.
Memory that a read may still write to is never used for anything else: an abandoned read stays, with
its buffer, until NIXL says that it is over. All calls of an agent are made on one thread, because
some block while a peer is being connected to, and completions have to be polled for.

Blocks are named by numbers in a `Grid`, of which NIXL keeps a prepared list for each peer. That
takes less than half of the time of a list made for each read, and neighbouring blocks are read as
one. Bytes land where the buffers are: on a GPU they never pass through this host's memory.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor

from baton.core.errors import TransferCut, TransportFailed
from baton.kv_transfer.layouts.integrity import checksums_on_device
from baton.kv_transfer.transport.nixl.buffers import (
    CPU,
    Buffer,
    Buffers,
    Cut,
    Registrar,
    bind_thread,
)
from baton.kv_transfer.transport.nixl.reading import Grid, Name, Reading, ReadPart

MIN_POLL_S, MAX_POLL_S = 0.0001, 0.002
CLOSING_S = 1.0

T = TypeVar("T")
MAX_GRIDS = 256
"""Prepared lists of one peer: a plane has as many as there are ways of taking heads from it."""


class Agent(Registrar, Protocol):
    """What is used of `nixl_agent`."""

    def get_agent_metadata(self) -> bytes: ...
    def add_remote_agent(self, metadata: bytes) -> Name: ...
    def remove_remote_agent(self, name: Name) -> None: ...
    def make_prepped_xfer(
        self, operation: str, local: Any, local_numbers: Any, remote: Any, remote_numbers: Any
    ) -> Any: ...
    def transfer(self, handle: Any) -> str: ...
    def check_xfer_state(self, handle: Any) -> str: ...
    def release_xfer_handle(self, handle: Any) -> None: ...


CreateAgent: TypeAlias = Callable[[str], Agent]
"""Given the name that it is to have."""


def new_agent(name: str) -> Agent:
    from nixl._api import nixl_agent, nixl_agent_config

    agent: Agent = nixl_agent(name, nixl_agent_config(backends=["UCX"]))
    return agent


@dataclass(frozen=True, slots=True, eq=False)
class ReadResult:
    """The bytes of one read. Call `give_back` once, from any thread."""

    memory: Tensor
    """[bytes] uint8, on the device of the buffers."""
    give_back: Callable[[], None]

    def rows(self, num_rows: int) -> Tensor:
        """[so many, bytes] Equally long rows, end to end."""
        return self.memory.view(num_rows, -1)

    def look(self) -> bytes:
        """A copy on this host."""
        return self.memory.cpu().numpy().tobytes()

    def sum_up(self, unit_bytes: int) -> bytes:
        """The checksums of units that a device can sum up."""
        sums = checksums_on_device(self.memory.view(-1, unit_bytes), unit_bytes)
        assert sums is not None, "see `can_sum_up`"
        return sums

    @property
    def data(self) -> memoryview:
        """The bytes, where the buffers are in memory of this host."""
        return self.memory.numpy().data.toreadonly()


@dataclass(slots=True, eq=False)
class _Read:
    peers: frozenset[Name]
    num_bytes: int
    landed: asyncio.Future[ReadResult]
    buffer: Buffer
    handles: list[Any] = field(default_factory=list)
    """NIXL's transfers of its parts that are not over."""
    lists: list[Any] = field(default_factory=list)
    """The prepared lists that it is made of: they last as long as it does."""
    has_failed: bool = False


class NixlReads:
    """One agent of D's. Belongs to an event loop."""

    def __init__(self, create: Callable[[], Agent], device: torch.device = CPU) -> None:
        """`device`: where bytes land."""
        self._loop = asyncio.get_running_loop()
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._is_closed = False
        # What follows is the thread's.
        self._agent: Agent | None = None
        self._why_none = "it was closed"
        self._device = device
        self._buffers = Buffers(device)
        self._grids: dict[Name, dict[Grid, Any]] = {}
        """Prepared lists of peers."""
        self._in_flight: list[_Read] = []
        self._leaving: set[Name] = set()
        """Peers to forget once nothing is read from them."""
        threading.Thread(target=self._run, args=(create,), name="nixl reads", daemon=True).start()

    @property
    def num_in_flight(self) -> int:
        """Reads that are not over, whether anybody waits for them or not."""
        return len(self._in_flight)

    async def add_peer(self, metadata: bytes) -> Name:
        """Raises TransportFailed."""
        added: asyncio.Future[Name] = self._loop.create_future()
        self._post(partial(self._add_peer, metadata, added))
        return await added

    def forget_peer(self, peer: Name) -> None:
        with suppress(TransportFailed):
            self._post(partial(self._leaving.add, peer))

    def read(self, reading: Reading) -> asyncio.Future[ReadResult]:
        """Fetch these stretches of peers' memory.

        Cancelling gives the read up; its memory stays taken until it is over. Raises
        TransportFailed, by itself or through the future, and BuffersInUse through the future.
        """
        landed: asyncio.Future[ReadResult] = self._loop.create_future()
        self._post(partial(self._start, reading, landed))
        return landed

    async def close(self) -> None:
        """Return soon, at the latest after a second; what is in flight keeps its memory."""
        self._is_closed = True
        self._jobs.put(None)
        await asyncio.wait({self._ended}, timeout=CLOSING_S)

    def _post(self, job: Callable[[], None]) -> None:
        if self._is_closed:
            raise TransportFailed("NIXL: this replica closes")
        self._jobs.put(job)

    def _run(self, create: Callable[[], Agent]) -> None:
        try:
            bind_thread(self._device)
            self._agent = create()
        except Exception as error:
            self._why_none = str(error)
        poll_s, is_open = MIN_POLL_S, True
        while is_open or self._in_flight:
            with suppress(Empty):
                if (job := self._jobs.get(timeout=poll_s if self._in_flight else None)) is None:
                    is_open = False
                else:
                    job()
                    poll_s = MIN_POLL_S
            poll_s = MIN_POLL_S if self._poll() else min(2 * poll_s, MAX_POLL_S)
            self._forget_leaving()
        self._grids.clear()
        self._agent = None  # unregisters the buffers
        self._buffers.clear()
        self._settle(self._ended, None)

    def _ready(self) -> Agent:
        if self._agent is None:
            raise TransportFailed(f"NIXL does not work here: {self._why_none}")
        return self._agent

    def _add_peer(self, metadata: bytes, added: asyncio.Future[Name]) -> None:
        try:
            name = self._ready().add_remote_agent(metadata)
        except Exception as error:
            self._fail(added, error)
        else:
            self._leaving.discard(name)
            self._settle(added, name)

    def _forget_leaving(self) -> None:
        for peer in self._leaving.difference(*(read.peers for read in self._in_flight)):
            self._leaving.remove(peer)
            self._grids.pop(peer, None)
            with suppress(Exception):  # it is gone already
                self._ready().remove_remote_agent(peer)

    def _start(self, reading: Reading, landed: asyncio.Future[ReadResult]) -> None:
        if landed.cancelled():
            return
        try:
            agent = self._ready()
            buffer = self._buffers.take(agent, reading.num_bytes)
        except Exception as error:
            return self._fail(landed, error)
        peers = frozenset(part.peer for part in reading.parts)
        read = _Read(peers, reading.num_bytes, landed, buffer)
        try:
            for part in reading.parts:
                read.handles.append(self._made(agent, read, part, reading.row_bytes))
        except Exception as error:
            self._fail(landed, error)
            _release_unposted(agent, read.handles)
            return self._keep(buffer)
        self._in_flight.append(read)
        num_posted = 0
        try:
            for handle in read.handles:
                num_posted += 1
                agent.transfer(handle)  # `_poll` asks for its state
        except Exception as error:
            read.has_failed = True
            self._fail(landed, error)
            _release_unposted(agent, read.handles[num_posted:])
            del read.handles[num_posted:]

    def _made(self, agent: Agent, read: _Read, part: ReadPart, row_bytes: int) -> Any:
        """NIXL's transfer of one part."""
        remote = self._prepared(agent, part.peer, part.grid)
        cut = Cut(part.offset, part.grid.size, row_bytes)
        local = self._buffers.prepared(agent, read.buffer, cut)
        read.lists += (local, remote)
        targets = np.array(part.rows, dtype=np.int32)
        sources = np.array(part.numbers, dtype=np.int32)
        return agent.make_prepped_xfer("READ", local, targets, remote, sources)

    def _prepared(self, agent: Agent, peer: Name, grid: Grid) -> Any:
        grids = self._grids.setdefault(peer, {})
        if grid not in grids:
            if len(grids) >= MAX_GRIDS:
                grids.clear()
            rows = np.array(grid.rows(), dtype=np.uint64)
            grids[grid] = agent.prep_xfer_dlist(_text(peer), rows, grid.mem_type)
        return grids[grid]

    def _poll(self) -> bool:
        """Whether any read is over."""
        over = [read for read in self._in_flight if self._is_over(read)]
        for read in over:
            self._in_flight.remove(read)
        return bool(over)

    def _is_over(self, read: _Read) -> bool:
        """Whether a read is over; if so its buffer is handed over, or kept for the next one."""
        read.handles = [handle for handle in read.handles if not self._is_done(read, handle)]
        if read.handles:
            return False
        if read.has_failed:
            self._keep(read.buffer)
        else:
            give_back = partial(self._give_back, read.buffer)
            memory = read.buffer.memory[: read.num_bytes]
            self._tell(partial(_hand_over, read.landed, ReadResult(memory, give_back)))
        return True

    def _is_done(self, read: _Read, handle: Any) -> bool:
        """Whether NIXL writes nothing any more for this part."""
        agent = self._ready()
        try:
            state = agent.check_xfer_state(handle)
        except Exception as error:
            state = "ERR"
            self._fail(read.landed, error)
        if state == "PROC":
            return False
        if state != "DONE":
            read.has_failed = True
            self._fail(read.landed, TransportFailed("NIXL: a read failed"))
        try:
            agent.release_xfer_handle(handle)
        except Exception:
            return False  # NIXL still works on it: quarantined, asked again later
        return True

    def _keep(self, buffer: Buffer) -> None:
        self._buffers.keep(self._ready(), buffer)

    def _give_back(self, buffer: Buffer) -> None:
        with suppress(TransportFailed):
            self._post(partial(self._keep, buffer))

    def _tell(self, function: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(function)

    def _settle(self, future: asyncio.Future[T], value: T) -> None:
        self._tell(lambda: None if future.done() else future.set_result(value))

    def _fail(self, future: asyncio.Future[T], error: Exception) -> None:
        if not isinstance(error, TransferCut):  # the library's own
            error = TransportFailed(f"NIXL: {str(error) or type(error).__name__}")
        self._tell(partial(_set_failure, future, error))


def _release_unposted(agent: Agent, handles: Iterable[Any]) -> None:
    """Nothing was ever written for them."""
    for handle in handles:
        with suppress(Exception):
            agent.release_xfer_handle(handle)


def _text(peer: Name) -> str:
    return peer.decode() if isinstance(peer, bytes) else peer


def _hand_over(future: asyncio.Future[ReadResult], landed: ReadResult) -> None:
    if future.done():  # given up
        landed.give_back()
    else:
        future.set_result(landed)


def _set_failure(future: asyncio.Future[T], error: TransferCut) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # a stream that ends early looks at none
