"""P's end of a pair: lent pieces wait in line until D grants them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from torch import Tensor
from torch.distributed import Work

from baton.core.errors import TransportFailed
from baton.kv_transfer.handoff.transport import LentPiece
from baton.kv_transfer.transport.collective.joint import Group
from baton.kv_transfer.transport.collective.pair import Pair, first_line
from baton.kv_transfer.transport.collective.staging import Copied, Staging
from baton.kv_transfer.transport.lent import Loan, Loans

Wanted: TypeAlias = tuple[int, bytes]
"""Number and secret of a piece."""


class SendingPair(Pair):
    def __init__(self, name: str, key: str, join: Callable[[], Group], staging: Staging) -> None:
        self.key = key
        """Names the pair to D; the same two may become another."""
        self._loans = Loans()
        self._num_granted = 0
        self._turn = asyncio.Lock()
        super().__init__(name, join, staging)

    @property
    def is_in_use(self) -> bool:
        return len(self._loans) > 0 or self._turn.locked()

    def lend(self, piece: LentPiece) -> tuple[Loan, LentPiece]:
        """Put it in line: what D grants it by, and the piece as its lender is to give it back.

        Raises TransportFailed.
        """
        self.check()
        return self._loans.lend(piece)

    async def post(self, num_before: int, granted: Sequence[Wanted]) -> list[int]:
        """Post these, in this order; return the numbers of those that were still in line.

        `num_before` were granted before. Each is copied, and given back, by the time that this
        returns. Raises TransportFailed.
        """
        async with self._turn:
            await self.joined()
            if num_before != self._num_granted:
                self.break_(f"{self._num_granted} pieces were granted, and not {num_before}")
                self.check()
            self._num_granted += len(granted)
            claimed: list[Loan] = []
            copied: Copied | None = None
            try:
                for number, secret in granted:
                    if (loan := self._loans.claim(number, secret)) is not None:
                        claimed.append(loan)
                        copied = self._post(loan.piece) or copied
                        await asyncio.sleep(0)  # others are served between two copies
            except BaseException as error:
                self.break_(first_line(error))  # D will not learn which were posted
                if isinstance(error, RuntimeError):
                    raise TransportFailed(str(self._failure)) from error
                raise
            finally:
                await self._end(claimed, copied)
            return [loan.number for loan in claimed]

    def _post(self, piece: LentPiece) -> Copied | None:
        self.check()  # others were served meanwhile
        assert self._group is not None, "it has joined and is not broken"
        data, copied = self._staging.outgoing(piece)
        work = self._staging.send(self._group.ranks, data)
        self._thread.post(partial(self._wait, work, data))
        return copied

    async def _end(self, loans: Sequence[Loan], copied: Copied | None) -> None:
        """Give them back, as soon as the last copy is made: copies are made in order."""
        try:
            if copied is not None:
                await _waited(copied)
        except RuntimeError as error:
            self.break_(first_line(error))
            raise TransportFailed(str(self._failure)) from error
        finally:
            for loan in loans:
                self._loans.sent(loan)
                loan.piece.give_back()

    def _wait(self, work: Work, data: Tensor) -> None:
        try:
            self._staging.sent(work)
        except RuntimeError as error:
            self._broke(error)  # the copy's memory may still be read: it goes with the group
        else:
            self._staging.reuse(data)

    def _on_broken(self, failure: TransportFailed) -> None:
        """Nobody waits here but for the joining; what is in line goes back with its stream."""


async def _waited(copied: Copied) -> None:
    """Runs on a thread of its own, also if the waiter is cancelled: the piece is read until then.

    Not on the pair's: that one may wait for its peer.
    """
    waiting = asyncio.ensure_future(asyncio.to_thread(copied))
    try:
        await asyncio.shield(waiting)
    except asyncio.CancelledError:
        await asyncio.wait((waiting,))
        raise
