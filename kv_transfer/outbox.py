"""P's asyncio side of a transfer: turns what the engine publishes into a stream of pieces.

    engine's thread     publish ----notify----.            begin_read      end_read
    event loop                                 `-> pieces -----^  |            ^
    worker thread                                            copy and checksum |

Copying happens off the engine's thread, so reads really are in flight while the engine steps. A
reading is ended on the engine's thread when its last copy is made, also if the stream is cut
in the middle of one; until then the blocks cannot be reused.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager, suppress
from functools import partial

from baton.core.ids import TransferId
from baton.core.owner_thread import OwnerThread
from baton.kv_transfer.messages import KvPiece, OpenTransfer, Outcome, SettleTransfer
from baton.kv_transfer.pieces import Cut, Reading, cuts, make_piece
from baton.kv_transfer.sender import Sender

MAX_PIECE_BYTES = 1 << 20


class Outbox:
    """Implements `SendingSide` for one `Sender`. Belongs to the event loop that serves D."""

    def __init__(
        self, sender: Sender, owner: OwnerThread, *, max_piece_bytes: int = MAX_PIECE_BYTES
    ) -> None:
        self.num_bytes_sent = 0
        self._sender = sender
        self._owner = owner
        self._max_piece_bytes = max_piece_bytes
        self._loop: asyncio.AbstractEventLoop | None = None
        self._streams: defaultdict[TransferId, set[asyncio.Event]] = defaultdict(set)
        sender.on_changed = self.notify

    async def pieces(self, request: OpenTransfer) -> AsyncGenerator[KvPiece, None]:
        """See `SendingSide.pieces`. Raises what `Sender.open` and `Sender.begin_read` raise.

        Being cancelled or closed does not abort the transfer: D may open it again.
        """
        with self._listening(request.transfer_id) as changed:
            num_blocks = await self._owner.call(partial(self._sender.open, request))
            cursor = request.first_block
            while cursor < num_blocks:
                changed.clear()
                async with _Borrowed(self._owner, self._sender) as borrowed:
                    reading = await borrowed.begin(request.transfer_id, cursor)
                    if reading is not None:
                        for cut in cuts(reading, self._max_piece_bytes):
                            piece = await borrowed.copy(reading, cut)
                            self.num_bytes_sent += len(piece.data)
                            yield piece
                        cursor = reading.stop
                        continue
                await changed.wait()

    async def settle(self, request: SettleTransfer) -> Outcome:
        """See `SendingSide.settle`. Raises StaleEpoch."""
        return await self._owner.call(partial(self._sender.settle, request))

    def notify(self, transfer_id: TransferId) -> None:
        """Something was published, or the transfer is over. May be called from any thread."""
        if self._loop is None:
            return  # nobody has listened yet
        with suppress(RuntimeError):  # the loop has ended, and its streams with it
            self._loop.call_soon_threadsafe(self._wake, transfer_id)

    def _wake(self, transfer_id: TransferId) -> None:
        for event in self._streams.get(transfer_id, ()):
            event.set()

    @contextmanager
    def _listening(self, transfer_id: TransferId) -> Iterator[asyncio.Event]:
        self._loop = asyncio.get_running_loop()
        event = asyncio.Event()
        self._streams[transfer_id].add(event)
        try:
            yield event
        finally:
            self._streams[transfer_id].discard(event)
            if not self._streams[transfer_id]:
                del self._streams[transfer_id]


class _Borrowed:
    """At most one reading, given back exactly once and never while a thread copies from it."""

    def __init__(self, owner: OwnerThread, sender: Sender) -> None:
        self._owner = owner
        self._sender = sender
        self._reading: Reading | None = None  # touched on the owner's thread only
        self._copying: asyncio.Future[KvPiece] | None = None

    async def __aenter__(self) -> _Borrowed:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._copying is None or self._copying.done():
            self._give_back()
        else:
            self._copying.add_done_callback(lambda _: self._give_back())

    async def begin(self, transfer_id: TransferId, cursor: int) -> Reading | None:
        def begin_read() -> Reading | None:
            self._reading = self._sender.begin_read(transfer_id, cursor)
            return self._reading

        return await self._owner.call(begin_read)

    async def copy(self, reading: Reading, cut: Cut) -> KvPiece:
        loop = asyncio.get_running_loop()
        self._copying = loop.run_in_executor(None, make_piece, reading, cut)
        # Cancelling a queued copy would free its thread only by chance; wait for it instead.
        return await asyncio.shield(self._copying)

    def _give_back(self) -> None:
        # Posted even if `begin` was cancelled: the owner then runs both, in this order.
        self._owner.post(self._end_read)

    def _end_read(self) -> None:
        if self._reading is not None:
            self._sender.end_read(self._reading)
