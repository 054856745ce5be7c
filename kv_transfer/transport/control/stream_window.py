"""The pieces of one stream that P has for D: those that are ready, and those that D holds.

    prepare --> [ready] --> next --> announce --> lent --> taken back: D says so, or P recalls it
                             ^______________ shrink ______________|

A stream is lent a bounded number of pieces, for a bounded time; a D that takes none stops its own
stream and no other. Pieces whose bytes are in the message are given back as it is written. However
a stream ends, what it was lent is given back. The same happens when P has waited for D, over the
whole stream, for longer than its bytes would take at the least rate: even if D never reads on, and
the stream cannot end.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, contextmanager

from baton.core.errors import TransferCut, TransferError
from baton.kv_transfer.handoff.messages import OpenTransfer
from baton.kv_transfer.handoff.transport import LentPiece, SendingHalf
from baton.kv_transfer.transport.control.ready_pieces import MAX_READY, ReadyPieces
from baton.kv_transfer.transport.control.wire import write_piece
from baton.proto import kv_pb2 as pb

MAX_UNTAKEN = 32
"""Pieces of one stream that are lent at once to a D that reads them by itself."""
MAX_UNTAKEN_S = 30.0
"""A stream whose D takes nothing for so long, though it could, is cut."""
PATIENCE_S = 30.0
MIN_BYTES_PER_S = 4 << 20
"""Least rate of a whole stream: P waits for D as long as its bytes take so, and `PATIENCE_S`."""
MAX_BATCH_BYTES = 1 << 19
"""Bytes of pieces that are announced together; one alone may be larger. So the first of a short
prompt are written while the others are on their way."""


class StreamWindow:
    """Belongs to the event loop that serves D."""

    def __init__(self) -> None:
        self._ready = ReadyPieces()
        self._end: list[BaseException | None] = []
        """Taken from the queue together with the last pieces."""
        self._lent: deque[LentPiece] = deque()
        """Oldest first."""
        self._has_announced_last = False
        self._num_taken = 0
        self._changed = asyncio.Event()
        self._patience_s = PATIENCE_S
        """How much longer P waits for D, over the whole stream."""
        self._failure: TransferCut | None = None
        self._is_settled = False
        self._preparing: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[pb.OpenMessage | None] | None = None
        self._listens_no_more = False
        self.may_open_next = False
        """Whether D, which was told of the last piece, may open another transfer behind it."""

    @property
    def is_at_end(self) -> bool:
        """Whether it is known already that no piece follows what was announced."""
        return self._has_announced_last or self._end == [None]

    @property
    def num_lent(self) -> int:
        """Pieces that D has yet to take."""
        return len(self._lent)

    def listen(self, messages: AsyncIterator[pb.OpenMessage]) -> None:
        self._listening = asyncio.create_task(self._take_back(messages))
        self._listening.add_done_callback(lambda _: self._changed.set())

    def prepare(self, pieces: AsyncGenerator[LentPiece, None]) -> None:
        self._preparing = asyncio.create_task(self._prepare(pieces))

    async def next(self) -> LentPiece | None:
        """The next piece that is ready; None at the end. Raises what ended the pieces."""
        self._check_patience()
        item = self._end.pop() if self._end else await self._ready.get()
        if isinstance(item, BaseException):
            raise item
        return item

    async def announce(self, piece: LentPiece, half: SendingHalf, request: OpenTransfer) -> bytes:
        """A message with this piece, and with more as far as they are ready and small."""
        parts: list[bytes] = []
        num_bytes = 0
        while True:
            self._patience_s += piece.num_bytes / MIN_BYTES_PER_S
            message, lent = await _packed(half, piece, request)
            if lent is None:
                piece.give_back()
            else:
                self._lent.append(lent)
            parts.append(message)
            num_bytes += len(message)
            self._has_announced_last |= piece.is_last
            # All pieces of a stream but the last ones are about equally long.
            is_full = num_bytes + len(message) > MAX_BATCH_BYTES or len(parts) == MAX_READY
            if is_full or len(self._lent) == MAX_UNTAKEN or (next_ := self._next_ready()) is None:
                return parts[0] if len(parts) == 1 else b"".join(parts)
            piece = next_

    async def shrink(self, max_lent: int) -> None:
        """Wait until D holds at most so many pieces. Raises TransferError if it never will."""
        with self.waiting():
            while len(self._lent) > max_lent:
                self._check_listening()
                self._changed.clear()
                try:
                    async with asyncio.timeout(MAX_UNTAKEN_S):
                        await self._changed.wait()
                except TimeoutError:
                    silence = f"the receiver took nothing for {MAX_UNTAKEN_S:g} s"
                    raise TransferCut(silence) from None
        self._check_patience()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Within the context P waits for D: when its patience is at an end it takes all back."""
        loop = asyncio.get_running_loop()
        begun, recall = loop.time(), loop.call_later(self._patience_s, self._recall)
        try:
            yield
        finally:
            recall.cancel()
            self._patience_s = max(0.0, self._patience_s - (loop.time() - begun))

    def settle(self) -> None:
        """D has said that the transfer is sealed: it has taken all, whether or not it said so."""
        self._is_settled = True
        self._take_lent_back()
        self._changed.set()

    async def next_opening(self) -> pb.OpenMessage | None:
        """What D opens on this stream next; None at its end, or when nobody listens any more.

        Raises TransferError.
        """
        assert self._listening is not None
        try:
            return await self._listening
        except asyncio.CancelledError:
            if self._listens_no_more:
                return None
            raise

    def stop_listening(self) -> None:
        self._listens_no_more = True
        if self._listening is not None:
            self._listening.cancel()

    async def close(self) -> None:
        self.stop_listening()
        self._take_all_back()
        if self._preparing is not None:
            await asyncio.gather(self._preparing, return_exceptions=True)
        self._take_all_back()  # what was put meanwhile

    def _recall(self) -> None:
        rate = f"{MIN_BYTES_PER_S >> 20} MiB/s"
        self._failure = TransferCut(f"the receiver takes less than {rate} over the whole transfer")
        self._take_all_back()
        self._changed.set()

    def _take_all_back(self) -> None:
        if self._preparing is not None:
            self._preparing.cancel()
        for piece in self._lent:
            piece.give_up()
        self._take_lent_back()
        while not self._ready.is_empty:
            item = self._ready.get_nowait()
            if isinstance(item, LentPiece):
                item.give_back()

    def _take_lent_back(self) -> None:
        while self._lent:
            self._lent.popleft().give_back()

    def _check_patience(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _next_ready(self) -> LentPiece | None:
        """One that need not be waited for."""
        if self._end or self._ready.is_empty:
            return None
        item = self._ready.get_nowait()
        if isinstance(item, LentPiece):
            return item
        self._end.append(item)
        return None

    async def _prepare(self, pieces: AsyncGenerator[LentPiece, None]) -> None:
        end: BaseException | None = None
        try:
            async with aclosing(pieces):
                async for piece in pieces:
                    try:
                        await self._ready.put(piece)
                    except BaseException:
                        piece.give_back()
                        raise
        except Exception as error:
            end = error
        await self._ready.put(end)

    def _check_listening(self) -> None:
        if self._listening is None or not self._listening.done():
            return
        if not self._listening.cancelled() and (error := self._listening.exception()):
            raise error
        raise TransferCut("the receiver will take nothing more")

    async def _take_back(self, messages: AsyncIterator[pb.OpenMessage]) -> pb.OpenMessage | None:
        """Until D's half of the stream ends, or opens another transfer."""
        while (message := await anext(messages, None)) is not None:
            if message.HasField("open") and self.may_open_next and not self._lent:
                return message
            if message.HasField("taken") and self._is_settled:
                continue
            num_new = message.taken.num_pieces - self._num_taken
            if not message.HasField("taken") or num_new > len(self._lent):
                raise TransferError("the receiver takes what it was not lent")
            for _ in range(num_new):
                self._lent.popleft().give_back()
                self._num_taken += 1
            self._changed.set()
        return None


async def _packed(
    half: SendingHalf, piece: LentPiece, request: OpenTransfer
) -> tuple[bytes, LentPiece | None]:
    """The message, and what is lent with it: nothing where the piece's bytes are in it."""
    try:
        packed = await half.pack(piece, request)
        message = piece.message or write_piece(piece, packed)
        return message, (packed.lent or piece) if packed.ticket else None
    except BaseException:
        piece.give_back()
        raise
