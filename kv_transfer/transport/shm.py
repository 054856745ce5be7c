"""The transport over shared memory: D reads P's blocks where they are.

    D                                 P
      | --- Meet: which host? ------> |   refused unless it is P's own
      | <-- socket, nonce, shape ---- |
      | --- connect, nonce ---------> |   the same user only, each nonce once
      | <-- the arena's file -------- |   sealed: D can map it to read, and nobody can shrink it
      | --- connect, line key ------> |   the control stream (`control/socket_lines.py`); by gRPC
      | <== a ticket for each piece = |   from a P that has no such key: the numbers of its blocks

P's arena is an anonymous file: it is gone with the last process that has it. So D keeps the
connection as long as the map, and closes both when P closes it or dies; views of pieces in flight
keep the memory alive for themselves. If P reuses a block while D still reads it (D was stopped
until its stream ended), the checksum that D computes over its own copy shows it.
"""

from __future__ import annotations

import asyncio
import fcntl
import hmac
import os
import secrets
import socket
from collections import OrderedDict
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from weakref import WeakSet

import msgspec

from baton.core.block_views import BlockViews
from baton.core.errors import TransportFailed
from baton.core.ids import Epoch
from baton.core.kv_arena import KvArena
from baton.kernels.cpu.shared_mapping import mapped
from baton.kv_transfer.handoff.messages import KvPiece, OpenTransfer, Outcome, SettleTransfer
from baton.kv_transfer.handoff.transport import LentPiece, Parcel
from baton.kv_transfer.transport.block_tickets import read_ticket, ticket_of
from baton.kv_transfer.transport.control.client import AnnouncedPiece, ControlClient
from baton.kv_transfer.transport.control.socket_lines import OpenStream, SocketCall, serve_line
from baton.kv_transfer.transport.local_sockets import (
    KEY_BYTES,
    VISIT_TIMEOUT_S,
    SocketDoor,
    check_user,
    new_socket,
    visit,
)

MAX_MAPS = 64
"""Senders whose arenas a receiver keeps mapped; the one used longest ago makes room."""
MAX_NONCES = 256
"""Told to receivers that have not come for the file yet."""


class _MeetRequest(msgspec.Struct, frozen=True):
    host: str


class _Answer(msgspec.Struct, frozen=True):
    socket: str
    """The socket's name in Linux's abstract namespace."""
    nonce: bytes
    num_blocks: int
    block_bytes: list[int]
    """Bytes of a block, by plane."""
    line_key: bytes = b""
    """What opens control streams at the socket; an older P knows none."""

    @property
    def num_bytes(self) -> int:
        return self.num_blocks * sum(self.block_bytes)


def this_host() -> str:
    """Equal only for processes that can reach each other's abstract sockets."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/net')}"
    except OSError:
        return ""  # not Linux: nobody's host


@dataclass(frozen=True, slots=True, eq=False)
class _Map:
    """Another replica's arena."""

    sender_epoch: Epoch
    shape: _Answer
    memory: memoryview
    connection: socket.socket
    """Ends when the sender does."""

    def close(self) -> None:
        """Views that look into the memory keep it, for as long as they live."""
        if self.connection.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self.connection)
            self.connection.close()

    def views(self, announced: AnnouncedPiece) -> BlockViews:
        """Where the blocks of a piece lie. Raises TransferCut for what is not in the arena."""
        shape, first = self.shape, announced.message.plane
        ticket = read_ticket(announced, num_blocks=shape.num_blocks, block_bytes=shape.block_bytes)
        block_bytes = shape.block_bytes[first]
        starts = [block * block_bytes for block in ticket.blocks]
        begin = shape.num_blocks * sum(shape.block_bytes[:first]) + ticket.offset
        row_bytes = shape.num_blocks * block_bytes
        rows = range(begin, begin + announced.num_planes * row_bytes, row_bytes)
        return BlockViews(self.memory, starts, ticket.size, rows)


class ShmTransport:
    name = "shm"

    def __init__(self, control: ControlClient) -> None:
        self._control = control
        self._calls: WeakSet[SocketCall] = WeakSet()
        self._map_by_address: OrderedDict[str, _Map] = OrderedDict()
        self._mapping: dict[str, asyncio.Lock] = {}

    async def check(self, address: str, sender: Epoch, receiver: Epoch) -> None:
        """The first opening will tell."""

    async def open(self, address: str, request: OpenTransfer) -> AsyncGenerator[KvPiece, None]:
        arena = await self._map_of(address, request)
        request = replace(request, joins_planes=True)
        name, key = arena.shape.socket, arena.shape.line_key
        door = SocketDoor(name, key, self._calls) if key else None
        async with aclosing(self._control.open(address, request, self.name, door)) as announcements:
            async for announced in announcements:
                yield announced.piece(arena.views(announced))

    async def settle(self, address: str, request: SettleTransfer) -> Outcome:
        return await self._control.settle(address, request)

    async def close(self) -> None:
        """Maps that pieces still look into live as long as these."""
        maps, self._map_by_address = self._map_by_address, OrderedDict()
        for arena in maps.values():
            arena.close()
        for call in tuple(self._calls):
            call.cancel()

    async def _map_of(self, address: str, request: OpenTransfer) -> _Map:
        lock = self._mapping.setdefault(address, asyncio.Lock())
        try:
            async with lock:
                known = self._map_by_address.get(address)
                if known is None or known.sender_epoch != request.sender_epoch:
                    known = await self._map(address, request)
                    self._keep(address, known)
                self._map_by_address.move_to_end(address)
                return known
        finally:
            if not lock.locked():
                self._mapping.pop(address, None)

    async def _map(self, address: str, request: OpenTransfer) -> _Map:
        sender, receiver = request.sender_epoch, request.receiver_epoch
        asked = msgspec.msgpack.encode(_MeetRequest(this_host()))
        reply = await self._control.meet(address, self.name, sender, receiver, asked)
        connection = new_socket()
        try:
            answer = msgspec.msgpack.decode(reply, type=_Answer)
            async with asyncio.timeout(VISIT_TIMEOUT_S):
                file = await _fetch_file(connection, answer)
            try:
                return _Map(sender, answer, _mapped(file, answer.num_bytes), connection)
            finally:
                os.close(file)
        except BaseException as error:
            connection.close()
            if isinstance(error, OSError | TimeoutError | ValueError | msgspec.DecodeError):
                why = f"the memory of {address} cannot be read: {error!r}"
                raise TransportFailed(why) from error
            raise

    def _keep(self, address: str, arena: _Map) -> None:
        """Keep a map until its sender is gone, or there are too many."""
        self._drop(address)
        self._map_by_address[address] = arena
        loop = asyncio.get_running_loop()
        loop.add_reader(arena.connection, self._drop, address)
        while len(self._map_by_address) > MAX_MAPS:
            self._drop(next(iter(self._map_by_address)))

    def _drop(self, address: str) -> None:
        arena = self._map_by_address.pop(address, None)
        if arena is not None:
            arena.close()


async def _fetch_file(connection: socket.socket, answer: _Answer) -> int:
    """Connect to the sender's socket and be given the file of its arena."""
    await visit(connection, answer.socket, answer.nonce)
    await _readable(connection)
    _, files, _, _ = socket.recv_fds(connection, 1, 1)
    if not files:
        raise OSError("the sender gave no file")
    return files[0]


def _mapped(file: int, num_bytes: int) -> memoryview:
    """Raises ValueError unless it is as large as it should be and will stay so."""
    seals = fcntl.fcntl(file, fcntl.F_GET_SEALS)
    if os.fstat(file).st_size != num_bytes or not seals & fcntl.F_SEAL_SHRINK:
        raise ValueError("not a sealed file of the size of the sender's arena")
    return mapped(file, num_bytes, is_writable=False)


async def _readable(connection: socket.socket) -> None:
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(connection, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(connection)


class ShmSending:
    """P's half: gives the arena's file and control streams to peers that show their nonce."""

    max_piece_bytes = 20 << 20
    carry = None
    reads_in_place = False

    def __init__(self, arena: KvArena) -> None:
        self.open_stream: OpenStream | None = None
        """See `OpensLines`."""
        self._arena = arena
        self._line_key = secrets.token_bytes(KEY_BYTES)
        self._nonces: OrderedDict[bytes, None] = OrderedDict()
        self._name = f"baton-kv-{secrets.token_hex(16)}"
        self._file = -1
        """Our own handle of the arena, from the first meeting until `close`."""
        self._listening: asyncio.Task[None] | None = None
        self._visits: set[asyncio.Task[None]] = set()

    async def pack(self, piece: LentPiece, request: OpenTransfer) -> Parcel:
        return Parcel(ticket=ticket_of(piece).pack())

    async def meet(self, receiver_epoch: Epoch, payload: bytes) -> bytes:
        arena = self._arena
        if arena.fd is None:
            raise TransportFailed(f"KV on {arena.device} is no memory that others may map")
        try:
            request = msgspec.msgpack.decode(payload, type=_MeetRequest)
        except (ValueError, msgspec.DecodeError) as error:
            raise TransportFailed(f"a request to meet that cannot be read: {error}") from error
        if not request.host or request.host != this_host():
            raise TransportFailed("the replicas share no host and network namespace")
        self._listen(arena.fd)
        nonce = secrets.token_bytes(KEY_BYTES)
        self._nonces[nonce] = None
        while len(self._nonces) > MAX_NONCES:
            self._nonces.popitem(last=False)
        key = b"" if self.open_stream is None else self._line_key
        return msgspec.msgpack.encode(
            _Answer(self._name, nonce, arena.num_blocks, list(arena.block_bytes), key)
        )

    async def close(self) -> None:
        tasks = [*self._visits, *([self._listening] if self._listening else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._listening = None
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _listen(self, file: int) -> None:
        if self._listening is not None and not self._listening.done():
            return
        if self._file < 0:
            self._file = os.dup(file)
        listener = new_socket()
        try:
            listener.setblocking(False)
            listener.bind(f"\0{self._name}")
            listener.listen()
        except OSError as error:
            listener.close()
            raise TransportFailed(f"no socket to be asked for the arena: {error}") from error
        self._listening = asyncio.create_task(self._welcome(listener))

    async def _welcome(self, listener: socket.socket) -> None:
        with listener:
            while True:
                visitor, _ = await asyncio.get_running_loop().sock_accept(listener)
                answering = asyncio.create_task(self._answer(visitor))
                self._visits.add(answering)
                answering.add_done_callback(self._visits.discard)

    async def _answer(self, visitor: socket.socket) -> None:
        with visitor, suppress(OSError, TimeoutError):
            check_user(visitor)
            loop = asyncio.get_running_loop()
            async with asyncio.timeout(VISIT_TIMEOUT_S):
                key = await loop.sock_recv(visitor, KEY_BYTES)
            if key in self._nonces:
                del self._nonces[key]
                socket.send_fds(visitor, [b"!"], [self._file])
                await loop.sock_recv(visitor, 1)  # until it leaves
            elif self.open_stream is not None and hmac.compare_digest(key, self._line_key):
                await serve_line(socket.socket(fileno=visitor.detach()), self.open_stream)
