"""D's data connections to its senders: opened when none is free, kept for the next stream."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from dataclasses import dataclass, field

import msgspec

from baton.core.errors import TransportFailed
from baton.core.ids import Epoch
from baton.kv_transfer.handoff.messages import OpenTransfer
from baton.kv_transfer.transport.addresses import family_of, host_of
from baton.kv_transfer.transport.control.client import ControlClient
from baton.kv_transfer.transport.tcp.connection import DataConnection
from baton.kv_transfer.transport.tcp.frames import WELCOME, hello_of

CONNECTING_S = 5.0
IDLE_S = 60.0
"""A connection that no stream uses is closed after so long."""
MAX_IDLE_EACH = 4
"""Connections to one sender that are kept while no stream uses them."""
MAX_IDLE = 64
"""Idle connections to all senders together."""


class MeetRequest(msgspec.Struct, frozen=True):
    """D asks P, with `Meet`."""

    host: str
    """P's, as D reaches it."""


class MeetReply(msgspec.Struct, frozen=True):
    """P answers."""

    port: int
    admission: bytes
    """Secret that admits this incarnation of D, on as many connections as P accepts."""


@dataclass(slots=True, eq=False)
class _Sender:
    """One incarnation, once it was met."""

    address: str
    epoch: Epoch
    receiver: Epoch
    met: MeetReply
    idle: deque[tuple[DataConnection, asyncio.TimerHandle]] = field(default_factory=deque)
    """The one used last is last."""


class ConnectionPool:
    """Belongs to one event loop."""

    def __init__(self, name: str, control: ControlClient) -> None:
        self._name = name
        self._control = control
        self._senders: dict[str, _Sender] = {}
        """Senders by address. One that is not connected to any more is forgotten, and met anew."""

    @property
    def num_idle(self) -> int:
        return sum(len(sender.idle) for sender in self._senders.values())

    async def take(self, address: str, request: OpenTransfer) -> DataConnection:
        """A connection for one stream; give it back by `keep` or close it.

        Raises TransportFailed, StaleEpoch or TransferCut.
        """
        sender = self._senders.get(address)
        if sender is None or (sender.epoch, sender.receiver) != _epochs(request):
            self.forget(address)
            sender = await self._meet(address, request)
        while sender.idle:
            connection, closing = sender.idle.pop()
            closing.cancel()
            if connection.is_fresh:
                return connection
            connection.close("it was not used")
        try:
            return await self._connect(sender)
        except BaseException:
            self.forget(address)
            raise

    def keep(self, address: str, request: OpenTransfer, connection: DataConnection) -> None:
        """Keep a connection for the next stream, unless something is on its way on it, or there are
        too many."""
        sender = self._senders.get(address)
        is_known = sender is not None and (sender.epoch, sender.receiver) == _epochs(request)
        if sender is None or not is_known or not connection.is_fresh:
            connection.close("its stream has ended")
            return
        later = asyncio.get_running_loop().call_later
        closing = later(IDLE_S, self._close_oldest, address)
        sender.idle.append((connection, closing))
        if len(sender.idle) > MAX_IDLE_EACH:
            self._close_oldest(address)
        elif self.num_idle > MAX_IDLE:
            self._close_oldest(next(key for key, each in self._senders.items() if each.idle))

    def forget(self, address: str) -> None:
        """The next stream meets it anew."""
        sender = self._senders.pop(address, None)
        for connection, closing in sender.idle if sender is not None else ():
            closing.cancel()
            connection.close("its sender is another")

    def close(self) -> None:
        for address in list(self._senders):
            self.forget(address)

    def _close_oldest(self, address: str) -> None:
        sender = self._senders.get(address)
        if sender is not None and sender.idle:
            connection, closing = sender.idle.popleft()
            closing.cancel()
            connection.close("it was not used")

    async def _meet(self, address: str, request: OpenTransfer) -> _Sender:
        sender, receiver = _epochs(request)
        asked = msgspec.msgpack.encode(MeetRequest(host_of(address)))
        answer = await self._control.meet(address, self._name, sender, receiver, asked)
        try:
            reply = msgspec.msgpack.decode(answer, type=MeetReply)
        except msgspec.DecodeError as error:
            raise TransportFailed(f"an answer that cannot be read: {error}") from error
        self.forget(address)  # two streams may have met it at once
        met = self._senders[address] = _Sender(address, sender, receiver, reply)
        return met

    async def _connect(self, sender: _Sender) -> DataConnection:
        name = f"tcp from {sender.address}"
        at = (host_of(sender.address), sender.met.port)
        try:
            hello = hello_of(sender.receiver, sender.met.admission)
            async with asyncio.timeout(CONNECTING_S):
                return DataConnection(await _admitted(at, hello), name)
        except (OSError, TimeoutError, ValueError) as error:
            why = f"{name}: not admitted at port {at[1]}: {error or 'no answer'}"
            raise TransportFailed(why) from error


def _epochs(request: OpenTransfer) -> tuple[Epoch, Epoch]:
    return request.sender_epoch, request.receiver_epoch


async def _admitted(at: tuple[str, int], hello: bytes) -> socket.socket:
    """Raises OSError."""
    loop = asyncio.get_running_loop()
    [(family, kind, protocol, _, target), *_] = await loop.getaddrinfo(
        *at, family=family_of(at[0]), type=socket.SOCK_STREAM
    )
    connection = socket.socket(family, kind, protocol)
    try:
        connection.setblocking(False)
        await loop.sock_connect(connection, target)
        await loop.sock_sendall(connection, hello)
        if await loop.sock_recv(connection, len(WELCOME)) != WELCOME:
            raise OSError("the sender has closed the connection")
    except BaseException:
        connection.close()
        raise
    return connection
