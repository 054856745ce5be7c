"""Pieces on their way between two joined processes, from P to D.

    event loop                                thread of the pair
    P   send:   copy, number, post ---------> wait, in order: the copy's memory is free
    D   expect: post -----------------------> wait, in order: the piece has landed

Posting blocks on no peer, and handing a piece to another thread costs as much as copying it.

Both sides post the pieces of all transfers in the order of their numbers: by it NCCL matches them,
and Gloo under one tag. Numbers are announced on as many control streams as there are transfers, so
D may hear of a later one first. What a stream that ended early never told, D asks for (`inquire`)
and receives as well, so that nothing gets out of step, and nothing stays on the way.

A pair breaks as a whole and for good: when its peer dies (noticed at once), or P stands still for
`PATIENCE_S`. Whoever waits hears of it at once, whatever the pair's thread is still stuck in. P
has no such limit for D, which may not have been told of a piece yet.

What P has copied and D not received is bounded by the windows of the control streams. There is no
bound for a pair as a whole: pieces are posted before they are announced, some of them together, so
transfers that share it could wait for each other's announcements.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial

from torch import Tensor
from torch.distributed import Work

from baton.core.errors import TransferCut, TransferError, TransportFailed
from baton.kv_transfer.handoff.transport import LentPiece
from baton.kv_transfer.transport.collective.joint import PATIENCE_S, Group
from baton.kv_transfer.transport.collective.staging import Copied, Staging
from baton.kv_transfer.transport.daemon import DaemonThread

MAX_REMEMBERED = 4096
"""Sizes of pieces that D may still ask for."""
MAX_UNCLAIMED = 128
"""Pieces that landed before their announcement, which may never come."""
MAX_PIECE_BYTES = 1 << 30
MAX_JOINING_S = 2 * PATIENCE_S
"""Some calls of torch.distributed make several attempts."""
CLOSING_S = 1.0
"""A thread that comes back from C++ while the interpreter ends would abort the process."""

Inquire = Callable[[int, int | None], Awaitable[Sequence[int]]]
"""Ask P for the sizes of the pieces [first, stop), or of all from `first` on.

Raises TransferError.
"""


class Pair(ABC):
    """What both ends have: a group, and a thread that joins it and waits for what is posted."""

    def __init__(self, name: str, join: Callable[[], Group], staging: Staging) -> None:
        self.name = name
        self.num_users = 0
        """Streams open and pieces being packed: it must not go, nor what they may still claim."""
        self._staging = staging
        self._loop = asyncio.get_running_loop()
        self._group: Group | None = None
        self._failure: TransportFailed | None = None
        self._resting: asyncio.Future[None] = self._loop.create_future()
        self._joined: asyncio.Future[None] = self._loop.create_future()
        self._thread = DaemonThread(name)
        self._thread.call(join).add_done_callback(self._has_joined)
        self._deadline = self._loop.call_later(MAX_JOINING_S, self.break_, "joining took too long")

    @property
    def is_broken(self) -> bool:
        return self._failure is not None

    async def joined(self) -> None:
        """Return when pieces can go. Raises TransportFailed."""
        await asyncio.shield(self._joined)
        self._check()

    def break_(self, why: str) -> None:
        """Nothing goes over it any more. Returns at once; repeating it changes nothing."""
        if self._failure is not None:
            return
        self._failure = TransportFailed(f"{self.name}: {why}")
        self._deadline.cancel()
        if not self._joined.done():
            self._joined.set_exception(self._failure)
            self._joined.exception()  # nobody may be waiting
        group, self._group = self._group, None
        # Its connection ends with the last operation that refers to it; ending it may take a while.
        self._thread.post(partial(_let_go, group))
        self._resting = self._thread.call(_nothing)
        self._thread.stop()
        self._on_broken(self._failure)

    async def close(self, why: str) -> None:
        """Break it, and give its thread a moment to let go of it; it may be stuck."""
        self.break_(why)
        await asyncio.wait({self._resting}, timeout=CLOSING_S)

    @abstractmethod
    def _on_broken(self, failure: TransportFailed) -> None:
        """Tell whoever waits for a piece."""

    def _check(self) -> None:
        if self._failure is not None:
            raise TransportFailed(str(self._failure))

    def _has_joined(self, joining: asyncio.Future[Group]) -> None:
        if error := joining.exception():
            self.break_(f"the two did not find each other: {_first_line(error)}")
        elif self._failure is None:
            self._deadline.cancel()
            self._group = joining.result()
            self._joined.set_result(None)

    def _tell(self, function: Callable[[], None]) -> None:
        """Run it on the loop; from any thread."""
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(function)

    def _broke(self, error: Exception) -> None:
        """From the pair's thread."""
        self._tell(partial(self.break_, _first_line(error)))


class SendingPair(Pair):
    """P's end."""

    def __init__(self, name: str, join: Callable[[], Group], staging: Staging) -> None:
        self._num_posted = 0
        self._size_by_number: dict[int, int] = {}
        super().__init__(name, join, staging)

    async def send(self, piece: LentPiece) -> tuple[int, int]:
        """Return its number and size. It is copied, and need not be lent any longer.

        Raises TransportFailed.
        """
        await self.joined()
        try:
            number, size, copied = self._post(piece)
            if copied is not None:
                await _waited(copied)
        except RuntimeError as error:
            self.break_(_first_line(error))
            raise TransportFailed(str(self._failure)) from error
        return number, size

    def sizes(self, first: int, stop: int | None) -> list[int]:
        """See `Inquire`. Raises TransportFailed for a piece never posted, or too long ago."""
        stop = self._num_posted if stop is None else stop
        if stop - first > MAX_REMEMBERED:
            raise TransportFailed(f"{self.name}: asked for {stop - first} pieces at once")
        try:
            return [self._size_by_number[number] for number in range(first, stop)]
        except KeyError as number:
            raise TransportFailed(f"{self.name}: piece {number} is not known") from None

    def _post(self, piece: LentPiece) -> tuple[int, int, Copied | None]:
        assert self._group is not None, "it has joined and is not broken"
        data, copied = self._staging.outgoing(piece)
        work = self._staging.send(self._group.ranks, data)
        number, size = self._num_posted, data.numel()
        self._size_by_number[number] = size
        self._size_by_number.pop(number - MAX_REMEMBERED, None)
        self._num_posted += 1
        self._thread.post(partial(self._wait, work, data))
        return number, size, copied

    def _wait(self, work: Work, data: Tensor) -> None:
        try:
            self._staging.sent(work)
        except RuntimeError as error:
            self._broke(error)  # the copy's memory may still be read: it goes with the group
        else:
            self._staging.reuse(data)

    def _on_broken(self, failure: TransportFailed) -> None:
        """Nobody waits here but for the joining."""


class ReceivingPair(Pair):
    """D's end."""

    def __init__(
        self, name: str, join: Callable[[], Group], staging: Staging, inquire: Inquire
    ) -> None:
        self._inquire = inquire
        self._asking: asyncio.Task[None] | None = None
        self._size_by_number: dict[int, int] = {}
        """Bytes of pieces that are known, but not yet posted."""
        self._is_behind = False
        self._claims: dict[int, asyncio.Future[Tensor]] = {}
        self._unclaimed: dict[int, Tensor] = {}
        self._num_posted = 0
        self._num_landed = 0
        super().__init__(name, join, staging)

    def expect(self, number: int, size: int) -> asyncio.Future[Tensor]:
        """The bytes of an announced piece, in host memory; give it to `drop` in any case.

        Raises TransportFailed by itself or through the future, which may also raise TransferCut.
        """
        self._check()
        is_new = number not in self._claims and number <= self._num_posted + MAX_REMEMBERED
        if not (is_new and 0 < size <= MAX_PIECE_BYTES):
            self.break_(f"an impossible piece was announced: {number=} {size=}")
            self._check()
        claim: asyncio.Future[Tensor] = self._loop.create_future()
        if number >= self._num_landed:
            self._claims[number] = claim
        elif (data := self._unclaimed.pop(number, None)) is not None:
            claim.set_result(data)
        else:
            claim.set_exception(TransferCut(f"{self.name}: piece {number} was given up"))
        if number >= self._num_posted:
            self._size_by_number[number] = size
            self._advance()
        return claim

    def drop(self, claim: asyncio.Future[Tensor]) -> None:
        """The bytes are not looked at any more, or will not be."""
        if not claim.cancel() and not claim.exception():
            self._staging.reuse(claim.result())

    def catch_up(self) -> None:
        """A stream ended early: receive what it may not have announced."""
        self._is_behind = True
        self._advance()

    def forget_unclaimed(self) -> None:
        """No stream is open that might still announce them."""
        while self._unclaimed:
            self._staging.reuse(self._unclaimed.popitem()[1])

    def _advance(self) -> None:
        """Post what is next, as far as that is known."""
        while (size := self._size_by_number.pop(self._num_posted, None)) is not None:
            self._post(self._num_posted, size)
            self._num_posted += 1
        if self._is_lacking and self._asking is None and not self.is_broken:
            self._asking = self._loop.create_task(self._ask())

    @property
    def _is_lacking(self) -> bool:
        return bool(self._size_by_number) or self._is_behind

    async def _ask(self) -> None:
        """Fill the gap before a piece that was announced out of turn, or ask for all there is."""
        if not self._is_lacking:  # it was announced meanwhile
            self._asking = None
            return
        first = self._num_posted
        stop = None if self._is_behind else min(self._size_by_number)
        self._is_behind = False
        try:
            sizes = await self._inquire(first, stop)
            is_whole = stop is None or len(sizes) == stop - first
            if not is_whole or not all(0 < size <= MAX_PIECE_BYTES for size in sizes):
                raise TransferError("an answer that cannot be")
        except TransferError as error:
            return self.break_(f"what comes from piece {first} on is not known: {error}")
        finally:
            self._asking = None
        # Some may have been announced, and posted, meanwhile.
        known = {first + index: size for index, size in enumerate(sizes)}
        self._size_by_number |= {n: s for n, s in known.items() if n >= self._num_posted}
        self._advance()

    def _post(self, number: int, size: int) -> None:
        if self._group is None:
            return
        try:
            data = self._staging.incoming(size)
            work = self._staging.receive(self._group.ranks, data)
        except RuntimeError as error:
            self.break_(_first_line(error))
        else:
            self._thread.post(partial(self._wait, number, work, data))

    def _wait(self, number: int, work: Work, data: Tensor) -> None:
        try:
            landed = self._staging.landed(work, data)
        except RuntimeError as error:
            self._broke(error)  # it may still be written to: its memory goes with the group
        else:
            self._tell(partial(self._has_landed, number, landed))

    def _has_landed(self, number: int, data: Tensor) -> None:
        self._num_landed = number + 1
        claim = self._claims.pop(number, None)
        if claim is None and self.num_users and not self.is_broken:
            self._unclaimed[number] = data
            if len(self._unclaimed) > MAX_UNCLAIMED:
                self._staging.reuse(self._unclaimed.pop(min(self._unclaimed)))
        elif claim is None or claim.done():
            self._staging.reuse(data)
        else:
            claim.set_result(data)

    def _on_broken(self, failure: TransportFailed) -> None:
        if self._asking is not None:
            self._asking.cancel()
        claims, self._claims = self._claims, {}
        for claim in claims.values():
            if not claim.done():
                claim.set_exception(failure)
                claim.exception()  # a stream that ends early looks at none
        self.forget_unclaimed()


async def _waited(copied: Copied) -> None:
    """On a thread of its own; also if who waits is cancelled, for the piece is looked at till then.

    Not on the pair's: that one may wait for its peer.
    """
    waiting = asyncio.ensure_future(asyncio.to_thread(copied))
    try:
        await asyncio.shield(waiting)
    except asyncio.CancelledError:
        await asyncio.wait((waiting,))
        raise


def _nothing() -> None:
    """All that came before is over."""


def _let_go(group: Group | None) -> None:
    """This reference is the last, but for those of operations: the connection ends."""


def _first_line(error: BaseException) -> str:
    """torch puts a stack behind it."""
    return (str(error) or type(error).__name__).splitlines()[0]
