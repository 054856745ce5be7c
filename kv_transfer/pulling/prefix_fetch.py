"""Brings KV that is cached elsewhere into a pool: from a peer or a tier, by a lease like any other.

    ask the source --> reserve --> fetch, verify --> name the full blocks --> held --> let go
          |               `------- anything wrong ------'                        |
          |                            `--> what has arrived stays cached        `--> cached blocks
          `--> nothing is fetched: the caller computes the prompt

While the blocks are held they cannot be evicted, so a request that joins the engine meanwhile finds
them in the prefix cache. A caller may also adopt the lease itself, with its last, partly filled
block. A failure here is never an error of the request: it becomes a note.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Protocol

from baton.core.clock import Clock, monotonic
from baton.core.errors import BatonError, TransferAborted
from baton.core.ids import Epoch, TransferId, new_transfer_id
from baton.core.kv_layout import KvLayout
from baton.core.kv_pool import Holder, HolderKind, KvPool
from baton.core.owner_thread import OwnerThread
from baton.core.wording import count_of
from baton.kv_transfer.handoff.lease import ReceiverState
from baton.kv_transfer.handoff.reservation import KvSource, Reservation, WantedKv
from baton.kv_transfer.receiving.fetch import Fetcher, TransferReport
from baton.kv_transfer.receiving.listener import NOBODY, Listener
from baton.kv_transfer.receiving.receiver import AbortReason, Receiver

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixOffer:
    """What a source will send when its transfer is opened."""

    sender_epoch: Epoch
    layout: KvLayout
    """The sender's."""
    num_tokens: int
    """Tokens offered, from the first one asked for on."""
    head_runs: tuple[range, ...] = ()
    """See `KvSource.head_runs`."""
    address: str
    """Source address as the fetcher's transport understands it."""
    listener: Listener = NOBODY
    """Notified as the transfer advances."""


class PrefixSource(Protocol):
    """A source that may hold KV of the beginning of a sequence."""

    @property
    def name(self) -> str:
        """The source's name in notes: a replica's id, or a tier's name."""

    def offer(
        self, transfer_id: TransferId, tokens: Sequence[int], salt: bytes, num_held: int
    ) -> AbstractAsyncContextManager[PrefixOffer | None]:
        """Ask for more than the first `num_held` tokens; None: it has no more.

        The offer stands until the context is left, which tells the source. Raises BatonError.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedPrefix:
    """What is there now that was not before."""

    transfer_id: TransferId | None = None
    """The sealed lease, which may be adopted. None: nothing was brought in."""
    num_held: int = 0
    """Tokens that this pool had already."""
    num_tokens: int = 0
    """Leading tokens that it has now; fewer than asked for, as a rule in full blocks."""
    report: TransferReport | None = None
    note: str = ""
    """What went wrong, if anything did, also if all was well in the end."""

    @property
    def num_new(self) -> int:
        return self.num_tokens - self.num_held

    def then(self, later: FetchedPrefix) -> FetchedPrefix:
        """Both, of the same tokens, one after the other."""
        num_held = self.num_held if self.num_new else later.num_held
        return FetchedPrefix(
            transfer_id=later.transfer_id or self.transfer_id,
            num_held=num_held,
            num_tokens=max(self.num_tokens, later.num_tokens, num_held),
            report=later.report or self.report,
            note="; ".join(note for note in (self.note, later.note) if note),
        )


@dataclass(frozen=True, slots=True)
class _Wanted:
    tokens: Sequence[int]
    salt: bytes
    tenant: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixFetcher:
    """Belongs to one event loop; `fetcher` knows the transport to all sources it is used with."""

    pool: KvPool
    owner: OwnerThread
    receiver: Receiver
    fetcher: Fetcher
    timeout_s: float
    clock: Clock = monotonic
    is_full: Callable[[], bool] = lambda: False
    """Asked on the owner's thread: whether there is no room but for what is waiting already."""

    @asynccontextmanager
    async def bring_in(
        self, tokens: Sequence[int], salt: bytes, source: PrefixSource, *, tenant: str = ""
    ) -> AsyncIterator[FetchedPrefix]:
        """Within the context, whatever KV of `tokens` the source had is in this pool, and held.

        On the account of `tenant`.

        The last token of a prompt is always computed: do not ask for it, nor for a block that is
        not full, unless the lease is to be adopted.
        """
        async with AsyncExitStack() as stack:
            transfer_id = new_transfer_id()
            try:
                wanted = _Wanted(tokens, salt, tenant)
                brought_in = await self._bring_in(transfer_id, wanted, source, stack)
            except BatonError as error:
                brought_in = await self._kept(transfer_id, source, error)
                log.warning("%s", brought_in.note)
            yield brought_in

    async def _kept(
        self, transfer_id: TransferId, source: PrefixSource, error: BatonError
    ) -> FetchedPrefix:
        """What had come when it failed: in the prefix cache, but not held."""
        kept = range(0)
        with suppress(BatonError):  # nothing is kept of an engine that has died
            kept = await self.owner.call(lambda: self.receiver.kept(transfer_id))
        what = f"no more than {count_of(len(kept), 'token')}" if kept else "nothing"
        note = f"{what} brought in from {source.name}: {error}"
        return FetchedPrefix(num_held=kept.start, num_tokens=kept.stop, note=note)

    async def _bring_in(
        self,
        transfer_id: TransferId,
        wanted: _Wanted,
        source: PrefixSource,
        stack: AsyncExitStack,
    ) -> FetchedPrefix:
        tokens, salt = wanted.tokens, wanted.salt
        num_held = await self.owner.call(lambda: self.pool.num_cached(tokens, salt))
        nothing = FetchedPrefix(num_held=num_held, num_tokens=num_held)
        if num_held == len(tokens):
            return nothing
        async with source.offer(transfer_id, tokens, salt, num_held) as offer:
            if offer is None:
                return nothing
            if not num_held < offer.num_tokens <= len(tokens):
                raise TransferAborted(
                    f"{offer.num_tokens} tokens were offered where more than {num_held} and "
                    f"at most {len(tokens)} were asked for"
                )
            known = tokens[: offer.num_tokens]
            wanted = replace(wanted, tokens=known)
            # Before the lease is taken, so that it is let go whatever happens next.
            stack.callback(self._let_go, transfer_id)
            reservation = await self.owner.call(lambda: self._reserve(transfer_id, offer, wanted))
            if reservation is None:
                raise TransferAborted("no blocks left for it")
            report = await self.fetcher.fetch(reservation, offer.listener)
        await self.owner.call(lambda: self._commit(transfer_id, known, salt))
        return FetchedPrefix(
            transfer_id=transfer_id,
            num_held=num_held,
            num_tokens=len(known),
            report=report,
            note="; ".join(report.notes),
        )

    # On the owner's thread.

    def _reserve(
        self, transfer_id: TransferId, offer: PrefixOffer, wanted: _Wanted
    ) -> Reservation | None:
        if self.is_full():
            return None
        source = KvSource(
            epoch=offer.sender_epoch,
            address=offer.address,
            layout=offer.layout,
            head_runs=offer.head_runs,
        )
        wanted_kv = WantedKv(
            transfer_id=transfer_id,
            sources=(source,),
            tokens=wanted.tokens,
            salt=wanted.salt,
            tenant=wanted.tenant,
            time_left_s=self.timeout_s,
            is_computed=True,
        )
        return self.receiver.reserve(wanted_kv, self.clock())

    def _commit(self, transfer_id: TransferId, tokens: Sequence[int], salt: bytes) -> None:
        """The lease is sealed: what its full blocks hold has a name from now on."""
        if self.receiver.state(transfer_id) is None:
            raise TransferAborted(f"{transfer_id} was given up before its blocks had names")
        self.pool.commit(Holder(HolderKind.LEASE, transfer_id), tokens, len(tokens), salt)

    def _let_go(self, transfer_id: TransferId) -> None:
        """Nothing happens to a lease that was adopted, or is over."""

        def release() -> None:
            if self.receiver.state(transfer_id) is ReceiverState.SEALED:
                self.pool.release(self.receiver.adopt(transfer_id))
            else:
                self.receiver.abort(transfer_id, AbortReason.CANCELLED)

        self.owner.post(release)
