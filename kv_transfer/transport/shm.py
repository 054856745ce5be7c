"""The transport over shared memory: D reads P's blocks where they are.

    D                                 P
      | --- Meet: which host? ------> |   refused unless it is P's own
      | <-- socket, nonce, shape ---- |
      | --- connect, nonce ---------> |   the same user only, each nonce once
      | <-- the arena's file -------- |   sealed: D can map it to read, and nobody can shrink it
      | <== a ticket for each piece = |   the numbers of its blocks

P's arena is an anonymous file: it is gone with the last process that has it. So D keeps the
connection as long as the map, and closes both when P closes it or dies; views of pieces in flight
keep the memory alive for themselves. If P reuses a block while D still reads it (D was stopped
until its stream ended), the checksum that D computes over its own copy shows it.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import socket
import struct
from collections import OrderedDict
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from baton.core.block_views import BlockViews
from baton.core.errors import TransferCut, TransportFailed
from baton.core.ids import Epoch
from baton.core.kv_arena import KvArena
from baton.kernels.cpu.shared_mapping import mapped
from baton.kv_transfer.handoff.messages import KvPiece, OpenTransfer, Outcome, SettleTransfer
from baton.kv_transfer.handoff.transport import LentPiece, Parcel
from baton.kv_transfer.transport.control.client import Announced, ControlClient

MAX_MAPS = 64
"""Senders whose arenas a receiver keeps mapped; the one used longest ago makes room."""
MEETING_TIMEOUT_S = 5.0
MAX_NONCES = 256
"""Told to receivers that have not come for the file yet."""

_NONCE_BYTES = 16
_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid
_SPAN = struct.Struct("<II")  # where in its block a view begins, and how long it is


class _MeetRequest(msgspec.Struct, frozen=True):
    host: str


class _Answer(msgspec.Struct, frozen=True):
    socket: str
    """The socket's name in Linux's abstract namespace."""
    nonce: bytes
    num_blocks: int
    block_bytes: list[int]
    """Bytes of a block, by plane."""

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

    def views(self, announced: Announced) -> BlockViews:
        """Where the blocks of a piece lie. Raises TransferCut for what is not in the arena."""
        shape, message = self.shape, announced.message
        try:
            offset, size = _SPAN.unpack_from(message.ticket)
            blocks = memoryview(message.ticket)[_SPAN.size :].cast("I")
        except (struct.error, TypeError) as error:
            raise TransferCut(f"a ticket that cannot be read: {error}") from error
        first, stop = message.plane, message.plane + announced.num_planes
        is_inside = (
            len(blocks) == message.num_blocks > 0
            and size > 0
            and first < stop <= len(shape.block_bytes)
            and {*shape.block_bytes[first:stop]} == {shape.block_bytes[first]}
            and offset + size <= shape.block_bytes[first]
            and max(blocks) < shape.num_blocks
        )
        if not is_inside:
            raise TransferCut("a ticket for what is not in the sender's memory")
        block_bytes = shape.block_bytes[first]
        starts = [block * block_bytes for block in blocks]
        begin = shape.num_blocks * sum(shape.block_bytes[:first]) + offset
        row_bytes = shape.num_blocks * block_bytes
        rows = range(begin, begin + announced.num_planes * row_bytes, row_bytes)
        return BlockViews(self.memory, starts, size, rows)


class ShmTransport:
    name = "shm"

    def __init__(self, control: ControlClient) -> None:
        self._control = control
        self._map_by_address: OrderedDict[str, _Map] = OrderedDict()
        self._mapping: dict[str, asyncio.Lock] = {}

    async def check(self, address: str, sender: Epoch, receiver: Epoch) -> None:
        """The first opening will tell."""

    async def open(self, address: str, request: OpenTransfer) -> AsyncGenerator[KvPiece, None]:
        arena = await self._map_of(address, request)
        request = replace(request, joins_planes=True)
        async with aclosing(self._control.open(address, request, self.name)) as announcements:
            async for announced in announcements:
                yield announced.piece(arena.views(announced))

    async def settle(self, address: str, request: SettleTransfer) -> Outcome:
        return await self._control.settle(address, request)

    async def close(self) -> None:
        """Maps that pieces still look into live as long as these."""
        maps, self._map_by_address = self._map_by_address, OrderedDict()
        for arena in maps.values():
            arena.close()

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
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            answer = msgspec.msgpack.decode(reply, type=_Answer)
            async with asyncio.timeout(MEETING_TIMEOUT_S):
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
    loop = asyncio.get_running_loop()
    connection.setblocking(False)
    await loop.sock_connect(connection, f"\0{answer.socket}")
    _check_user(connection)
    await loop.sock_sendall(connection, answer.nonce)
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


def _check_user(connection: socket.socket) -> None:
    """Raises OSError unless the process at the other end is run by our user."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(raw)
    if uid != os.getuid():
        raise OSError(f"the other end is run by user {uid}")


async def _readable(connection: socket.socket) -> None:
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(connection, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(connection)


class ShmSending:
    """P's half: gives the arena's file to peers that show the nonce they were given."""

    max_piece_bytes = 20 << 20
    carry = None
    reads_in_place = False

    def __init__(self, arena: KvArena) -> None:
        self._arena = arena
        self._nonces: OrderedDict[bytes, None] = OrderedDict()
        self._name = f"baton-kv-{secrets.token_hex(16)}"
        self._file = -1
        """Our own handle of the arena, from the first meeting until `close`."""
        self._listening: asyncio.Task[None] | None = None
        self._visits: set[asyncio.Task[None]] = set()

    async def pack(self, piece: LentPiece, request: OpenTransfer) -> Parcel:
        span = _SPAN.pack(piece.block_offset, piece.views[0].nbytes)
        return Parcel(ticket=span + struct.pack(f"={len(piece.blocks)}I", *piece.blocks))

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
        nonce = secrets.token_bytes(_NONCE_BYTES)
        self._nonces[nonce] = None
        while len(self._nonces) > MAX_NONCES:
            self._nonces.popitem(last=False)
        return msgspec.msgpack.encode(
            _Answer(self._name, nonce, arena.num_blocks, list(arena.block_bytes))
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
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
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
                visit = asyncio.create_task(self._answer(visitor))
                self._visits.add(visit)
                visit.add_done_callback(self._visits.discard)

    async def _answer(self, visitor: socket.socket) -> None:
        with visitor, suppress(OSError, TimeoutError):
            _check_user(visitor)
            loop = asyncio.get_running_loop()
            async with asyncio.timeout(MEETING_TIMEOUT_S):
                nonce = await loop.sock_recv(visitor, _NONCE_BYTES)
            if nonce in self._nonces:
                del self._nonces[nonce]
                socket.send_fds(visitor, [b"!"], [self._file])
                await loop.sock_recv(visitor, 1)  # until it leaves
