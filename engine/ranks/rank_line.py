"""A connection from a lead to one of its ranks, besides passes: the lead asks, the rank answers.

    lead    RankLine: any thread asks ---- a socket of this machine ---- RankPort: its own thread
               future <-- answer, or exception ------------------------- answers[what](...)

The rank starts on each question when it arrives, so a slow answer does not delay others. Messages
are pickled: both are processes of one replica, and the lead authenticates with a secret that the
rank has put into the ranks' store. The connection ends with either process. So if no answer will
ever come, the rank's process is gone, and writes nothing any more.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import secrets
import socket
import struct
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from itertools import count
from typing import Any, NamedTuple

from baton.core.errors import TransportFailed
from baton.core.rank_memory import Answer

KEY_BYTES = 16
CONNECT_S = 30.0
"""Seconds for a lead to connect to a rank, which is listening by then."""
_LENGTH = struct.Struct("<Q")
_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid


class RankPlace(NamedTuple):
    """The address at which a rank listens for its lead."""

    name: str
    """Name of the socket in Linux's abstract namespace."""
    key: bytes


class RankPort:
    """The rank's end. It serves only its lead, until that ends."""

    def __init__(self, answers: Mapping[str, Answer]) -> None:
        self._answers = answers
        self.place = RankPlace(f"baton-rank-{secrets.token_hex(8)}", secrets.token_bytes(KEY_BYTES))
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(f"\0{self.place.name}")
        self._listener.listen()
        thread = threading.Thread(target=self._run, name="answers the lead", daemon=True)
        thread.start()

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        reader, writer = await self._lead()
        answering: set[asyncio.Task[None]] = set()
        try:
            while True:
                number, what, about = pickle.loads(await _read(reader))
                task = asyncio.create_task(self._answer(writer, number, what, about))
                answering.add(task)
                task.add_done_callback(answering.discard)
        except (OSError, EOFError):
            pass  # the lead is gone: this process ends, too
        finally:
            for task in [*answering]:
                task.cancel()
            writer.close()

    async def _lead(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """The first connection that presents the key."""
        loop = asyncio.get_running_loop()
        self._listener.setblocking(False)
        with self._listener:
            while True:
                visitor, _ = await loop.sock_accept(self._listener)
                if not _is_own_user(visitor):  # who could hold the lead up by sending no key
                    visitor.close()
                    continue
                reader, writer = await asyncio.open_unix_connection(sock=visitor)
                with suppress(OSError, EOFError, TimeoutError):
                    async with asyncio.timeout(CONNECT_S):
                        key = await reader.readexactly(KEY_BYTES)
                    if secrets.compare_digest(key, self.place.key):
                        return reader, writer
                writer.close()

    async def _answer(
        self, writer: asyncio.StreamWriter, number: int, what: str, about: tuple[Any, ...]
    ) -> None:
        try:
            answer = _packed((number, await self._answers[what](*about), None))
        except Exception as error:
            answer = _packed_error(number, error)
        writer.write(answer)


class RankLine:
    """The lead's end; implements `baton.core.rank_memory.RankLine`."""

    def __init__(self, place: RankPlace, rank: int) -> None:
        """Raises OSError if the rank cannot be reached."""
        self._gone = f"rank {rank} of this replica is gone"
        self._numbers = count()
        self._asked: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()
        self._is_over = False
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._connection.settimeout(CONNECT_S)
            self._connection.connect(f"\0{place.name}")
            if not _is_own_user(self._connection):
                raise OSError(f"another user listens where rank {rank} should")
            self._connection.sendall(place.key)
            self._connection.setblocking(False)
        except BaseException:
            self._connection.close()
            raise
        self._loop = asyncio.new_event_loop()
        self._writer: asyncio.StreamWriter | None = None
        has_begun = threading.Event()
        name = f"asks rank {rank}"
        threading.Thread(target=self._run, args=(has_begun,), name=name, daemon=True).start()
        has_begun.wait()

    def ask(self, what: str, *about: Any) -> Future[Any]:
        """See `baton.core.rank_memory.RankLine`."""
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()  # who has no use for the answer drops it
        number = next(self._numbers)
        message = _packed((number, what, about))
        with self._lock:
            if self._is_over:
                future.set_exception(TransportFailed(self._gone))
                return future
            self._asked[number] = future
            self._loop.call_soon_threadsafe(self._send, message)
        return future

    def close(self) -> None:
        """See `baton.core.rank_memory.RankLine`."""
        with self._lock:
            if not self._is_over:
                self._loop.call_soon_threadsafe(self._hang_up)

    # Runs on the line's thread.

    def _run(self, has_begun: threading.Event) -> None:
        try:
            self._loop.run_until_complete(self._hear(has_begun))
        finally:
            self._loop.close()

    async def _hear(self, has_begun: threading.Event) -> None:
        try:
            reader, self._writer = await asyncio.open_unix_connection(sock=self._connection)
            has_begun.set()
            with suppress(OSError, EOFError):
                while True:
                    self._take(*pickle.loads(await _read(reader)))
        finally:  # however it ends: nobody may wait for ever
            self._hang_up()
            with self._lock:
                self._is_over = True
            for future in self._asked.values():
                future.set_exception(TransportFailed(self._gone))
            self._asked.clear()
            has_begun.set()

    def _take(self, number: int, answer: Any, error: Exception | None) -> None:
        future = self._asked.pop(number)
        if error is None:
            future.set_result(answer)
        else:
            future.set_exception(error)

    def _send(self, message: bytes) -> None:
        if self._writer is not None:
            self._writer.write(message)

    def _hang_up(self) -> None:
        if self._writer is None:
            self._connection.close()
        else:
            self._writer.close()


async def _read(reader: asyncio.StreamReader) -> bytes:
    """Raises EOFError or OSError at the end of the connection."""
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    return await reader.readexactly(length)


def _packed(message: object) -> bytes:
    data = pickle.dumps(message)
    return _LENGTH.pack(len(data)) + data


def _packed_error(number: int, error: Exception) -> bytes:
    try:
        packed = _packed((number, None, error))
        pickle.loads(packed[_LENGTH.size :])
    except Exception:  # some can be packed, but not be unpacked
        return _packed((number, None, RuntimeError(f"{type(error).__name__}: {error}")))
    return packed


def _is_own_user(connection: socket.socket) -> bool:
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(raw)
    return bool(uid == os.getuid())
