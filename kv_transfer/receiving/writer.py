"""Writes the pieces of one stream into their lease, on worker threads; small ones at once.

    event loop      put --> waiting --.                .-- a batch is done: the next one begins
    worker thread                      `--> begin all, place all, end all, release all

One batch of a stream is under way at a time, and the next takes whatever has arrived meanwhile: the
faster pieces arrive, the fewer hops between threads each of them costs. One compiled call writes a
batch, and its pieces are released together, because a release wakes the event loop, which then
needs the interpreter. Each piece is released once, whatever happens to it.

A piece with wrong bytes does not end its stream: it is noted, to be asked for again, unless there
are too many. Pieces whose bytes have yet to arrive are awaited on their transport's threads, so
that a slow sender holds up nobody else. A thread that awaits them goes on with what is put
meanwhile, for its sender stands still as soon as nobody reads. The source counts as awaited then,
except while the pieces wait for a thread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial

from baton.core.clock import Clock
from baton.core.errors import CorruptPiece, TransferCut
from baton.kv_transfer.handoff.messages import KvPiece
from baton.kv_transfer.receiving.filling import Fill, Filling
from baton.kv_transfer.receiving.listener import Listener
from baton.kv_transfer.receiving.placing import Unit, erase, place_together

AWAITED_BYTES = 64 << 20
"""A thread that awaits the pieces of one stream lets others have their turn after so many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterParts:
    """What all writers of a fetcher share."""

    executor: Executor
    clock: Clock
    max_unwritten: int
    """Pieces of one stream that have come but are not written."""
    max_unwritten_bytes: int
    """Bytes of these; of one alone there may be more."""
    max_bytes_at_once: int
    """Bytes of a stream, from the first on, that are written on the event loop."""
    max_asked_again: int
    """Pieces of one stream that may come with wrong bytes."""
    on_released: Callable[[], None]
    """Called on a worker thread: nothing writes any more to a lease that was aborted."""


class Writer:
    """Belongs to one event loop."""

    def __init__(
        self, filling: Filling, stream: int, parts: WriterParts, listener: Listener
    ) -> None:
        self.num_duplicates = 0
        self.num_corrupt = 0
        """Pieces that came with wrong bytes."""
        self._corrupt: list[CorruptPiece] = []
        """Pieces of these that may be asked for again."""
        self._filling = filling
        self._stream = stream
        self._is_plain = filling.is_plain(stream)
        self._parts = parts
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._listening = ExitStack()
        """While a thread waits for the bytes of a batch."""
        self._waiting = deque[KvPiece]()
        """A thread takes those itself that are yet to arrive."""
        self._batch: asyncio.Future[None] | None = None
        self._num_unwritten = self._num_unwritten_bytes = 0
        """Waiting, or in the batch."""
        self._num_bytes = 0
        """Bytes of all batches that were begun."""
        self._beginning: asyncio.Handle | None = None
        self._failure: BaseException | None = None
        self._is_closed = False
        self._changed = asyncio.Event()

    async def put(self, piece: KvPiece) -> None:
        """Return when there is room for the next one. Raises what an earlier one raised."""
        if self._failure is not None:
            piece.release()
            raise self._failure
        self._waiting.append(piece)
        self._num_unwritten += 1
        self._num_unwritten_bytes += _num_held(piece)
        if self._batch is None and self._beginning is None:
            # Soon: what came together with it is put before.
            self._beginning = self._loop.call_soon(self._begin_batch)
        await self._until(self._has_room)

    async def flush(self) -> None:
        """Return when everything is written. Raises what a piece raised."""
        await self._until(lambda: not self._num_unwritten and self._batch is None)

    def take_corrupt(self) -> list[CorruptPiece]:
        """What came with wrong bytes since this was asked last. After `flush`."""
        taken, self._corrupt = self._corrupt, []
        return taken

    def close(self) -> None:
        """Let go of what is waiting. A batch under way ends by itself."""
        self._is_closed = True
        self._release_waiting()

    def _has_room(self) -> bool:
        return (
            self._num_unwritten < self._parts.max_unwritten
            and self._num_unwritten_bytes < self._parts.max_unwritten_bytes
        )

    async def _until(self, is_so: Callable[[], bool]) -> None:
        while self._failure is None and not is_so():
            self._changed.clear()
            await self._changed.wait()
        if self._failure is not None:
            raise self._failure

    def _begin_batch(self) -> None:
        self._beginning = None
        if self._batch is not None or not self._waiting:
            return
        if (executor := self._waiting[0].executor) is not None:  # a stream's are all alike
            self._run(executor, self._write_continuously, 0, 0)
            return
        pieces = [*self._waiting]
        self._waiting.clear()
        num_bytes = sum(piece.num_bytes for piece in pieces)
        self._num_bytes += num_bytes
        if self._num_bytes <= self._parts.max_bytes_at_once and self._is_plain:
            self._write_at_once(pieces, num_bytes)
        elif not self._run(
            self._parts.executor, partial(self._write, pieces), len(pieces), num_bytes
        ):
            for piece in pieces:
                piece.release()

    def _run(
        self, executor: Executor, write: Callable[[], None], num_pieces: int, num_bytes: int
    ) -> bool:
        """False: the fetcher was closed. `num_pieces` are written when it is done."""
        try:
            self._batch = self._loop.run_in_executor(executor, write)
        except RuntimeError as error:
            self._end(0, 0, error)
            return False
        self._batch.add_done_callback(partial(self._end_batch, num_pieces, num_bytes))
        return True

    def _write_at_once(self, pieces: Sequence[KvPiece], num_bytes: int) -> None:
        error: BaseException | None = None
        try:
            self._write(pieces)
        except Exception as raised:
            error = raised
        self._end(len(pieces), num_bytes, error)

    def _end_batch(self, num_pieces: int, num_bytes: int, batch: asyncio.Future[None]) -> None:
        error = batch.exception()  # asked for in any case, or asyncio complains
        self._listening.close()
        self._batch = None
        self._end(num_pieces, num_bytes, error)

    def _end(self, num_pieces: int, num_bytes: int, error: BaseException | None) -> None:
        self._num_unwritten -= num_pieces
        self._num_unwritten_bytes -= num_bytes
        self._failure = self._failure or error
        self._changed.set()
        if self._failure is not None:
            self.close()
        elif not self._is_closed:
            self._begin_batch()

    def _has_come(self, piece: KvPiece, num_bytes: int) -> None:
        """None of its bytes, where the stream has broken."""
        if num_bytes:
            self._listener.observe(num_bytes, piece.transport)
        self._num_unwritten -= 1
        self._num_unwritten_bytes -= _num_held(piece)
        self._changed.set()

    def _listen(self) -> None:
        self._listening.enter_context(self._listener.listening())

    # On a worker thread.

    def _tell(self, function: Callable[[], None]) -> None:
        """Run it on the loop."""
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(function)

    def _write(self, pieces: Sequence[KvPiece]) -> None:
        try:
            self._write_together(pieces)
        finally:
            for piece in pieces:
                piece.release()

    def _write_continuously(self) -> None:
        """One that is cut short takes none of the others with it."""
        self._tell(self._listen)
        num_bytes = 0
        try:
            while num_bytes < AWAITED_BYTES and (piece := self._next_waiting()) is not None:
                num_bytes += piece.num_bytes
                self._write_one(piece)
        except BaseException:
            self._release_waiting()
            raise

    def _write_one(self, piece: KvPiece) -> None:
        num_bytes = 0
        try:
            self._write_together((piece,))
            num_bytes = piece.num_bytes
        except TransferCut:
            pass  # it stays missing; the stream, which broke, says so itself
        finally:
            piece.release()
        self._tell(partial(self._has_come, piece, num_bytes))

    def _release_waiting(self) -> None:
        while (piece := self._next_waiting()) is not None:
            piece.release()

    def _next_waiting(self) -> KvPiece | None:
        """On any thread; each piece once."""
        with suppress(IndexError):
            return self._waiting.popleft()
        return None

    def _write_together(self, pieces: Sequence[KvPiece]) -> None:
        fills: list[Fill] = []
        bad: dict[Fill, list[Unit]] = {}
        is_placed = False
        try:
            for part in self._to_begin(pieces):
                try:
                    fills.append(self._filling.begin(self._stream, part, self._parts.clock()))
                except CorruptPiece as error:
                    self._put_down(error)
            bad = place_together(fills)
            self._agree(fills)
            is_placed = True
        finally:
            for fill in fills:
                self._filling.end(fill, is_written=is_placed and fill not in bad)
            if fills and self._filling.is_released:
                self._parts.on_released()
        for fill in fills:
            self.num_duplicates += fill.num_duplicates
            if fill in bad:
                self._refuse(fill, bad[fill])

    def _to_begin(self, pieces: Iterable[KvPiece]) -> Iterator[KvPiece]:
        for piece in pieces:
            try:
                parts = self._filling.parts(self._stream, piece)
            except CorruptPiece as error:
                self._put_down(error)
            else:
                yield from parts

    def _agree(self, fills: Iterable[Fill]) -> None:
        for fill in fills:
            try:
                self._filling.agree(fill)
            except CorruptPiece as error:
                erase(fill)
                self._put_down(error)

    def _refuse(self, fill: Fill, bad: Sequence[Unit]) -> None:
        try:
            self._filling.refuse(fill, bad)
        except CorruptPiece as error:
            self._put_down(error)

    def _put_down(self, error: CorruptPiece) -> None:
        self.num_corrupt += 1
        if not error.blocks or self.num_corrupt > self._parts.max_asked_again:
            raise error
        self._corrupt.append(error)


def _num_held(piece: KvPiece) -> int:
    """Bytes that are held here until it is written: none of a piece that has yet to arrive."""
    return 0 if piece.executor is not None else piece.num_bytes
