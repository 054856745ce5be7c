"""Reads of a peer's memory through NIXL: with the library where it is installed, and with an agent
that obeys the test, where the order of events matters."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.kv_transfer.transport.nixl.nixl_peer import FarPeer

from baton.core.errors import TransportFailed
from baton.kv_transfer.transport.nixl import buffers as nixl_buffers
from baton.kv_transfer.transport.nixl import reads as nixl_reads
from baton.kv_transfer.transport.nixl.buffers import Buffers, BuffersInUse
from baton.kv_transfer.transport.nixl.reading import Grid, Name, Reading, ReadPart
from baton.kv_transfer.transport.nixl.reads import NixlReads, new_agent

MIB = 1 << 20

Stretch = tuple[int, int, int]
"""Address, length in bytes, number of the device."""


def whole(far: FarPeer) -> Grid:
    address, length, device = far.memory.stretch
    return Grid((address,), count=1, size=length, stride=length, device=device)


def one(peer: Name, grid: Grid, numbers: Sequence[int] = (0,)) -> Reading:
    """These stretches, each in a row of its own."""
    part = ReadPart(peer, grid, numbers, range(len(numbers)))
    return Reading([part], grid.size, len(numbers))


@pytest.fixture
def far() -> Iterator[FarPeer]:
    pytest.importorskip("nixl")
    peer = FarPeer(4 * MIB)
    yield peer
    peer.end()


async def test_what_the_library_reads_is_what_the_peer_holds(far: FarPeer) -> None:
    reads = NixlReads(partial(new_agent, "near"))
    name = await reads.add_peer(far.memory.metadata)
    address, _, _ = far.memory.stretch
    half = MIB // 2
    two_rows = Grid(starts=(address, address + 2 * MIB), count=4, size=half, stride=half)

    landed = await reads.read(one(name, two_rows, [2, 3, 7]))

    assert landed.data == bytes([7]) * 3 * half
    landed.give_back()
    await reads.close()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
async def test_what_the_library_reads_goes_from_one_memory_of_a_gpu_to_another() -> None:
    pytest.importorskip("nixl")
    device = torch.device("cuda:0")
    memory = torch.arange(4 * MIB, device=device).to(torch.uint8)
    torch.cuda.synchronize(device)
    peer = new_agent("p")
    peer.register_memory([(memory.data_ptr(), 4 * MIB, 0, "")], "VRAM")
    reads = NixlReads(partial(new_agent, "near"), device)
    name = await reads.add_peer(peer.get_agent_metadata())
    grid = Grid((memory.data_ptr(),), count=4, size=MIB, stride=MIB, mem_type="VRAM")

    landed = await reads.read(one(name, grid, [3, 1]))

    assert landed.memory.device == device
    assert torch.equal(landed.memory, torch.cat([memory[3 * MIB :], memory[MIB : 2 * MIB]]))
    landed.give_back()
    await reads.close()


async def test_a_killed_peer_fails_the_read(far: FarPeer) -> None:
    reads = NixlReads(partial(new_agent, "near"))
    name = await reads.add_peer(far.memory.metadata)
    landed = await reads.read(one(name, whole(far)))
    landed.give_back()
    far.end()

    async with asyncio.timeout(60):
        with pytest.raises(TransportFailed):
            await reads.read(one(name, whole(far)))
        while reads.num_in_flight:
            await asyncio.sleep(0.01)

    reads.forget_peer(name)
    await reads.close()


async def test_a_read_from_a_peer_that_stands_still_can_be_given_up(far: FarPeer) -> None:
    reads = NixlReads(partial(new_agent, "near"))
    name = await reads.add_peer(far.memory.metadata)
    (await reads.read(one(name, whole(far)))).give_back()
    os.kill(far.process.pid or 0, signal.SIGSTOP)

    reading = reads.read(one(name, whole(far)))
    await asyncio.wait({reading}, timeout=0.1)
    reading.cancel()

    os.kill(far.process.pid or 0, signal.SIGCONT)
    async with asyncio.timeout(60):
        while reads.num_in_flight:
            await asyncio.sleep(0.01)
    assert (await reads.read(one(name, whole(far)))).data.tobytes()[:3] == b"\7\7\7"
    await reads.close()


@dataclass(eq=False)
class Handle:
    local: Sequence[Stretch]
    remote: Sequence[Stretch]
    state: str = "PROC"
    is_stuck: bool = False
    """It cannot be released."""

    def complete(self) -> None:
        """As a network would: write, then say so."""
        for (target, length, _), (source, _, _) in zip(self.local, self.remote, strict=True):
            ctypes.memmove(target, source, length)
        self.state = "DONE"


@dataclass(eq=False)
class ObedientAgent:
    """Does what `nixl_agent` does, when the test says so. Peers are of this process."""

    posted: list[Handle] = field(default_factory=list)
    has_posted: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    peers: set[str] = field(default_factory=set)
    registered: list[tuple[int, int]] = field(default_factory=list)

    def register_memory(
        self, stretches: Sequence[tuple[int, int, int, str]], mem_type: str
    ) -> list[tuple[int, int]]:
        found = [(address, length) for address, length, _, _ in stretches]
        self.registered += found
        return found

    def deregister_memory(self, registered: list[tuple[int, int]]) -> None:
        for each in registered:
            self.registered.remove(each)

    def get_agent_metadata(self) -> bytes:
        return b"obedient"

    def add_remote_agent(self, metadata: bytes) -> str:
        self.peers.add(metadata.decode())
        return metadata.decode()

    def remove_remote_agent(self, name: Name) -> None:
        self.peers.remove(str(name))

    def prep_xfer_dlist(
        self, agent_name: str, grids: NDArray[np.uint64], mem_type: str
    ) -> list[Stretch]:
        if agent_name and agent_name not in self.peers:
            raise RuntimeError("NIXL_ERR_NOT_FOUND")
        return [
            (start + number * stride, size, device)
            for start, size, device, stride, count in grids.tolist()
            for number in range(count)
        ]

    def make_prepped_xfer(
        self,
        operation: str,
        local: list[Stretch],
        local_numbers: NDArray[np.int32],
        remote: list[Stretch],
        remote_numbers: NDArray[np.int32],
    ) -> Handle:
        targets, sources = local_numbers.tolist(), remote_numbers.tolist()
        return Handle([local[at] for at in targets], [remote[at] for at in sources])

    def transfer(self, handle: Handle) -> str:
        self.posted.append(handle)
        self.has_posted.release()
        return handle.state

    def check_xfer_state(self, handle: Handle) -> str:
        return handle.state

    def release_xfer_handle(self, handle: Handle) -> None:
        if handle.is_stuck or handle.state == "PROC":
            raise RuntimeError("NIXL_ERR_REPOST_ACTIVE")


@dataclass
class Source:
    """Memory to read from."""

    fill: int
    data: ctypes.Array[ctypes.c_char] = field(init=False)

    def __post_init__(self) -> None:
        self.data = ctypes.create_string_buffer(bytes([self.fill]) * 1000, 1000)

    @property
    def address(self) -> int:
        return ctypes.addressof(self.data)

    @property
    def grid(self) -> Grid:
        return Grid((self.address,), count=1, size=1000, stride=1000)


@dataclass
class Obeyed:
    agent: ObedientAgent
    reads: NixlReads
    sources: list[Source] = field(default_factory=list)
    """Kept: they are read whenever the test says so."""

    async def start(self, source: Source) -> tuple[asyncio.Future[nixl_reads.ReadResult], Handle]:
        self.sources.append(source)
        reading = self.reads.read(one("p", source.grid))
        await asyncio.to_thread(self.agent.has_posted.acquire)
        return reading, self.agent.posted[-1]

    async def is_idle(self) -> None:
        async with asyncio.timeout(60):
            while self.reads.num_in_flight:
                await asyncio.sleep(0.001)
        await asyncio.sleep(0)  # what the last one told this loop has been done


@asynccontextmanager
async def obeyed() -> AsyncIterator[Obeyed]:
    agent = ObedientAgent()
    reads = NixlReads(lambda: agent)
    await reads.add_peer(b"p")
    yield Obeyed(agent, reads)
    for handle in agent.posted:
        handle.is_stuck, handle.state = False, "DONE"
    await reads.close()


async def test_stretches_land_end_to_end() -> None:
    async with obeyed() as it:
        first, second = Source(1), Source(2)
        both = Grid((first.address, second.address), count=1, size=1000, stride=1000)
        reading = it.reads.read(one("p", both, [0, 1]))
        await asyncio.to_thread(it.agent.has_posted.acquire)

        it.agent.posted[0].complete()

        assert (await reading).data == bytes([1]) * 1000 + bytes([2]) * 1000


async def test_memory_of_a_read_that_was_given_up_is_not_used_before_the_read_is_over() -> None:
    async with obeyed() as it:
        given_up, late = await it.start(Source(1))
        given_up.cancel()
        reading, handle = await it.start(Source(2))
        handle.complete()
        landed = await reading

        late.complete()  # writes all the same
        await it.is_idle()

        assert landed.data == bytes([2]) * 1000
        assert late.local != handle.local
        _, third = await it.start(Source(3))
        assert third.local == late.local
        assert len(it.agent.registered) == 2


async def test_memory_of_a_failed_read_stays_taken_while_nixl_works_on_it() -> None:
    async with obeyed() as it:
        reading, failed = await it.start(Source(1))
        failed.is_stuck, failed.state = True, "ERR"
        another, handle = await it.start(Source(2))
        assert handle.local != failed.local
        assert it.reads.num_in_flight == 2

        failed.is_stuck = False

        with pytest.raises(TransportFailed, match="a read failed"):
            await reading
        handle.complete()
        await another
        _, third = await it.start(Source(3))
        assert third.local == failed.local


async def test_what_landed_too_late_is_given_back() -> None:
    async with obeyed() as it:
        reading, handle = await it.start(Source(1))
        handle.complete()
        reading.cancel()
        await it.is_idle()

        _, again = await it.start(Source(2))

        assert again.local == handle.local


async def test_a_peer_is_forgotten_once_nothing_is_read_from_it() -> None:
    async with obeyed() as it:
        reading, handle = await it.start(Source(1))
        it.reads.forget_peer("p")
        await it.reads.add_peer(b"q")  # after it, in order
        assert it.agent.peers == {"p", "q"}

        handle.complete()
        await reading
        await it.reads.add_peer(b"r")

        assert it.agent.peers == {"q", "r"}


async def test_a_read_from_an_unknown_peer_fails_and_takes_nothing() -> None:
    async with obeyed() as it:
        with pytest.raises(TransportFailed, match="NOT_FOUND"):
            await it.reads.read(one("unknown", Source(1).grid))

        _, handle = await it.start(Source(2))

        assert len(it.agent.registered) == 1
        assert handle.local[0][0] == it.agent.registered[0][0]


async def test_registered_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nixl_buffers, "MAX_BUFFER_BYTES", nixl_buffers.MIN_BUFFER_BYTES)
    async with obeyed() as it:
        await it.start(Source(1))

        with pytest.raises(BuffersInUse, match="65536 bytes of buffers are in use"):
            await it.reads.read(one("p", Source(2).grid))
        with pytest.raises(TransportFailed, match="65537 bytes is larger than any buffer"):
            await it.reads.read(one("p", Grid((0,), count=1, size=65537, stride=65537)))


def test_memory_kept_for_later_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    size = nixl_buffers.MIN_BUFFER_BYTES
    monkeypatch.setattr(nixl_buffers, "MAX_SPARE_BYTES", 2 * size)
    agent, buffers = ObedientAgent(), Buffers()
    taken = [buffers.take(agent, size) for _ in range(4)]
    assert buffers.num_bytes == 4 * size

    for buffer in taken:
        buffers.keep(agent, buffer)

    assert buffers.num_bytes == 2 * size
    assert [[each] for each in agent.registered] == [buffer.registered for buffer in taken[2:]]


async def test_idle_buffers_of_other_sizes_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    size = nixl_buffers.MIN_BUFFER_BYTES
    monkeypatch.setattr(nixl_buffers, "MAX_BUFFER_BYTES", 2 * size)
    async with obeyed() as it:
        reading, handle = await it.start(Source(1))
        handle.complete()
        (await reading).give_back()
        larger = ctypes.create_string_buffer(b"2" * 2 * size, 2 * size)

        grid = Grid((ctypes.addressof(larger),), count=1, size=2 * size, stride=2 * size)
        again = it.reads.read(one("p", grid))
        await asyncio.to_thread(it.agent.has_posted.acquire, timeout=60)
        it.agent.posted[-1].complete()

        assert (await again).data.tobytes() == b"2" * 2 * size
        assert [length for _, length in it.agent.registered] == [2 * size]


async def test_where_nixl_does_not_start_every_read_says_so() -> None:
    def create() -> ObedientAgent:
        raise RuntimeError("no plugins available")

    reads = NixlReads(create)

    with pytest.raises(TransportFailed, match="no plugins available"):
        await reads.add_peer(b"p")
    with pytest.raises(TransportFailed, match="no plugins available"):
        await reads.read(one("p", Source(1).grid))
    await reads.close()
    with pytest.raises(TransportFailed, match="closes"):
        reads.forget_peer("p")
        await reads.add_peer(b"p")
