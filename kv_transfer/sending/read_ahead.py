"""Reads one stream of a transfer a few pieces ahead of its receiver.

    begin_read --> readings --> cuts --> hashed on a thread --> shelf --> taken, lent, given back
      ^  producing: a task of its own, as long as the shelf has room         the receiver's pace

If the transport carries bytes in its messages, a thread copies the pieces and gives them back.

Small cuts (a short prompt, layer by layer) are hashed several at a time, so that not each needs a
thread. Each cut carries a share of its reading, which comes back exactly once: from the borrower of
the piece, or from here if the piece was never lent. With the last share the reading is over.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from concurrent.futures import Executor, Future
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Protocol

from baton.core.errors import TransferCut
from baton.kv_transfer.handoff.messages import OpenTransfer
from baton.kv_transfer.handoff.transport import LentPiece
from baton.kv_transfer.sending.pieces import (
    BlockRead,
    Contents,
    Cut,
    cuts,
    lend,
    look_at,
    reading_for,
)

log = logging.getLogger(__name__)

MAX_AHEAD = 4
"""Batches that are hashed, or being hashed, before the receiver asks for them. One is a piece, or
as many small ones as `BATCH_BYTES` hold."""
MAX_COPIES_AHEAD = 2
"""The same of batches that are copies, into the messages of their pieces: they take memory."""
BATCH_BYTES = 4 << 20
"""Hashed in one go, unless by one piece: the receiver begins as soon as the first batch is done."""
GROWTH = 2
"""Each piece costs both event loops some time: they are as long as this part of what was read
before, if the transport allows it, and a batch at first, for D copies while P hashes on."""


class Source(Protocol):
    """Where the readings of a stream come from, and go."""

    @property
    def is_done(self) -> bool:
        """Whether there is nothing more to begin."""

    async def begin(self) -> list[BlockRead]:
        """What may be read next, as soon as there is something."""

    def end(self, reading: BlockRead) -> None:
        """May be called from any thread."""


@dataclass(frozen=True, slots=True)
class _Share:
    """A cut, and the part of its reading that goes with it."""

    cut: Cut
    give_back: Callable[[], None]


@dataclass(frozen=True, slots=True)
class _Batch:
    shares: deque[_Share]
    hashing: Future[list[Contents]]
    is_last: bool
    """No piece follows behind it."""

    async def pieces(self) -> AsyncGenerator[LentPiece, None]:
        try:
            for contents in await self._hashed():
                share, is_last = self.shares[0], self.is_last and len(self.shares) == 1
                piece = lend(share.cut, contents, share.give_back, is_last=is_last)
                self.shares.popleft()
                yield piece
        finally:
            self.discard()

    async def _hashed(self) -> list[Contents]:
        try:
            if self.hashing.done():
                return self.hashing.result()
            return await asyncio.wrap_future(self.hashing)
        except Exception as error:  # a device that fails
            transfer_id = self.shares[0].cut.reading.transfer_id
            log.exception("the KV of %s cannot be read", transfer_id)
            raise TransferCut(f"{transfer_id} cannot be read: {error!r}") from error

    def discard(self) -> None:
        """Nobody wants what is left; its thread may be at it all the same."""
        self.hashing.cancel()
        self.hashing.add_done_callback(lambda _: self._give_back())

    def _give_back(self) -> None:
        while self.shares:
            self.shares.popleft().give_back()


class ReadAhead:
    def __init__(
        self,
        source: Source,
        hashing: Executor,
        max_piece_bytes: int,
        request: OpenTransfer,
        *,
        max_bytes_at_once: int = 0,
    ) -> None:
        """`max_bytes_at_once`: so many, from the first on, are hashed on the event loop itself."""
        self._max_bytes_at_once = max_bytes_at_once
        self._num_submitted_bytes = 0
        self._source = source
        self._read = reading_for(request)
        self._is_only_looking = self._read is look_at
        self._hashing = hashing
        self._max_piece_bytes = max_piece_bytes
        self._num_bytes = 0
        """Bytes of all pieces that were cut."""
        self._is_copied = request.carry is not None
        self._room = asyncio.Semaphore(MAX_COPIES_AHEAD if self._is_copied else MAX_AHEAD)
        self._shelf: asyncio.Queue[_Batch | BaseException | None] = asyncio.Queue()
        self._is_closed = False

    async def pieces(self) -> AsyncGenerator[LentPiece, None]:
        """Lend every piece, in order, then end.

        Raises what `Source.begin` raises, and TransferCut where its blocks cannot be read.
        """
        producing = asyncio.create_task(self._produce())
        producing.add_done_callback(self._produced)
        try:
            while (item := await self._shelf.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                self._room.release()
                async with aclosing(item.pieces()) as pieces:
                    async for piece in pieces:
                        yield piece
        finally:
            self._is_closed = True
            self._clear()
            producing.cancel()

    async def _produce(self) -> None:
        while not self._source.is_done:
            await self._shelve(await self._source.begin())

    async def _shelve(self, readings: Iterable[BlockRead]) -> None:
        """Have them hashed, as far as there is room; on cancellation, give back the rest."""
        shares = deque(share for reading in readings for share in self._shares(reading))
        try:
            while shares:
                await self._room.acquire()
                batch = self._next_batch(shares)
                hashing = self._hashed(tuple(batch))
                for _ in batch:
                    shares.popleft()
                is_last = not shares and self._source.is_done
                self._shelf.put_nowait(_Batch(batch, hashing, is_last))
        finally:
            _give_back(shares)

    def _hashed(self, shares: Sequence[_Share]) -> Future[list[Contents]]:
        """A short prompt is hashed at once: quicker than to ask a thread, and to be told by it."""
        wanted = [share.cut for share in shares]
        self._num_submitted_bytes += sum(cut.num_bytes for cut in wanted)
        is_short = self._num_submitted_bytes <= self._max_bytes_at_once
        if not ((is_short or self._is_only_looking) and all(cut.is_in_memory for cut in wanted)):
            hashing = self._hashing.submit(self._read, wanted)
            if self._is_copied:  # however it ends, the blocks are not looked at again
                hashing.add_done_callback(lambda _: _give_back(shares))
            return hashing
        hashing = Future()
        try:
            hashing.set_result(self._read(wanted))
        except Exception as error:
            hashing.set_exception(error)
        return hashing

    def _next_batch(self, shares: Iterable[_Share]) -> deque[_Share]:
        """The first of them, and those behind it that fit into a batch as well."""
        batch, num_bytes = deque[_Share](), 0
        for share in shares:
            num_bytes += share.cut.num_bytes
            if batch and num_bytes > min(self._max_piece_bytes, BATCH_BYTES):
                break
            batch.append(share)
        return batch

    def _shares(self, reading: BlockRead) -> list[_Share]:
        found: list[Cut] = []
        for cut in cuts(reading, self._piece_bytes):
            found.append(cut)
            self._num_bytes += cut.num_bytes
        loan = _Loan(len(found), lambda: self._source.end(reading))
        return [_Share(cut, _once(loan.give_back)) for cut in found]

    def _piece_bytes(self) -> int:
        return min(self._max_piece_bytes, max(BATCH_BYTES, self._num_bytes // GROWTH))

    def _produced(self, producing: asyncio.Task[None]) -> None:
        """Note that producing has ended, or failed, or has no listener any more."""
        error = None if producing.cancelled() else producing.exception()
        if self._is_closed:
            self._clear()
        else:
            self._shelf.put_nowait(error)

    def _clear(self) -> None:
        with suppress(asyncio.QueueEmpty):
            while True:
                item = self._shelf.get_nowait()
                if isinstance(item, _Batch):
                    item.discard()


def _give_back(shares: Iterable[_Share]) -> None:
    for share in shares:
        share.give_back()


class _Loan:
    """One reading, until every share of it is given back."""

    def __init__(self, num_shares: int, end: Callable[[], None]) -> None:
        self._num_out = num_shares
        self._end = end
        self._lock = threading.Lock()

    def give_back(self) -> None:
        with self._lock:
            self._num_out -= 1
            is_over = not self._num_out
        if is_over:
            self._end()


def _once(function: Callable[[], None]) -> Callable[[], None]:
    """`function` so that only the first call counts."""
    left = [function]

    def call() -> None:
        with suppress(IndexError):
            left.pop()()

    return call
