"""The transport through NIXL: D reads P's memory one-sided, over whatever UCX finds between them.

    D: NixlTransport -- Meet ------------------> NixlSending: P     once for an incarnation of P
                     <-- agents, where its KV is                    P's arena is registered, whole
       read <----------- a ticket for each piece, on the control stream
            =============> P's memory                               P's processor has no part in it

If P is several ranks, each process registers the memory that is its own: a rank on a GPU with an
agent of its own (`RegisteredMemory`), whose metadata its lead tells; on CPUs the lead has the
memory of all ranks mapped, and registers it. D reads each rank's heads from that rank's memory
(arena.py). If D is several ranks on GPUs, each of them reads, verifies and writes the heads that it
keeps (readers.py, rank_reads.py); the lead is told what was wrong.

Both sides register the memory where their KV is, so between two GPUs bytes go from device to
device. P computes checksums there before it announces pieces (`reads_in_place`); D reads pieces
into buffers of its own on its GPU, computes checksums of what has arrived, and puts it into its
blocks from there.

A piece stays lent until D has taken it. If its stream is cut, P may use its blocks again while a
read of D's is still on its way: that read's bytes go nowhere, and its buffer is not used again
before it is over (reads.py). D verifies what it got in any case.

The bytes travel in plain text, and a process that knows P's agent can read all of its KV: use it
only in networks that belong to the cluster.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import msgspec
import torch

from baton.core.block_views import BlockViews, DeviceBlocks
from baton.core.errors import TransferCut, TransferError, TransportFailed
from baton.core.ids import Epoch
from baton.core.kv_arena import KvArena
from baton.kv_transfer.handoff.messages import KvPiece, OpenTransfer, Outcome, SettleTransfer
from baton.kv_transfer.transport.control.ahead import ahead
from baton.kv_transfer.transport.control.client import AnnouncedPiece, ControlClient
from baton.kv_transfer.transport.nixl.arena import Arena
from baton.kv_transfer.transport.nixl.buffers import BuffersInUse
from baton.kv_transfer.transport.nixl.readers import Landed, Peer, Readers, can_read, drop
from baton.kv_transfer.transport.nixl.reads import CreateAgent, NixlReads, ReadResult, new_agent

PATIENCE_S = 10.0
"""Seconds for one piece."""
MAX_PEERS = 64
"""Beyond it the one that was not used for longest is forgotten, unless it is in use."""


@dataclass(slots=True, eq=False)
class _Meeting:
    """An incarnation of P that was met, or is being met."""

    meeting: asyncio.Task[Peer]
    num_streams: int = 0
    """Streams that read from it, or wait to."""
    is_idle: asyncio.Event = field(default_factory=asyncio.Event)
    was_cut: bool = False
    """Whether to meet it anew, if it is still there: but not under the streams that go on."""
    has_failed: bool = False
    """Nothing may come over this connection any more: nobody else begins on it."""

    @asynccontextmanager
    async def used(self) -> AsyncIterator[Peer]:
        self.num_streams += 1
        self.is_idle.clear()
        try:
            yield await self._peer()
        except BuffersInUse:
            raise
        except TransferCut as error:
            self.was_cut = True
            self.has_failed |= isinstance(error, TransportFailed)
            raise
        finally:
            self.num_streams -= 1
            if not self.num_streams:
                self.is_idle.set()

    async def _peer(self) -> Peer:
        try:
            return await asyncio.shield(self.meeting)
        except asyncio.CancelledError:
            if self.meeting.cancelled():
                raise TransportFailed("NIXL: this replica closes") from None
            raise
        except TransferError:
            self.was_cut = self.has_failed = True
            raise


class NixlTransport:
    name = "nixl"

    def __init__(
        self,
        control: ControlClient,
        create: CreateAgent = new_agent,
        device: torch.device | str = "cpu",
        *,
        arena: KvArena | None = None,
        is_on_device: bool | None = None,
    ) -> None:
        """`device`: where this replica's KV is, and bytes land; `arena`: its memory, if it is in
        pieces of several ranks.

        `is_on_device`: whether pieces stay there, and are not for this host to look at. None: on
        any device but a CPU.
        """
        self._control = control
        self._create = create
        self._device = torch.device(device)
        self._is_on_device = self._device.type != "cpu" if is_on_device is None else is_on_device
        is_divided = self._is_on_device and can_read(arena)
        self._arena = arena if is_divided else None
        self._reads: NixlReads | None = None
        self._all_readers: Readers | None = None
        self._meetings: OrderedDict[Epoch, _Meeting] = OrderedDict()
        """The one used last comes last."""

    async def check(self, address: str, sender: Epoch, receiver: Epoch) -> None:
        """The first opening will tell."""

    async def open(self, address: str, request: OpenTransfer) -> AsyncGenerator[KvPiece, None]:
        meeting = await self._meeting(address, request)
        request = replace(request, joins_planes=True)
        try:
            async with meeting.used() as peer:
                start = partial(self._readers().read, peer)
                announcements = self._control.open(address, request, self.name)
                async with aclosing(ahead(announcements, start, drop)) as arrivals:
                    async for announced, reading in arrivals:
                        yield await self._landed(announced, reading)
        finally:
            self._forget_unused()

    async def settle(self, address: str, request: SettleTransfer) -> Outcome:
        return await self._control.settle(address, request)

    async def close(self) -> None:
        for known in self._meetings.values():
            self._forget(known.meeting)  # the agents of other ranks stay
        if self._reads is not None:
            await self._reads.close()

    def _readers(self) -> Readers:
        if self._all_readers is None:
            name = f"baton-{secrets.token_hex(8)}"
            self._reads = NixlReads(partial(self._create, name), self._device)
            self._all_readers = Readers(self._reads, self._arena)
        return self._all_readers

    async def _landed(self, announced: AnnouncedPiece, reading: asyncio.Future[Landed]) -> KvPiece:
        landed = await _awaited(reading)

        def release() -> None:
            announced.take()
            landed.give_back()

        views: BlockViews | DeviceBlocks = DeviceBlocks(landed.rows(announced.num_views))
        if isinstance(landed, ReadResult) and not self._is_on_device:
            data, size = landed.data, views.size
            views = BlockViews(data, range(0, data.nbytes, size), size)
        return replace(announced.piece(views), release=release)

    async def _meeting(self, address: str, request: OpenTransfer) -> _Meeting:
        sender = request.sender_epoch
        while (found := self._meetings.get(sender)) is not None and found.has_failed:
            await found.is_idle.wait()
            self._forget_unused()
        if found is None:
            task = asyncio.create_task(self._meet(address, request))
            found = self._meetings[sender] = _Meeting(task)
        self._meetings.move_to_end(sender)
        return found

    async def _meet(self, address: str, request: OpenTransfer) -> Peer:
        sender, receiver = request.sender_epoch, request.receiver_epoch
        answer = await self._control.meet(address, self.name, sender, receiver)
        try:
            arena = msgspec.msgpack.decode(answer, type=Arena)
            numbers = {rank.agent for rank in arena.all_ranks}
        except ValueError as error:
            raise TransportFailed(f"an answer that cannot be read: {error}") from error
        if not numbers <= {*range(len(arena.all_agents))}:
            raise TransportFailed("an answer that names an agent which it does not introduce")
        return await self._readers().meet(arena)

    def _forget_unused(self) -> None:
        """Peers whose streams broke, and those used longest ago where there are too many."""
        idle = [sender for sender, known in self._meetings.items() if not known.num_streams]
        num_excess = max(0, len(self._meetings) - MAX_PEERS)
        for number, sender in enumerate(idle):
            if number < num_excess or self._meetings[sender].was_cut:
                self._forget(self._meetings.pop(sender).meeting)

    def _forget(self, meeting: asyncio.Task[Peer]) -> None:
        """The next transfer meets it anew, if it is still there."""
        if not meeting.done() or meeting.cancelled():
            meeting.cancel()
        elif meeting.exception() is None:
            self._readers().forget(meeting.result())


async def _awaited(reading: asyncio.Future[Landed]) -> Landed:
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await asyncio.shield(reading)
    except TimeoutError:
        drop(reading)
        raise TransportFailed(f"NIXL: a read was not over after {PATIENCE_S:g} s") from None
    except BaseException:
        drop(reading)
        raise
