"""The transport through NIXL: D reads P's memory one-sided, over whatever UCX finds between them.

    D: NixlTransport -- Meet ------------------> NixlSending: P     once for an incarnation of P
                     <-- agent, where its KV is -                   P's arena is registered, whole
       read <----------- a ticket for each piece, on the control stream
            =============> P's memory                               P's processor has no part in it

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
from collections.abc import AsyncGenerator, AsyncIterator, Callable
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
from baton.kv_transfer.handoff.transport import LentPiece, Parcel
from baton.kv_transfer.transport.block_tickets import ticket_of
from baton.kv_transfer.transport.control.ahead import ahead
from baton.kv_transfer.transport.control.client import AnnouncedPiece, ControlClient
from baton.kv_transfer.transport.daemon import DaemonThread
from baton.kv_transfer.transport.nixl.arena import Arena
from baton.kv_transfer.transport.nixl.buffers import BuffersInUse, bind_thread, place_of
from baton.kv_transfer.transport.nixl.reads import (
    Agent,
    Name,
    NixlReads,
    ReadResult,
    new_agent,
)

PATIENCE_S = 10.0
"""Seconds for one piece."""
MAX_PEERS = 64
"""Beyond it the one that was not used for longest is forgotten, unless it is in use."""

CreateAgent = Callable[[str], Agent]


class _Peer(msgspec.Struct, frozen=True):
    name: Name
    arena: Arena


@dataclass(slots=True, eq=False)
class _Meeting:
    """An incarnation of P that was met, or is being met."""

    meeting: asyncio.Task[_Peer]
    num_streams: int = 0
    """Streams that read from it, or wait to."""
    is_idle: asyncio.Event = field(default_factory=asyncio.Event)
    was_cut: bool = False
    """Whether to meet it anew, if it is still there: but not under the streams that go on."""
    has_failed: bool = False
    """Nothing may come over this connection any more: nobody else begins on it."""

    @asynccontextmanager
    async def used(self) -> AsyncIterator[_Peer]:
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

    async def _peer(self) -> _Peer:
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
        is_on_device: bool | None = None,
    ) -> None:
        """`device`: where this replica's KV is, and bytes land.

        `is_on_device`: whether pieces stay there, and are not for this host to look at. None: on
        any device but a CPU.
        """
        self._control = control
        self._create = create
        self._device = torch.device(device)
        self._is_on_device = self._device.type != "cpu" if is_on_device is None else is_on_device
        self._reads: NixlReads | None = None
        self._meetings: OrderedDict[Epoch, _Meeting] = OrderedDict()
        """The one used last comes last."""

    async def check(self, address: str, sender: Epoch, receiver: Epoch) -> None:
        """The first opening will tell."""

    async def open(self, address: str, request: OpenTransfer) -> AsyncGenerator[KvPiece, None]:
        meeting = await self._meeting(address, request)
        request = replace(request, joins_planes=True)
        try:
            async with meeting.used() as peer:
                reads = self._agent()

                def start(announced: AnnouncedPiece) -> asyncio.Future[ReadResult]:
                    return reads.read(peer.name, *peer.arena.where(announced))

                announcements = self._control.open(address, request, self.name)
                async with aclosing(ahead(announcements, start, _drop)) as arrivals:
                    async for announced, reading in arrivals:
                        yield await self._landed(announced, reading)
        finally:
            self._forget_unused()

    async def settle(self, address: str, request: SettleTransfer) -> Outcome:
        return await self._control.settle(address, request)

    async def close(self) -> None:
        for known in self._meetings.values():
            known.meeting.cancel()
        if self._reads is not None:
            await self._reads.close()

    def _agent(self) -> NixlReads:
        if self._reads is None:
            name = f"baton-{secrets.token_hex(8)}"
            self._reads = NixlReads(partial(self._create, name), self._device)
        return self._reads

    async def _landed(
        self, announced: AnnouncedPiece, reading: asyncio.Future[ReadResult]
    ) -> KvPiece:
        landed = await _awaited(reading)

        def release() -> None:
            announced.take()
            landed.give_back()

        rows = landed.memory.view(announced.num_views, -1)
        views: BlockViews | DeviceBlocks = DeviceBlocks(rows)
        if not self._is_on_device:
            views = BlockViews(landed.data, range(0, rows.numel(), rows.shape[1]), rows.shape[1])
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

    async def _meet(self, address: str, request: OpenTransfer) -> _Peer:
        sender, receiver = request.sender_epoch, request.receiver_epoch
        answer = await self._control.meet(address, self.name, sender, receiver)
        try:
            arena = msgspec.msgpack.decode(answer, type=Arena)
        except msgspec.DecodeError as error:
            raise TransportFailed(f"an answer that cannot be read: {error}") from error
        return _Peer(await self._agent().add_peer(arena.agent), arena)

    def _forget_unused(self) -> None:
        """Peers whose streams broke, and those used longest ago where there are too many."""
        idle = [sender for sender, known in self._meetings.items() if not known.num_streams]
        num_excess = max(0, len(self._meetings) - MAX_PEERS)
        for number, sender in enumerate(idle):
            if number < num_excess or self._meetings[sender].was_cut:
                self._forget(self._meetings.pop(sender).meeting)

    def _forget(self, meeting: asyncio.Task[_Peer]) -> None:
        """The next transfer meets it anew, if it is still there."""
        if not meeting.done() or meeting.cancelled():
            meeting.cancel()
        elif meeting.exception() is None:
            self._agent().forget_peer(meeting.result().name)


class NixlSending:
    max_piece_bytes = 0
    carry = None

    def __init__(
        self,
        arena: KvArena,
        create: CreateAgent = new_agent,
        *,
        is_on_device: bool | None = None,
    ) -> None:
        """`is_on_device`: whether pieces are summed up where they lie. None: on any device but a
        CPU."""
        is_elsewhere = torch.device(arena.device).type != "cpu"
        self.reads_in_place = is_elsewhere if is_on_device is None else is_on_device
        self._arena = arena
        self._create = create
        self._thread: DaemonThread | None = None
        self._introduction: asyncio.Future[bytes] | None = None
        self._agent: Agent | None = None

    async def pack(self, piece: LentPiece, request: OpenTransfer) -> Parcel:
        return Parcel(ticket=ticket_of(piece).pack())

    async def meet(self, receiver_epoch: Epoch, payload: bytes) -> bytes:
        if self._introduction is None:
            self._thread = DaemonThread("nixl registers")
            self._introduction = self._thread.call(self._introduce)
        try:
            return await asyncio.shield(self._introduction)
        except Exception as error:
            raise TransportFailed(f"NIXL does not work at the sender: {error}") from error

    async def close(self) -> None:
        self._agent = None  # unregisters the arena
        if self._thread is not None:
            self._thread.stop()

    def _introduce(self) -> bytes:
        """On the thread: to start UCX and register much memory takes a while."""
        arena = self._arena
        device = torch.device(arena.device)
        bind_thread(device)
        mem_type, index = place_of(device)
        addresses = [plane.data_ptr() for plane in arena.planes]
        agent = self._create(f"baton-{secrets.token_hex(8)}")
        sizes = [arena.num_blocks * size for size in arena.block_bytes]
        stretches = [
            (address, size, index, "") for address, size in zip(addresses, sizes, strict=True)
        ]
        agent.register_memory(stretches, mem_type)
        self._agent = agent
        return msgspec.msgpack.encode(
            Arena(
                agent=agent.get_agent_metadata(),
                planes=addresses,
                num_blocks=arena.num_blocks,
                block_bytes=list(arena.block_bytes),
                mem_type=mem_type,
                device=index,
            )
        )


async def _awaited(reading: asyncio.Future[ReadResult]) -> ReadResult:
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await asyncio.shield(reading)
    except TimeoutError:
        _drop(reading)
        raise TransportFailed(f"NIXL: a read was not over after {PATIENCE_S:g} s") from None
    except BaseException:
        _drop(reading)
        raise


def _drop(reading: asyncio.Future[ReadResult]) -> None:
    if not reading.cancel() and not reading.cancelled() and not reading.exception():
        reading.result().give_back()
