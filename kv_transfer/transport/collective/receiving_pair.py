"""D's end of a pair: grants what was announced, as far as it has room to receive it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from torch import Tensor
from torch.distributed import Work

from baton.core.errors import TransferCut, TransferError, TransportFailed
from baton.kv_transfer.transport.collective.joint import PATIENCE_S, Group
from baton.kv_transfer.transport.collective.pair import Pair, first_line
from baton.kv_transfer.transport.collective.sending_pair import Wanted
from baton.kv_transfer.transport.collective.staging import Staging

MAX_PIECE_BYTES = 1 << 30
MAX_GRANTED_BYTES = 32 << 20
"""Bytes that P was promised to be received, and that have yet to land; one piece may be more."""
MAX_GRANTED = 128
"""The same of pieces."""

Grant: TypeAlias = Callable[[int, Sequence[Wanted]], Awaitable[Sequence[int]]]
"""Have P post these, in this order, behind so many; the numbers of those that it has posted.

Raises TransferError.
"""


@dataclass(frozen=True, slots=True, eq=False)
class _Piece:
    number: int
    secret: bytes
    size: int
    """Size in bytes."""
    claim: asyncio.Future[Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class _Granted:
    """The memory is there before it is granted: to allocate a device's may wait for the device,
    which may be sending, the other way, to a peer in the same situation."""

    piece: _Piece
    data: Tensor


class ReceivingPair(Pair):
    def __init__(
        self, name: str, join: Callable[[], Group], staging: Staging, grant: Grant
    ) -> None:
        self._grant = grant
        self._granting: asyncio.Task[None] | None = None
        self._line: deque[_Piece] = deque()
        """Announced, and yet to be granted."""
        self._granted: set[_Granted] = set()
        """Granted, and yet to land."""
        self._num_granted = 0
        super().__init__(name, join, staging)

    @property
    def num_granted(self) -> int:
        """Pieces that are granted, and have yet to land."""
        return len(self._granted)

    @property
    def num_bytes_granted(self) -> int:
        return sum(granted.piece.size for granted in self._granted)

    def expect(self, number: int, secret: bytes, size: int) -> asyncio.Future[Tensor]:
        """The bytes of an announced piece, in host memory; give it to `drop` in any case.

        Raises TransportFailed by itself or through the future, which may also raise TransferCut.
        """
        self.check()
        if not 0 < size <= MAX_PIECE_BYTES:
            self.break_(f"an impossible piece was announced: {number=} {size=}")
            self.check()
        claim: asyncio.Future[Tensor] = self._loop.create_future()
        self._line.append(_Piece(number, secret, size, claim))
        self._advance()
        return claim

    def drop(self, claim: asyncio.Future[Tensor]) -> None:
        """The bytes are not looked at any more, or will not be."""
        if not claim.cancel() and not claim.exception():
            self._staging.reuse(claim.result())

    @property
    def _may_grant(self) -> bool:
        """Once half of what was granted has landed: each time costs both sides."""
        return (
            len(self._granted) <= MAX_GRANTED // 2
            and self.num_bytes_granted <= MAX_GRANTED_BYTES // 2
        )

    def _advance(self) -> None:
        if self._line and self._may_grant and self._granting is None and not self.is_broken:
            self._granting = self._loop.create_task(self._grant_some())

    async def _grant_some(self) -> None:
        why = ""
        try:
            while self._may_grant and (granted := self._next()):
                wanted = [(each.piece.number, each.piece.secret) for each in granted]
                async with asyncio.timeout(PATIENCE_S):
                    posted = await self._grant(self._num_granted, wanted)
                self._num_granted += len(granted)
                self._receive(granted, posted)
        except TimeoutError:
            why = "no answer"
        except (TransferError, RuntimeError) as error:  # RuntimeError: no memory, say
            why = first_line(error)
        finally:
            self._granting = None
        if why:
            self.break_(f"what it was granted did not come: {why}")

    def _next(self) -> list[_Granted]:
        """The next pieces, as far as there is room for them, without those that were given up."""
        granted: list[_Granted] = []
        num_bytes = self.num_bytes_granted
        while self._line and len(self._granted) < MAX_GRANTED:
            piece = self._line[0]
            num_bytes += 0 if piece.claim.done() else piece.size
            if self._granted and num_bytes > MAX_GRANTED_BYTES:
                break
            self._line.popleft()
            if not piece.claim.done():
                granted.append(_Granted(piece, self._staging.incoming(piece.size)))
                self._granted.add(granted[-1])
        return granted

    def _receive(self, granted: Sequence[_Granted], posted: Sequence[int]) -> None:
        """Post what P says it has sent, and give up the rest.

        Raises TransferError if it cannot have sent just that.
        """
        in_order = iter(granted)
        if not all(any(each.piece.number == n for each in in_order) for n in posted):
            raise TransferError("an answer that cannot be")
        sent = set(posted)
        for each in granted:
            piece = each.piece
            if piece.number in sent:
                self._post(each)
                continue
            self._granted.discard(each)
            self._staging.reuse(each.data)
            if not piece.claim.done():
                gone = f"{self.name}: piece {piece.number} was taken back"
                piece.claim.set_exception(TransferCut(gone))
                piece.claim.exception()  # a stream that ends early looks at none

    def _post(self, granted: _Granted) -> None:
        if self._group is not None:
            work = self._staging.receive(self._group.ranks, granted.data)
            self._thread.post(partial(self._wait, granted, work))

    def _wait(self, granted: _Granted, work: Work) -> None:
        try:
            landed = self._staging.landed(work, granted.data)
        except RuntimeError as error:
            self._broke(error)  # it may still be written to: its memory goes with the group
        else:
            self._tell(partial(self._has_landed, granted, landed))

    def _has_landed(self, granted: _Granted, data: Tensor) -> None:
        self._granted.discard(granted)
        if granted.piece.claim.done():
            self._staging.reuse(data)
        else:
            granted.piece.claim.set_result(data)
        self._advance()

    def _on_broken(self, failure: TransportFailed) -> None:
        if self._granting is not None:
            self._granting.cancel()
        for piece in (*self._line, *(granted.piece for granted in self._granted)):
            if not piece.claim.done():
                piece.claim.set_exception(failure)
                piece.claim.exception()  # a stream that ends early looks at none
        self._line.clear()
        self._granted.clear()
