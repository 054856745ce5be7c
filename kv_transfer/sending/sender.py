"""P's side of handoffs: which blocks are kept for D, since when, and until when.

    offer -> publish, publish, ... -> finish          the engine computes, layer by layer
               begin_read ... end_read                the outbox lends pieces, off this thread
                         settle / abort / expire      D is done, or one side gave up

    computed       of each plane, how many blocks are computed. Nothing is written to them in that
                   plane any more, though later layers of the same blocks may yet be computed
    published      how many of these D may read: all of them, except those that are withheld until
                   the first token has left
    references     held as LEASE from the first layer's computation on; as QUARANTINE when the
                   transfer is over but a read is still in flight; given up by whichever of the two
                   comes last

Synchronous and single-threaded: it lives on the engine's thread, beside the pool. `publish`,
`withhold`, `open` and `begin_read` may run in the middle of a step: they only add references and
look.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from baton.core.errors import StaleEpoch, TransferAborted, TransferError, UnknownTransfer
from baton.core.ids import Epoch, TransferId
from baton.core.kv_layout import KvLayout
from baton.core.kv_pool import Holder, HolderKind, KvPool
from baton.kv_transfer.config import DEFAULTS
from baton.kv_transfer.handoff.lease import (
    Computation,
    SenderEvent,
    Transfer,
    next_sender_state,
)
from baton.kv_transfer.handoff.messages import BlockRange, OpenTransfer, Outcome, SettleTransfer
from baton.kv_transfer.handoff.outcomes import EndedTransfer, RecentOutcomes
from baton.kv_transfer.layouts.plan import check_features, check_layouts
from baton.kv_transfer.sending.held_share import HeldShare
from baton.kv_transfer.sending.offer import Offer
from baton.kv_transfer.sending.pieces import BlockRead, HeadRange, head_ranges
from baton.kv_transfer.sending.stream import SendingStream, progress_of, together


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderConfig:
    max_blocks_per_read: int = 8192
    """Blocks of all planes together: bounds what one stream begins at once."""
    max_remembered: int = 4096
    """Transfers that are over but whose outcome a peer may still ask for."""
    max_time_left_s: float = DEFAULTS.prefill_timeout_s
    """However long a peer would like blocks to be kept for it."""
    max_held_fraction: float = DEFAULTS.max_held_fraction
    """Share of the pool that computed prompts may hold together; see `HeldShare`."""


@dataclass(slots=True, kw_only=True)
class SenderCounters:
    num_offered: int = 0
    num_sealed: int = 0
    num_aborted: int = 0
    num_expired: int = 0
    """Aborted transfers whose time was up."""


class Sender:
    def __init__(
        self,
        pool: KvPool,
        epoch: Epoch,
        config: SenderConfig | None = None,
        *,
        on_ended: Callable[[TransferId], None] = lambda _: None,
        may_keep: Callable[[], bool] = lambda: True,
    ) -> None:
        """`on_ended` is called on the engine's thread, once a transfer: sealed or aborted.

        `may_keep` is asked whenever blocks have been lent for reading: chaos may say that the lease
        ends at this moment.
        """
        self.epoch = epoch
        self.counters = SenderCounters()
        self._pool = pool
        self._on_ended = on_ended
        self._may_keep = may_keep
        self._config = config or SenderConfig()
        self.held = HeldShare(int(self._config.max_held_fraction * pool.num_blocks))
        self._offers: dict[TransferId, Offer] = {}
        self._recent = RecentOutcomes(self._config.max_remembered)
        self._waiting: defaultdict[TransferId, list[Callable[[], None]]] = defaultdict(list)

    @property
    def lease_ids(self) -> frozenset[TransferId]:
        """Transfers that may hold references, for the auditor."""
        return frozenset(self._offers)

    def lease_ages(self, now: float) -> tuple[float, ...]:
        """Seconds, of each transfer that may hold references. For any thread."""
        return tuple(now - offer.offered_at for offer in tuple(self._offers.values()))

    def when_changed(self, transfer_id: TransferId, function: Callable[[], None]) -> None:
        """Call `function` once: when more blocks are published, or the transfer is over."""
        self._waiting[transfer_id].append(function)

    @property
    def num_open(self) -> int:
        return sum(not offer.state.is_settled for offer in self._offers.values())

    def offer(
        self,
        transfer_id: TransferId,
        receiver_epoch: Epoch,
        *,
        source: Holder,
        num_tokens: int,
        time_left_s: float,
        now: float,
    ) -> None:
        """Promise D the KV of the first `num_tokens` tokens of `source`, once computed.

        `time_left_s` is the peer's wish, which may be anything. Raises TransferError if this
        transfer was offered before.
        """
        lease = Holder(HolderKind.LEASE, transfer_id)
        is_taken = source != lease and bool(self._pool.table(lease))  # KV that comes here took it
        if transfer_id in self._offers or self._recent.get(transfer_id) is not None or is_taken:
            raise TransferError(f"{transfer_id} was offered before; draw a new transfer id")
        self._offers[transfer_id] = Offer(
            transfer_id=transfer_id,
            receiver_epoch=receiver_epoch,
            source=source,
            num_tokens=num_tokens,
            num_blocks=self._pool.layout.num_blocks_for(num_tokens),
            offered_at=now,
            expires_at=now + min(max(0.0, time_left_s), self._config.max_time_left_s),
            computed=[0] * self._pool.layout.num_planes,
            published=[0] * self._pool.layout.num_planes,
        )
        self.counters.num_offered += 1

    def take(self, transfer_id: TransferId, num_blocks: int, tenant: str = "") -> None:
        """The source's turn has come, and it takes so many blocks, which count for `tenant`. See
        `HeldShare.take`."""
        offer = self._offers.get(transfer_id)
        if offer is not None and not offer.state.is_settled:
            self.held.take(transfer_id, num_blocks, tenant)

    def publish(
        self, transfer_id: TransferId, num_computed: int, layers: Sequence[int] | None = None
    ) -> None:
        """The source's first `num_computed` tokens are computed: D may read the full blocks.

        Of consecutive `layers`, or of all. The last, partly filled block is published with the last
        token; nothing may be written to it from then on. A smaller number than before (the source
        was preempted and computes again) and a transfer that is over change nothing.
        """
        self.withhold(transfer_id, num_computed, layers)
        self.show(transfer_id)

    def withhold(
        self, transfer_id: TransferId, num_computed: int, layers: Sequence[int] | None = None
    ) -> None:
        """`publish`, except that D may read the blocks only once they are shown. Their request may
        be over by then: the references are held from now on."""
        offer = self._offers.get(transfer_id)
        if offer is None or offer.state.is_settled:
            return
        is_whole = num_computed >= offer.num_tokens
        num_full = offer.num_blocks if is_whole else num_computed // self._pool.layout.block_size
        layout = self._pool.layout
        planes = range(layout.num_planes)
        if layers is not None:
            first, last = layout.planes_of(layers[0]), layout.planes_of(layers[-1])
            planes = range(first.start, last.stop)
        behind = [plane for plane in planes if offer.computed[plane] < num_full]
        if not behind:
            return
        self._pool.share(offer.source, offer.lease, num_full)
        for plane in behind:
            if is_whole:
                self._pool.clear_tail(offer.source, offer.num_tokens, plane)
            offer.computed[plane] = num_full

    def show(self, transfer_id: TransferId) -> None:
        """Let D read what was withheld. Changes nothing if the transfer is over."""
        offer = self._offers.get(transfer_id)
        if offer is None or offer.state.is_settled or offer.published == offer.computed:
            return
        offer.published[:] = offer.computed
        self._tell(transfer_id)

    def finish(self, transfer_id: TransferId) -> None:
        """The source computes no more. What it has not computed by now will never come."""
        offer = self._offers.get(transfer_id)
        if offer is None:
            return
        self.held.hold(transfer_id)
        offer.state = next_sender_state(offer.state, SenderEvent.COMPUTED)
        if min(offer.computed) < offer.num_blocks:
            self.abort(transfer_id, "the prompt was not computed to its end")

    def open(self, request: OpenTransfer) -> SendingStream:
        """Check that D may read this transfer; begin at the first block it asks for.

        Raises StaleEpoch, LayoutMismatch, UnknownTransfer, TransferAborted, or TransferError if
        a block asked for does not exist.
        """
        self._check_sender_epoch(request.transfer_id, request.sender_epoch)
        heads, runs = _travelling(self._pool.layout, request.layout)
        offer = self._readable(request.transfer_id)
        _check_receiver_epoch(request.transfer_id, request.receiver_epoch, offer.receiver_epoch)
        if not 0 <= request.first_block < offer.num_blocks:
            raise TransferError(
                f"{request.transfer_id}: block {request.first_block} asked for, "
                f"there are {offer.num_blocks}"
            )
        return SendingStream(
            transfer_id=request.transfer_id,
            heads=heads,
            runs=runs if request.joins_planes else range(len(heads)),
            progress=progress_of(request, offer.num_blocks, len(heads)),
        )

    def begin_read(self, stream: SendingStream) -> list[BlockRead]:
        """What `stream` may read next, in order; nothing if nothing more is published yet.

        Every reading must be given to `end_read`. Raises UnknownTransfer or TransferAborted, and
        what the pool raises where its memory cannot be read; then nothing is being read.
        """
        offer = self._readable(stream.transfer_id)
        published = offer.published[: len(stream.heads)]
        spans = stream.progress.advance(published, self._config.max_blocks_per_read)
        readings: list[BlockRead] = []
        try:
            for same in together(spans, stream.runs):
                readings.append(self._begin(offer, stream.heads[same[0].plane], same))
        except BaseException:
            for reading in readings:
                self.end_read(reading)
            raise
        if readings and not self._may_keep():
            self.abort(stream.transfer_id, "its lease has ended early")
        return readings

    def end_read(self, reading: BlockRead) -> None:
        """The views will not be touched again. Ending a reading twice changes nothing."""
        offer = self._offers.get(reading.transfer_id)
        if offer is None or reading not in offer.readings:
            return
        offer.readings.remove(reading)
        offer.state = next_sender_state(offer.state, SenderEvent.READ_ENDED)
        if offer.state.is_released:
            self._pool.release(offer.quarantine)
            self._forget(offer)

    def settle(self, request: SettleTransfer) -> Outcome:
        """D tells the outcome, or asks for it. Returns what is known now. Raises StaleEpoch."""
        transfer_id = request.transfer_id
        self._check_sender_epoch(transfer_id, request.sender_epoch)
        offer, ended = self._offers.get(transfer_id), self._recent.get(transfer_id)
        if offer is None:
            if ended is None:
                return Outcome.UNKNOWN
            _check_receiver_epoch(transfer_id, request.receiver_epoch, ended.peer_epoch)
            return ended.outcome
        _check_receiver_epoch(transfer_id, request.receiver_epoch, offer.receiver_epoch)
        if request.outcome is Outcome.SEALED:
            self._end(offer, SenderEvent.ACK)
        elif request.outcome is Outcome.ABORTED:
            self.abort(transfer_id, "the receiver gave it up")
        return offer.outcome

    def abort(self, transfer_id: TransferId, reason: str) -> None:
        """Give the transfer up. Changes nothing if it is over already."""
        offer = self._offers.get(transfer_id)
        if offer is not None:
            offer.reason = offer.reason or reason
            self._end(offer, SenderEvent.ABORT)

    def expire(self, now: float) -> list[TransferId]:
        """Abort what is past its time. The backstop, for receivers that went silent."""
        expired = [
            offer.transfer_id
            for offer in self._offers.values()
            if not offer.state.is_settled and offer.expires_at <= now
        ]
        for transfer_id in expired:
            self.counters.num_expired += 1
            self.abort(transfer_id, "its time is up")
        return expired

    def is_read(self, transfer_id: TransferId) -> bool:
        """Whether blocks of it are being read: then they stay where they are, also if it ends."""
        offer = self._offers.get(transfer_id)
        return offer is not None and offer.state.num_reads > 0

    def computation(self, transfer_id: TransferId) -> Computation | None:
        """Whether the source still computes; None for a transfer that holds nothing."""
        offer = self._offers.get(transfer_id)
        return offer.state.computation if offer is not None else None

    def _begin(self, offer: Offer, heads: HeadRange, spans: Sequence[BlockRange]) -> BlockRead:
        """Begin a reading of the same blocks in consecutive planes."""
        (plane, start, stop), lease = spans[0], offer.lease
        reading = BlockRead(
            transfer_id=offer.transfer_id,
            sender_epoch=self.epoch,
            receiver_epoch=offer.receiver_epoch,
            heads=heads,
            plane=plane,
            num_planes=len(spans),
            first_block=start,
            blocks=tuple(self._pool.table(lease)[start:stop]),
            source=self._pool.source(lease, start, stop, range(plane, plane + len(spans))),
        )
        offer.state = next_sender_state(offer.state, SenderEvent.READ_BEGUN)
        offer.readings.add(reading)
        return reading

    def _end(self, offer: Offer, event: SenderEvent) -> None:
        if offer.state.is_settled:
            return
        offer.state = next_sender_state(offer.state, event)
        if offer.state.transfer is Transfer.ACKED:
            self.counters.num_sealed += 1
        else:
            self.counters.num_aborted += 1
        if offer.state.is_released:
            self._pool.release(offer.lease)
            self._forget(offer)
        else:
            self.held.hold(offer.transfer_id)
            self._pool.hand_over(offer.lease, offer.quarantine)
        self._tell(offer.transfer_id)
        self._on_ended(offer.transfer_id)

    def _tell(self, transfer_id: TransferId) -> None:
        for function in self._waiting.pop(transfer_id, ()):
            function()

    def _forget(self, offer: Offer) -> None:
        ended = EndedTransfer(offer.receiver_epoch, offer.outcome, offer.reason)
        self._recent.record(offer.transfer_id, ended)
        self.held.let_go(offer.transfer_id)
        del self._offers[offer.transfer_id]

    def _readable(self, transfer_id: TransferId) -> Offer:
        offer, ended = self._offers.get(transfer_id), self._recent.get(transfer_id)
        if offer is not None and not offer.state.is_settled:
            return offer
        if offer is not None:
            ended = EndedTransfer(offer.receiver_epoch, offer.outcome, offer.reason)
        if ended is not None and ended.outcome is Outcome.ABORTED:
            raise TransferAborted(f"{transfer_id} was given up by the sender: {ended.reason}")
        raise UnknownTransfer(f"the sender holds nothing for {transfer_id}")

    def _check_sender_epoch(self, transfer_id: TransferId, epoch: Epoch) -> None:
        if epoch != self.epoch:
            raise StaleEpoch(f"{transfer_id} is for an earlier incarnation of the sender")


def _check_receiver_epoch(transfer_id: TransferId, got: Epoch, offered: Epoch) -> None:
    if got != offered:
        raise StaleEpoch(f"{transfer_id} was offered to another incarnation of the receiver")


@lru_cache(maxsize=256)
def _travelling(
    sender: KvLayout, receiver: KvLayout
) -> tuple[tuple[HeadRange, ...], tuple[int, ...]]:
    """See `head_ranges`, of the planes that D wants. Raises LayoutMismatch."""
    check_layouts(sender, receiver)
    check_features(sender, receiver)
    if receiver.features is None:  # the last plane
        sender = replace(sender, features=None)
    return head_ranges(sender, receiver)
