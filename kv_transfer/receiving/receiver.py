"""D's side of handoffs: blocks reserved for KV on its way, filled piece by piece, then adopted.

    reserve -> fill, fill, ... -> seal -> adopt       the request joins the batch
               abort / expire / pressure              pieces are refused; blocks go back, or to
                                                      quarantine while one is being written. If the
                                                      prompt was computed, or its KV is finite, its
                                                      full blocks stay cached, and only the rest is
                                                      missing

Only this process writes its pool. The receiver is synchronous and lives on the engine's thread,
beside the pool. The filling of a lease (`filling.py`) has a lock, so any thread may use and seal
it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from baton.core.errors import TransferAborted, TransferError, UnknownTransfer
from baton.core.ids import Epoch, TransferId
from baton.core.kv_layout import KvLayout
from baton.core.kv_pool import Holder, HolderKind, KvPool
from baton.kv_transfer.config import DEFAULTS
from baton.kv_transfer.handoff.lease import ReceiverEvent, ReceiverState
from baton.kv_transfer.handoff.messages import Outcome
from baton.kv_transfer.handoff.outcomes import EndedTransfer, RecentOutcomes
from baton.kv_transfer.handoff.reservation import KvSource, Reservation, ReservedStream, WantedKv
from baton.kv_transfer.layouts.plan import RankStream, placement, plan_streams
from baton.kv_transfer.layouts.rank_streams import rank_streams
from baton.kv_transfer.receiving.counters import ReceiverCounters
from baton.kv_transfer.receiving.filling import Filling


class AbortReason(StrEnum):
    CANCELLED = "cancelled"
    EXPIRED = "its time is up"
    PRESSURE = "blocks are needed by running requests"
    FAILED = "the transfer failed"


AbortListener = Callable[[TransferId, str], None]
MAX_LOOK_S = 1.0
"""Most seconds that count from one look at quarantined blocks to the next: those for which this
process stood still are no fault of a write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverConfig:
    max_leased_fraction: float = DEFAULTS.max_leased_fraction
    """Share of the pool that leases may hold together; 0 < x <= 1."""
    max_remembered: int = 4096
    min_stream_bytes: int = 768 << 10
    """Bytes of a prompt for each stream that it comes on, where ranks could send it on several."""

    def __post_init__(self) -> None:
        if not 0 < self.max_leased_fraction <= 1:
            raise ValueError(f"max_leased_fraction must be in (0, 1]: {self.max_leased_fraction}")


@dataclass(slots=True, eq=False)
class _Quarantined:
    """A lease that was given up, and that something still writes to."""

    filling: Filling
    seconds: float = 0.0


class Receiver:
    def __init__(
        self,
        pool: KvPool,
        epoch: Epoch,
        config: ReceiverConfig | None = None,
        *,
        may_reserve: Callable[[], bool] = lambda: True,
    ) -> None:
        """`may_reserve` is asked on the owner's thread before a lease takes blocks: chaos may say
        no."""
        self.epoch = epoch
        self.counters = ReceiverCounters()
        self.on_aborted: list[AbortListener] = []
        """Each called on the engine's thread, after the blocks were given back or quarantined."""
        self._pool = pool
        self._may_reserve = may_reserve
        self._config = config or ReceiverConfig()
        self._leases: dict[TransferId, Filling] = {}  # oldest first
        self._quarantined: dict[TransferId, _Quarantined] = {}
        self._looked_at: float | None = None
        self._recent = RecentOutcomes(self._config.max_remembered)

    @property
    def lease_ids(self) -> frozenset[TransferId]:
        """Transfers that hold blocks, for the auditor."""
        return frozenset((*self._leases, *self._quarantined))

    def lease_ages(self, now: float) -> tuple[float, ...]:
        """Seconds, of each transfer that holds blocks. For any thread."""
        return tuple(now - filling.began_at for filling in self._fillings)

    @property
    def num_leased_blocks(self) -> int:
        """Blocks that leases took from the pool; shared prefixes do not count."""
        layout = self._pool.layout
        return sum(_num_fresh(filling.reservation, layout) for filling in self._fillings)

    @property
    def longest_quarantine_s(self) -> float:
        """Seconds for which something has been writing to blocks that were given up. Until it ends
        they can be nobody else's. For any thread."""
        return max([each.seconds for each in [*self._quarantined.values()]], default=0.0)

    @property
    def _fillings(self) -> tuple[Filling, ...]:
        """The fillings of all transfers that hold blocks."""
        return (*self._leases.values(), *[each.filling for each in [*self._quarantined.values()]])

    def state(self, transfer_id: TransferId) -> ReceiverState | None:
        filling = self._leases.get(transfer_id)
        return filling.state if filling is not None else None

    def is_complete(self, transfer_id: TransferId) -> bool:
        filling = self._leases.get(transfer_id)
        return filling is not None and filling.num_missing == 0

    def reserve(
        self, wanted: WantedKv, now: float, *, reclaim: Callable[[], bool] = lambda: False
    ) -> Reservation | None:
        """Take blocks for the tokens; None, with nothing changed, if too few may be had. `reclaim`:
        whether some more come back to the pool, asked as long as it is they that are missing.

        Raises LayoutMismatch if the sources' KV cannot become KV of this pool, and ValueError for
        a transfer id that was used before.
        """
        transfer_id, layout = wanted.transfer_id, self._pool.layout
        if transfer_id in self.lease_ids or self._recent.get(transfer_id) is not None:
            raise ValueError(f"{transfer_id} was reserved before; draw a new transfer id")
        plan_streams([source.layout for source in wanted.sources], [layout])
        num_blocks = layout.num_blocks_for(len(wanted.tokens))
        max_leased = self._config.max_leased_fraction * self._pool.num_blocks
        holder = _holder(HolderKind.LEASE, transfer_id)
        num_cached = None
        if self.num_leased_blocks + num_blocks <= max_leased and self._may_reserve():
            take = partial(
                self._pool.reserve, holder, wanted.tokens, wanted.salt, tenant=wanted.tenant
            )
            num_cached = take()
            while num_cached is None and reclaim():
                num_cached = take()
        if num_cached is None:
            self.counters.num_refused += 1
            return None
        tokens = range(num_cached, len(wanted.tokens))
        first_fresh = num_cached // layout.block_size
        try:
            reservation = Reservation(
                transfer_id=transfer_id,
                receiver_epoch=self.epoch,
                streams=tuple(
                    _reserved(stream, wanted.sources, layout, tokens)
                    for stream in self._streams(wanted.sources, num_blocks - first_fresh)
                ),
                num_blocks=num_blocks,
                tokens=tokens,
                time_left_s=wanted.time_left_s,
            )
            if layout.features is not None and reservation.streams[0].wanted.features is None:
                self._pool.clear(holder, first_fresh, layout.num_planes - 1)  # none will come
            targets = self._pool.targets(holder, first_fresh)
        except BaseException:  # a device that is out of memory, say: no lease has the blocks yet
            self._pool.release(holder)
            raise
        expires_at = now + wanted.time_left_s
        self._leases[transfer_id] = Filling(reservation, targets, expires_at, self.counters, wanted)
        self.counters.num_reserved += 1
        return reservation

    def _streams(self, sources: tuple[KvSource, ...], num_blocks: int) -> tuple[RankStream, ...]:
        """By ranks, where so many blocks are worth it."""
        layout = self._pool.layout
        return rank_streams(
            [source.layout for source in sources],
            [source.head_runs for source in sources],
            layout,
            self._pool.head_runs,
            max_streams=num_blocks * layout.block_bytes // self._config.min_stream_bytes,
        )

    def filling(self, transfer_id: TransferId) -> Filling:
        """The open lease's filling; for any thread. Raises UnknownTransfer or TransferAborted."""
        filling = self._leases.get(transfer_id)
        if filling is not None:
            return filling
        ended = self._recent.get(transfer_id)
        if ended is not None and ended.outcome is Outcome.ABORTED:
            raise TransferAborted(f"{transfer_id} was given up by the receiver: {ended.reason}")
        raise UnknownTransfer(f"the receiver holds nothing for {transfer_id}")

    def seal(self, transfer_id: TransferId) -> None:
        """Every piece is there and verified. May be repeated, on any thread, one at a time.

        Raises UnknownTransfer, TransferAborted, or TransferError if something is missing.
        """
        filling = self.filling(transfer_id)
        if filling.num_missing:
            raise TransferError(f"{transfer_id} lacks {filling.num_missing} (plane, block)s")
        was_sealed = filling.state is ReceiverState.SEALED
        try:
            filling.happen(ReceiverEvent.SEAL)
        except ValueError as error:
            if filling.state is ReceiverState.ABORTED:  # on the owner's thread, at this moment
                raise TransferAborted(f"{transfer_id} was given up by the receiver") from error
            raise
        self.counters.num_sealed += not was_sealed

    def adopt(self, transfer_id: TransferId) -> Holder:
        """End a sealed lease; the caller hands the returned holder's blocks over to a request.

        Call it and `Engine.adopt` in one go, with no engine step between. Raises UnknownTransfer
        or TransferAborted; ValueError for a lease that is not sealed.
        """
        filling = self.filling(transfer_id)
        filling.happen(ReceiverEvent.ADOPT)
        del self._leases[transfer_id]
        self._remember(filling, Outcome.SEALED)
        self.counters.num_adopted += 1
        return _holder(HolderKind.LEASE, transfer_id)

    def abort(self, transfer_id: TransferId, reason: str) -> None:
        """Give the blocks back, or quarantine them while one of them is being written.

        The full ones before the first that is missing stay in the prefix cache, if the source had
        computed them all, or has failed and what it had computed is finite. Changes nothing for a
        lease that is over or was adopted.
        """
        filling = self._leases.pop(transfer_id, None)
        if filling is None:
            return
        lease = _holder(HolderKind.LEASE, transfer_id)
        is_released = filling.happen(ReceiverEvent.ABORT, reason).is_released
        kept = self._keep(lease, filling, has_failed=reason == AbortReason.FAILED)
        if is_released:
            self._pool.release(lease)
        else:
            self._pool.hand_over(lease, _holder(HolderKind.QUARANTINE, transfer_id))
            self._quarantined[transfer_id] = _Quarantined(filling)
        self._remember(filling, Outcome.ABORTED, reason, kept)
        self.counters.num_aborted[reason] += 1
        for listener in self.on_aborted:
            listener(transfer_id, reason)

    def kept(self, transfer_id: TransferId) -> range:
        """Tokens that came with a transfer that was given up lately, and are cached."""
        ended = self._recent.get(transfer_id)
        return ended.kept if ended is not None else range(0)

    def end_quarantine(self) -> None:
        """Give back the blocks of aborted leases that nothing writes to any more."""
        for transfer_id, quarantined in list(self._quarantined.items()):
            if quarantined.filling.is_released:
                self._pool.release(_holder(HolderKind.QUARANTINE, transfer_id))
                del self._quarantined[transfer_id]

    def abort_youngest_reserved(self, tenant: str | None = None) -> bool:
        """Under memory pressure: give up the youngest lease nothing has arrived for, if any.

        Of `tenant` alone, if one is given.
        """
        for filling in reversed(self._leases.values()):
            is_candidate = tenant is None or filling.wanted.tenant == tenant
            if is_candidate and filling.state is ReceiverState.RESERVED:
                self.abort(filling.transfer_id, AbortReason.PRESSURE)
                return True
        return False

    def expire(self, now: float) -> list[TransferId]:
        """Abort what is past its time. The backstop, for senders that went silent."""
        expired = [
            transfer_id
            for transfer_id, filling in self._leases.items()
            if filling.expires_at <= now
        ]
        for transfer_id in expired:
            self.abort(transfer_id, AbortReason.EXPIRED)
        self.end_quarantine()
        elapsed_s = 0.0 if self._looked_at is None else min(now - self._looked_at, MAX_LOOK_S)
        self._looked_at = now
        for quarantined in self._quarantined.values():
            quarantined.seconds += elapsed_s
        return expired

    def _keep(self, lease: Holder, filling: Filling, *, has_failed: bool) -> range:
        """Name the full blocks that have come: what is there is not written again.

        Of a prompt that was not computed to its end nobody has said that its outputs are finite.
        Its KV is looked at if the request goes on without its source: that is worth the time, and
        what is finite is as good as if it had been computed here.
        """
        size, wanted = self._pool.layout.block_size, filling.wanted
        num_cached, num_full = filling.reservation.num_cached, filling.num_verified // size
        known = wanted.tokens[: num_full * size]
        if len(known) <= num_cached or not self._pool.is_prefix_caching:
            return range(0)
        if not filling.is_computed and not (
            has_failed and self._pool.are_finite(lease, num_cached // size, num_full)
        ):
            return range(0)
        self._pool.commit(lease, known, len(known), wanted.salt)
        kept = range(num_cached, max(num_cached, self._pool.num_cached(known, wanted.salt)))
        self.counters.num_kept_tokens += len(kept)
        return kept

    def _remember(
        self, filling: Filling, outcome: Outcome, reason: str = "", kept: range = range(0)
    ) -> None:
        source = filling.reservation.streams[0].source
        self._recent.record(filling.transfer_id, EndedTransfer(source.epoch, outcome, reason, kept))


def _holder(kind: HolderKind, transfer_id: TransferId) -> Holder:
    return Holder(kind, transfer_id)


def _num_fresh(reservation: Reservation, layout: KvLayout) -> int:
    return reservation.num_blocks - reservation.tokens.start // layout.block_size


def _reserved(
    stream: RankStream, sources: tuple[KvSource, ...], layout: KvLayout, tokens: range
) -> ReservedStream:
    source = sources[stream.sender]
    placed = placement(source.layout, stream, layout)
    return ReservedStream(source=source, placement=placed, blocks=placed.blocks(tokens))
