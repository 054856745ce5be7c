"""The transport over plain TCP: P sends from its blocks, D receives into its own.

    D                                     P
      | --- Meet: at which host? -------> |   refused where TLS is asked for
      | <-- port, admission ------------- |
      | --- connect, HELLO -------------> |   once for several streams, one after the other
      | <== a ticket for each piece ===== |   on the control stream
      | --- ASK (frames.py) ------------> |   a thread of P's for each connection
      | <== its bytes, then checksums === |   read to their place, and summed up as they are written

P copies nothing: the system reads its blocks. P sums them up right before, half a MiB at a time, so
the system finds them in the caches of the core. To a D that does not read checksums behind the
bytes (`reads_sums_behind`) P announces them with the ticket.

A slow P holds up no thread of D's that writes pieces: a stream's pieces are read by a thread of the
transport. A connection that breaks cuts its stream, which is opened again where blocks are missing.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import AsyncGenerator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import TypeAlias
from weakref import WeakValueDictionary

import msgspec

from baton.core.block_views import ArrivingBlocks
from baton.core.clock import monotonic
from baton.core.errors import TransferCut, TransportFailed
from baton.core.ids import Epoch
from baton.core.wire_security import PLAIN, WireSecurity
from baton.kv_transfer.handoff.messages import KvPiece, OpenTransfer, Outcome, SettleTransfer
from baton.kv_transfer.handoff.transport import LentPiece, PackedPiece
from baton.kv_transfer.transport.addresses import listen
from baton.kv_transfer.transport.control.client import AnnouncedPiece, ControlClient
from baton.kv_transfer.transport.lent import Loans
from baton.kv_transfer.transport.tcp.connection import DataConnection
from baton.kv_transfer.transport.tcp.frames import (
    HELLO,
    WELCOME,
    admission_of,
    is_admitted,
    read_ticket,
    ticket_of,
)
from baton.kv_transfer.transport.tcp.pool import ConnectionPool, MeetReply, MeetRequest
from baton.kv_transfer.transport.tcp.readers import Share
from baton.kv_transfer.transport.tcp.serving import ServedConnection

MAX_READERS = 64
"""Streams whose pieces are read at once."""
MAX_READERS_EACH = 16
"""Reader threads for one sender."""
MAX_HOSTS = 4
"""Addresses of its own at which a P listens."""
MAX_SERVED = 512
"""Connections of a P, each of which has a thread; idle ones make room."""
MAX_STRANGERS = 64
"""Connections that have yet to prove their identity."""
HELLO_TIMEOUT_S = 3.0
LAST_READS_S = 0.5
"""Seconds for which what came with a stream that ends early may still be read."""

_Arrivals: TypeAlias = asyncio.Queue[KvPiece | TransferCut | None]
"""None, or what cut it, at the end."""


class TcpTransport:
    name = "tcp"

    def __init__(self, control: ControlClient) -> None:
        self._control = control
        self._pool = ConnectionPool(self.name, control)
        self._readers = ThreadPoolExecutor(MAX_READERS, "kv by tcp")
        self._shares: WeakValueDictionary[str, Share] = WeakValueDictionary()
        """Share of the reader threads, by address, as long as pieces come from there."""

    async def check(self, address: str, sender: Epoch, receiver: Epoch) -> None:
        """The first opening will tell."""

    async def open(self, address: str, request: OpenTransfer) -> AsyncGenerator[KvPiece, None]:
        connection = await self._pool.take(address, request)
        arrivals: _Arrivals = asyncio.Queue()
        connection.begin(arrivals.put_nowait)
        request = replace(request, joins_planes=True, reads_sums_behind=True)
        announcements = self._control.open(address, request, self.name)
        readers = self._readers_of(address)
        asking = asyncio.create_task(_ask(announcements, connection, arrivals, readers))
        try:
            while (arrival := await arrivals.get()) is not None:
                if isinstance(arrival, TransferCut):
                    self._pool.forget(address)
                    raise arrival
                yield arrival
            await asking
        except asyncio.CancelledError:
            connection.close("its stream was given up")
            raise
        finally:
            try:
                await _last_reads(connection, arrivals)
            except BaseException:  # cancelled now, or once more
                connection.close("its stream was given up")
                raise
            finally:
                asking.cancel()
                self._pool.keep(address, request, connection)
                _release(arrivals)
            await asyncio.gather(asking, return_exceptions=True)

    async def settle(self, address: str, request: SettleTransfer) -> Outcome:
        return await self._control.settle(address, request)

    async def close(self) -> None:
        self._pool.close()
        self._readers.shutdown(wait=False)

    def _readers_of(self, address: str) -> Share:
        share = self._shares.get(address)
        if share is None:
            share = self._shares[address] = Share(self._readers, MAX_READERS_EACH)
        return share


async def _ask(
    announcements: AsyncGenerator[AnnouncedPiece, None],
    connection: DataConnection,
    arrivals: _Arrivals,
    readers: Executor,
) -> None:
    """Ask for each piece as it is announced: no more than P lends at once."""
    try:
        async with aclosing(announcements):
            async for announced in announcements:
                arrivals.put_nowait(_asked(announced, connection, readers))
    finally:
        arrivals.put_nowait(None)


def _asked(announced: AnnouncedPiece, connection: DataConnection, readers: Executor) -> KvPiece:
    num_views = announced.num_views
    ticket = read_ticket(announced.message.ticket, num_views)
    arrival = connection.expect(ticket, num_views)
    views = ArrivingBlocks(num_views, ticket.block_bytes, arrival.read, arrival.read_summed)

    def release() -> None:
        arrival.drop()
        announced.take()

    return replace(
        announced.piece(views),
        checksums_behind=arrival.checksums,
        release=release,
        executor=readers,
    )


async def _last_reads(connection: DataConnection, arrivals: _Arrivals) -> None:
    """Pieces that were handed on may still be read; P, which lends them, is not left before."""
    until = monotonic() + LAST_READS_S
    _release(arrivals)
    while connection.is_awaited and monotonic() < until:
        await asyncio.sleep(0.001)
        _release(arrivals)


def _release(arrivals: _Arrivals) -> None:
    while not arrivals.empty():
        if isinstance(arrival := arrivals.get_nowait(), KvPiece):
            arrival.release()


class TcpSending:
    """P's half: a port, and the connections that were admitted there."""

    max_piece_bytes = 20 << 20
    carry = None
    reads_in_place = False

    def __init__(self, security: WireSecurity = PLAIN) -> None:
        self._security = security
        self._key = secrets.token_bytes(32)
        self._loans = Loans()
        self._listeners: dict[str, tuple[int, asyncio.Task[None]]] = {}
        """Port by host, and the task that welcomes there."""
        self._opening = asyncio.Lock()
        self._strangers: dict[asyncio.Task[None], None] = {}
        """The one that came first is first."""
        self._served: set[ServedConnection] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def pack(self, piece: LentPiece, request: OpenTransfer) -> PackedPiece:
        loan, lent = self._loans.lend(piece)
        return PackedPiece(ticket=ticket_of(loan).pack(), lent=lent)

    async def meet(self, receiver_epoch: Epoch, payload: bytes) -> bytes:
        if not self._security.may_carry_kv(TcpTransport.name):
            raise TransportFailed(
                "tcp does not encrypt, and `security` asks for TLS: choose transfer.transport "
                "auto or grpc, or set transfer.allow_plain"
            )
        try:
            request = msgspec.msgpack.decode(payload, type=MeetRequest)
        except msgspec.DecodeError as error:
            raise TransportFailed(f"a request to meet that cannot be read: {error}") from error
        async with self._opening:
            port = await self._listening_at(request.host)
        return msgspec.msgpack.encode(MeetReply(port, admission_of(self._key, receiver_epoch)))

    async def close(self) -> None:
        tasks = [*self._strangers, *(task for _, task in self._listeners.values())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._listeners.clear()
        for connection in list(self._served):
            connection.close()

    async def _listening_at(self, host: str) -> int:
        """The port there. Raises TransportFailed."""
        known = self._listeners.get(host)
        if known is not None and not known[1].done():
            return known[0]
        if len(self._listeners) >= MAX_HOSTS:
            raise TransportFailed(f"tcp: it listens at {', '.join(self._listeners)}, and no more")
        try:
            listener = await asyncio.to_thread(listen, host)  # the host may be a name
        except OSError as error:
            raise TransportFailed(f"tcp: cannot listen at {host!r}: {error}") from error
        port: int = listener.getsockname()[1]
        self._loop = asyncio.get_running_loop()
        self._listeners[host] = port, asyncio.create_task(self._welcome(listener))
        return port

    async def _welcome(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        listener.setblocking(False)
        with listener:
            while True:
                try:
                    visitor, _ = await loop.sock_accept(listener)
                except OSError:  # no more files, say: new connections wait
                    await asyncio.sleep(0.1)
                    continue
                if len(self._strangers) >= MAX_STRANGERS:
                    oldest = next(iter(self._strangers))  # a D that was admitted speaks at once
                    del self._strangers[oldest]
                    oldest.cancel()
                greeting = asyncio.create_task(self._greet(visitor))
                self._strangers[greeting] = None
                greeting.add_done_callback(lambda ended: self._strangers.pop(ended, None))
                await asyncio.sleep(0)  # it may have spoken already

    async def _greet(self, visitor: socket.socket) -> None:
        """Serve it if it shows the secret that D was given; else close it."""
        loop, hello = asyncio.get_running_loop(), b""
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                while len(hello) < HELLO.size:
                    more = await loop.sock_recv(visitor, HELLO.size - len(hello))
                    if not more:
                        raise OSError("it has left")
                    hello += more
                if not is_admitted(self._key, hello):
                    raise OSError("it knows no admission")
                if not self._has_room():
                    raise OSError("all connections are in use")
                await loop.sock_sendall(visitor, WELCOME)
            self._served.add(ServedConnection(visitor, self._loans, self._ended))
        except BaseException as error:
            visitor.close()
            if isinstance(error, OSError | TimeoutError | RuntimeError):  # RuntimeError: no thread
                return
            raise

    def _has_room(self) -> bool:
        """The one idle longest makes room for another: its D sees so, and opens a new one."""
        if len(self._served) < MAX_SERVED:
            return True
        idle = [(since, each) for each in self._served if (since := each.idle_since) is not None]
        if idle:
            _, longest = min(idle, key=lambda pair: pair[0])
            self._served.discard(longest)
            longest.close()
        return bool(idle)

    def _ended(self, connection: ServedConnection) -> None:
        """On the connection's thread."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._served.discard, connection)
