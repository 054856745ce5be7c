"""The lending end of a pull: lends a peer the KV that this pool has cached of a sequence of tokens.

    pull --> hold what is cached --> offer, published as a whole --> settled, expired or cut
                  `--> no more than the peer has: nothing is lent

A lease of their own holds the blocks until the transfer is over, like those of a handoff. A loan
takes nothing from the pool that could not have been evicted. Under memory pressure loans are called
back before a request is preempted, youngest first: first a loan that nobody is reading, whose
blocks come back at once; else one that is being read, and no other until its blocks have come back.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from functools import partial
from typing import NamedTuple, Protocol

from baton.core.clock import Clock, monotonic
from baton.core.errors import Overloaded, TransferError
from baton.core.ids import TransferId
from baton.core.kv_pool import Holder, HolderKind, KvPool
from baton.core.messages import PullOffered, PullRequest
from baton.core.owner_thread import OwnerThread
from baton.kv_transfer.layouts.plan import check_layouts
from baton.kv_transfer.sending.sender import Sender

MAX_LENT_FRACTION = 0.5
"""Share of the pool that loans may hold together."""

RECALLED = "its blocks are needed by running requests"

Hold = Callable[[Holder], int]
"""Called on the owner's thread: lets the holder reference blocks, returns the tokens in them."""


class BringIn(Protocol):
    def __call__(
        self, tokens: Sequence[int], salt: bytes, *, tenant: str
    ) -> AbstractAsyncContextManager[object]:
        """Within the context, what there is of the tokens is in the pool's cache, and on the
        tenant's account."""


class _Loan(NamedTuple):
    num_recallable: int
    """Blocks of it that may be called back; 0 where none may."""
    tenants: frozenset[str]
    """Tenants on whose accounts its blocks are, whichever replica borrows them."""

    def may_help(self, tenant: str | None) -> bool:
        """Whether its blocks may be called back, and would be of use to that tenant, or to any."""
        return bool(self.num_recallable) and (tenant is None or tenant in self.tenants)


class Lender:
    """Belongs to the event loop that serves peers; `ended` and `call_back` to the owner's thread.

    The owner of the sender passes what its `on_ended` says on to `ended`.
    """

    def __init__(
        self,
        pool: KvPool,
        sender: Sender,
        owner: OwnerThread,
        *,
        clock: Clock = monotonic,
        bring_in: BringIn | None = None,
    ) -> None:
        """`bring_in` gets back, before it is lent, what has left the pool and is kept elsewhere."""
        self.num_lent_tokens = 0
        """Offered so far."""
        self._pool = pool
        self._sender = sender
        self._owner = owner
        self._clock = clock
        self.is_idle = asyncio.Event()
        """Set while nothing is lent."""
        self.is_idle.set()
        self._bring_in = bring_in
        self._loop: asyncio.AbstractEventLoop | None = None
        self._has_ended: dict[TransferId, asyncio.Event] = {}
        self._loans: dict[TransferId, _Loan] = {}  # oldest first
        self._returning: dict[TransferId, _Loan] = {}
        """Called back, or over otherwise, while blocks of it were being read: perhaps some are."""

    @property
    def num_open(self) -> int:
        return len(self._has_ended)

    async def lend(
        self, request: PullRequest, hold: Hold | None = None
    ) -> AsyncGenerator[PullOffered, None]:
        """Yield the offer, then end when the transfer is over; end at once if there is no more.

        `hold` says which blocks, instead of those that are cached; they are never called back.
        Closing the iterator aborts the transfer. Raises LayoutMismatch, TransferError, Overloaded.
        """
        check_layouts(self._pool.layout, request.layout)
        transfer_id = request.transfer_id
        if transfer_id in self._has_ended:
            raise TransferError(f"{transfer_id} was asked for before; draw a new transfer id")
        self._loop = asyncio.get_running_loop()
        has_ended = self._has_ended[transfer_id] = asyncio.Event()
        self.is_idle.clear()
        try:
            async with self._beyond_the_pool(request, hold):
                num_tokens = await self._owner.call(partial(self._offer, request, hold))
            if num_tokens <= request.num_held:
                return
            self.num_lent_tokens += num_tokens - request.num_held
            yield PullOffered(
                transfer_id=transfer_id,
                sender_epoch=self._sender.epoch,
                layout=self._pool.layout,
                num_tokens=num_tokens,
                head_runs=tuple(self._pool.head_runs),
            )
            await has_ended.wait()
        finally:
            del self._has_ended[transfer_id]
            if not self._has_ended:
                self.is_idle.set()
            self._owner.post(partial(self._end, transfer_id, "the call of its borrower ended"))

    def _beyond_the_pool(
        self, request: PullRequest, hold: Hold | None
    ) -> AbstractAsyncContextManager[object]:
        if hold is not None or self._bring_in is None:
            return nullcontext()
        return self._bring_in(request.tokens, request.salt, tenant=request.tenant)

    # On the owner's thread.

    def ended(self, transfer_id: TransferId) -> None:
        """A transfer of the sender is over; nothing happens if it is no loan."""
        loan = self._loans.pop(transfer_id, None)
        if loan is not None and loan.num_recallable and self._sender.is_read(transfer_id):
            self._returning[transfer_id] = loan
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended, and its calls with it
                self._loop.call_soon_threadsafe(self._wake, transfer_id)

    def call_back(self, tenant: str | None = None) -> bool:
        """Under memory pressure: end a loan of cached blocks; whether they are the pool's again.

        One of blocks on `tenant`'s account alone, if one is given.
        """
        found = [
            transfer_id
            for transfer_id, loan in reversed(self._loans.items())
            if loan.may_help(tenant)
        ]
        idle = (transfer_id for transfer_id in found if not self._sender.is_read(transfer_id))
        youngest = next(idle, None)
        if youngest is not None:
            self._end(youngest, RECALLED)
            return True
        if found and not any(loan.may_help(tenant) for loan in self._still_returning()):
            self._end(found[0], RECALLED)
        return False

    def _still_returning(self) -> Collection[_Loan]:
        """Loans that are over, and some of whose blocks are being read."""
        is_read = self._sender.is_read
        self._returning = {of: loan for of, loan in self._returning.items() if is_read(of)}
        return self._returning.values()

    def _offer(self, request: PullRequest, hold: Hold | None) -> int:
        lease = Holder(HolderKind.LEASE, request.transfer_id)
        # Nor may it be a transfer that comes here: its blocks would be taken for this one's.
        if request.transfer_id in self._sender.lease_ids or self._pool.table(lease):
            raise TransferError(f"{request.transfer_id} exists; draw a new transfer id")
        num_tokens = hold(lease) if hold is not None else self._hold_cached(lease, request)
        try:
            if num_tokens <= request.num_held:
                self._pool.release(lease)
                return num_tokens
            self._sender.offer(
                request.transfer_id,
                request.receiver_epoch,
                source=lease,
                num_tokens=num_tokens,
                time_left_s=request.time_left_ms / 1e3,
                now=self._clock(),
            )
        except BaseException:
            self._pool.release(lease)
            raise
        num_recallable = len(self._pool.table(lease)) if hold is None else 0
        self._loans[request.transfer_id] = _Loan(num_recallable, self._pool.tenants(lease))
        self._sender.publish(request.transfer_id, num_tokens)
        self._sender.finish(request.transfer_id)
        return num_tokens

    def _hold_cached(self, lease: Holder, request: PullRequest) -> int:
        num_tokens = self._pool.hold_cached(lease, request.tokens, request.salt)
        lent = (*self._loans.values(), *self._still_returning())
        num_lent = sum(loan.num_recallable for loan in lent)
        num_lent += len(self._pool.table(lease))
        if num_lent > MAX_LENT_FRACTION * self._pool.num_blocks:
            self._pool.release(lease)
            raise Overloaded(
                f"{num_lent} blocks would be lent to peers, of {self._pool.num_blocks}"
            )
        return num_tokens

    def _end(self, transfer_id: TransferId, reason: str) -> None:
        """Only a loan of ours, and only one that is not over."""
        if transfer_id in self._loans:
            self._sender.abort(transfer_id, reason)

    # On the event loop.

    def _wake(self, transfer_id: TransferId) -> None:
        has_ended = self._has_ended.get(transfer_id)
        if has_ended is not None:
            has_ended.set()
