"""The transport over shared memory: D reads P's blocks where they are.

    D                                 P
      | --- Meet: which host? ------> |   refused unless it is P's own
      | <-- socket, nonce, shape ---- |
      | --- connect, nonce ---------> |   the same user only, each nonce once
      | <-- the arena's file -------- |   sealed: D can map it to read, and nobody can shrink it;
      |                               |   one of each rank, if P is several
      | --- connect, line key ------> |   the control stream (`control/socket_lines.py`); by gRPC
      | <== a ticket for each piece = |   from a P that has no such key: the numbers of its blocks

P's arena is an anonymous file: it is gone with the last process that has it. So D keeps the
connection as long as the map, and closes both when P closes it or dies; views of pieces in flight
keep the memory alive for themselves. If P reuses a block while D still reads it (D was stopped
until its stream ended), the checksum that D computes over its own copy shows it.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import secrets
import socket
from collections import OrderedDict
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from pathlib import Path
from weakref import WeakSet

import msgspec

from baton.core.errors import TransportFailed
from baton.core.ids import Epoch
from baton.core.kv_arena import KvArena
from baton.kv_transfer.handoff.messages import KvPiece, OpenTransfer, Outcome, SettleTransfer
from baton.kv_transfer.handoff.transport import LentPiece, PackedPiece
from baton.kv_transfer.transport.block_tickets import ticket_of
from baton.kv_transfer.transport.control.client import ControlClient
from baton.kv_transfer.transport.control.socket_lines import OpenStream, SocketCall, serve_line
from baton.kv_transfer.transport.local_sockets import (
    KEY_BYTES,
    VISIT_TIMEOUT_S,
    SocketDoor,
    check_user,
    new_socket,
    visit,
)
from baton.kv_transfer.transport.rank_shares import RankShare
from baton.kv_transfer.transport.shm_arena import MappedArena, ShmArena, mapped_file

MAX_MAPS = 64
"""Senders whose arenas a receiver keeps mapped; the one used longest ago makes room."""
MAX_NONCES = 256
"""Told to receivers that have not come for the file yet."""


class _MeetRequest(msgspec.Struct, frozen=True):
    host: str


def this_host() -> str:
    """Equal only for processes that can reach each other's abstract sockets."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/net')}"
    except OSError:
        return ""  # not Linux: nobody's host


class ShmTransport:
    name = "shm"

    def __init__(self, control: ControlClient) -> None:
        self._control = control
        self._calls: WeakSet[SocketCall] = WeakSet()
        self._map_by_address: OrderedDict[str, MappedArena] = OrderedDict()
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

    async def _map_of(self, address: str, request: OpenTransfer) -> MappedArena:
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

    async def _map(self, address: str, request: OpenTransfer) -> MappedArena:
        sender, receiver = request.sender_epoch, request.receiver_epoch
        asked = msgspec.msgpack.encode(_MeetRequest(this_host()))
        reply = await self._control.meet(address, self.name, sender, receiver, asked)
        connection = new_socket()
        try:
            answer = msgspec.msgpack.decode(reply, type=ShmArena)
            shares = answer.files
            async with asyncio.timeout(VISIT_TIMEOUT_S):
                files = await _fetch_files(connection, answer, len(shares))
            try:
                sizes = [answer.num_blocks * sum(share.block_bytes) for share in shares]
                memories = map(mapped_file, files, sizes)
                return MappedArena(
                    sender, answer, list(zip(shares, memories, strict=True)), connection
                )
            finally:
                for file in files:
                    os.close(file)
        except BaseException as error:
            connection.close()
            if isinstance(error, OSError | TimeoutError | ValueError | msgspec.DecodeError):
                why = f"the memory of {address} cannot be read: {error!r}"
                raise TransportFailed(why) from error
            raise

    def _keep(self, address: str, arena: MappedArena) -> None:
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


async def _fetch_files(connection: socket.socket, answer: ShmArena, count: int) -> list[int]:
    """Connect to the sender's socket and be given the files of its arena."""
    await visit(connection, answer.socket, answer.nonce)
    await _readable(connection)
    _, files, _, _ = socket.recv_fds(connection, 1, count)
    if len(files) != count:
        for file in files:
            os.close(file)
        raise OSError(f"the sender gave {len(files)} files, not {count}")
    return files


async def _readable(connection: socket.socket) -> None:
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(connection, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(connection)


class ShmSending:
    """P's half: gives the arena's files and control streams to peers that show their nonce."""

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
        self._files: list[int] = []
        """Our own handles of the arena, from the first meeting until `close`."""
        self._listening: asyncio.Task[None] | None = None
        self._visits: set[asyncio.Task[None]] = set()

    async def pack(self, piece: LentPiece, request: OpenTransfer) -> PackedPiece:
        return PackedPiece(ticket=ticket_of(piece).pack())

    async def meet(self, receiver_epoch: Epoch, payload: bytes) -> bytes:
        arena = self._arena
        fds = [share.fd for share in arena.shares] or [arena.fd]
        files = [fd for fd in fds if fd is not None]
        if len(files) < len(fds):
            raise TransportFailed(f"KV on {arena.device} is no memory that others may map")
        try:
            request = msgspec.msgpack.decode(payload, type=_MeetRequest)
        except (ValueError, msgspec.DecodeError) as error:
            raise TransportFailed(f"a request to meet that cannot be read: {error}") from error
        if not request.host or request.host != this_host():
            raise TransportFailed("the replicas share no host and network namespace")
        self._listen(files)
        nonce = secrets.token_bytes(KEY_BYTES)
        self._nonces[nonce] = None
        while len(self._nonces) > MAX_NONCES:
            self._nonces.popitem(last=False)
        key = b"" if self.open_stream is None else self._line_key
        shares = [
            RankShare(
                first_plane=share.first_plane,
                block_bytes=list(share.block_bytes),
                starts=list(share.starts),
            )
            for share in arena.shares
        ]
        return msgspec.msgpack.encode(
            ShmArena(self._name, nonce, arena.num_blocks, list(arena.block_bytes), key, shares)
        )

    async def close(self) -> None:
        tasks = [*self._visits, *([self._listening] if self._listening else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._listening = None
        while self._files:
            os.close(self._files.pop())

    def _listen(self, files: Sequence[int]) -> None:
        if self._listening is not None and not self._listening.done():
            return
        if not self._files:
            self._files = [os.dup(file) for file in files]
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
                socket.send_fds(visitor, [b"!"], self._files)
                await loop.sock_recv(visitor, 1)  # until it leaves
            elif self.open_stream is not None and hmac.compare_digest(key, self._line_key):
                await serve_line(socket.socket(fileno=visitor.detach()), self.open_stream)
