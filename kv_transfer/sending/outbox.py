"""P's asyncio side of a transfer: turns what the engine publishes into a stream of pieces.

    engine's thread   publish --> begin_read for the streams that wait               end_read
    event loop                       `-> readings                                       ^
    hashing threads                         `-> checksums, a few pieces ahead           |
    transport                                        `-> lent ---------------- give back

Pieces are lent, so they are read while the engine steps; and reads begin between two layers of a
step, so the KV of a layer leaves while later layers are computed. A reading ends on the engine's
thread when its last piece is given back, also if the stream is cut in the middle; until then its
blocks cannot be reused. A piece that travels in its message is a copy, and is given back once the
message is written.

A few threads do the hashing, a few pieces ahead of each stream's receiver (about 8 MiB of copies),
so a slow receiver holds up nobody else. The first bytes of a stream, which are all of a short
prompt, are hashed on the event loop, without a hop to a thread and back. Where the transport sums
pieces up as it sends them (`reads_sums_behind`), nothing is hashed here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

from baton.core.errors import TransferCut, TransferError
from baton.core.gathering import Gathering
from baton.core.owner_thread import OwnerThread
from baton.kv_transfer.handoff.messages import OpenTransfer, Outcome, SettleTransfer
from baton.kv_transfer.handoff.transport import LentPiece
from baton.kv_transfer.sending.pieces import BlockRead
from baton.kv_transfer.sending.read_ahead import ReadAhead
from baton.kv_transfer.sending.sender import Sender
from baton.kv_transfer.sending.stream import SendingStream

log = logging.getLogger(__name__)

MAX_PIECE_BYTES = 2 << 20
"""Most bytes of a piece that travels in its message. Each costs both ends Python; a short prompt is
one."""
MAX_BYTES_AT_ONCE = 2 << 20
"""Bytes of a stream, from the first on, that are hashed on the event loop."""
NUM_HASHING_THREADS = 2


class Outbox:
    """Implements `SendingSide` for one `Sender`. Belongs to the event loop that serves D."""

    def __init__(
        self,
        sender: Sender,
        owner: OwnerThread,
        *,
        max_piece_bytes: int = MAX_PIECE_BYTES,
        max_bytes_at_once: int = MAX_BYTES_AT_ONCE,
    ) -> None:
        self.num_bytes_sent = 0
        # Its threads end when the outbox does.
        self.hashing: Executor = ThreadPoolExecutor(NUM_HASHING_THREADS, "baton-hashing")
        """May be replaced before the first stream, by one that also measures."""
        self.max_bytes_at_once = max_bytes_at_once
        """May be replaced before the first stream."""
        self._desk = _Desk(sender, owner)
        self._max_piece_bytes = max_piece_bytes

    async def pieces(self, request: OpenTransfer) -> AsyncGenerator[LentPiece, None]:
        """See `SendingSide.pieces`. Raises what `Sender.open` and `Sender.begin_read` raise, and
        TransferCut where the pool's memory cannot be read.

        Being cancelled or closed does not abort the transfer: D may open it again.
        """
        opening = _Opening(request, self._desk)
        max_piece_bytes = request.max_piece_bytes or self._max_piece_bytes
        ahead = ReadAhead(
            opening,
            self.hashing,
            max_piece_bytes,
            request,
            max_bytes_at_once=self.max_bytes_at_once,
        )
        async with aclosing(ahead.pieces()) as pieces:
            async for piece in pieces:
                self.num_bytes_sent += piece.num_bytes
                yield piece

    async def settle(self, request: SettleTransfer) -> Outcome:
        """See `SendingSide.settle`. Raises StaleEpoch.

        Not interjected: D may have sealed before the step that computed the last layer is over,
        and the end of a transfer must not overtake the first token.
        """
        return await self._desk.owner.call(partial(self._desk.sender.settle, request))


class _Opening:
    """One stream's readings, from the event loop: implements `Source`."""

    def __init__(self, request: OpenTransfer, desk: _Desk) -> None:
        self._request = request
        self._desk = desk
        self._stream: SendingStream | None = None
        # Not interjected: what it frees is of use only to the next step.
        self._ended = Gathering[BlockRead](desk.owner.post, desk.end_all)

    @property
    def is_done(self) -> bool:
        return self._stream is not None and self._stream.progress.is_done

    async def begin(self) -> list[BlockRead]:
        readings = asyncio.get_running_loop().create_future()
        question = _Question(self._request, self._stream, readings)
        try:
            await self._desk.owner.interject(partial(self._desk.ask, question))
            self._stream = question.stream
            return await asyncio.shield(question.readings)
        except asyncio.CancelledError:
            question.is_abandoned = True
            question.readings.add_done_callback(self._end_unseen)  # begun all the same, perhaps
            raise

    def end(self, reading: BlockRead) -> None:
        self._ended.add(reading)

    def _end_unseen(self, answered: asyncio.Future[list[BlockRead]]) -> None:
        if not answered.exception():
            for reading in answered.result():
                self.end(reading)


@dataclass(slots=True, eq=False)
class _Question:
    """What may be read next? Asked until it is answered."""

    request: OpenTransfer
    stream: SendingStream | None
    """None: it is to be opened first."""
    readings: asyncio.Future[list[BlockRead]]
    is_abandoned: bool = False
    """Nobody would see an answer: it need not be made."""


class _Desk:
    """On the owner's thread: answers at once, or when something is published."""

    def __init__(self, sender: Sender, owner: OwnerThread) -> None:
        self.sender = sender
        self.owner = owner

    def ask(self, question: _Question) -> None:
        """Raises what `Sender.open` raises."""
        if question.stream is None:
            question.stream = self.sender.open(question.request)
        if not self._answer(question, question.stream):
            self.sender.when_changed(question.stream.transfer_id, partial(self.ask, question))

    def end_all(self, readings: Sequence[BlockRead]) -> None:
        for reading in readings:
            self.sender.end_read(reading)

    def _answer(self, question: _Question, stream: SendingStream) -> bool:
        """Whether it need not be asked again."""
        if question.is_abandoned:
            return True
        future = question.readings
        try:
            readings = self.sender.begin_read(stream)
        except TransferError as error:
            _tell(future, partial(_fail, future, error))
            return True
        except Exception as error:  # the caller waits for an answer, and the engine can go on
            log.exception("the KV of %s cannot be read", stream.transfer_id)
            cut = TransferCut(f"{stream.transfer_id} cannot be read: {error!r}")
            _tell(future, partial(_fail, future, cut))
            return True
        if readings and not _tell(future, partial(future.set_result, readings)):
            for reading in readings:
                self.sender.end_read(reading)
        return bool(readings)


def _fail(future: asyncio.Future[list[BlockRead]], error: TransferError) -> None:
    future.set_exception(error)
    future.exception()  # the caller may have left


def _tell(future: asyncio.Future[list[BlockRead]], function: Callable[[], None]) -> bool:
    """Run `function` on the future's loop; False if that has ended, and its streams with it."""
    try:
        future.get_loop().call_soon_threadsafe(function)
    except RuntimeError:
        return False
    return True
