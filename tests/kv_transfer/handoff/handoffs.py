"""A model of two replicas and the network between them, on which anything can happen.

The network delays, reorders, repeats, corrupts and drops. Readings on P last as long as they
like, so a copy may be made long after its transfer is over. Every event checks its own answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from hypothesis import strategies as st
from tests.kv_transfer.replicas import (
    LAYOUT,
    TIME_LEFT_S,
    DecodeReplica,
    PrefillReplica,
    copied,
    kv_of,
    request_holder,
)

from baton.core.errors import (
    CorruptPiece,
    StaleEpoch,
    TransferAborted,
    UnknownTransfer,
)
from baton.core.ids import Epoch, TransferId
from baton.kv_transfer.handoff.lease import ReceiverState
from baton.kv_transfer.handoff.messages import KvPiece, Outcome, SettleTransfer
from baton.kv_transfer.handoff.reservation import Reservation
from baton.kv_transfer.receiving.filling import Fill, Filling
from baton.kv_transfer.receiving.placing import place
from baton.kv_transfer.receiving.receiver import AbortReason
from baton.kv_transfer.sending.pieces import BlockRead, HeadRange, cuts
from baton.kv_transfer.sending.stream import Progress, SendingStream

FAMILIES = [tuple(range(start, start + 18)) for start in (0, 50)]
"""Prompts are beginnings of these, so that prefixes are often shared."""

EVENTS = [
    *("compute", "stream", "seal", "adopt", "grant", "finish_a_request") * 30,
    *("deliver",) * 15,
    *("begin_read", "copy", "end_read", "deliver_corrupted", "begin_fill", "end_fill") * 10,
    *("reserve", "resume", "run_a_local_request", "let_time_pass", "expire") * 5,
    *("drop", "preempt", "stop_computing") * 3,
    *("cancel_at_the_sender", "cancel_at_the_receiver", "run_short_of_memory") * 2,
    *("crash_the_sender", "crash_the_receiver"),
]
"""Methods of `Handoffs`; the more often named, the more often drawn."""

NUM_BLOCKS = 20
"""Of each pool: enough for about six prompts, so that both run out now and then."""

FILLING = (ReceiverState.RESERVED, ReceiverState.FILLING)

any_index = st.integers(0, 10_000)

T = TypeVar("T")


def picked(items: Sequence[T], pick: int) -> Sequence[T]:
    """One of the items, or none of none."""
    return [items[pick % len(items)]] if items else []


@dataclass(slots=True)
class Handoff:
    """What the model knows about one transfer."""

    transfer_id: TransferId
    prompt: tuple[int, ...]
    sender_epoch: Epoch
    receiver_epoch: Epoch
    """Of P and D when it was offered; later ones may be asked by mistake."""
    is_computing: bool = True
    is_preempted: bool = False
    num_computed: int = 0
    reservation: Reservation | None = None
    reserved_as: int = 0
    """How many reservations D had made by then."""
    reserved_at: float = 0.0
    outcome: Outcome | None = None
    """As P told it, once it was no longer open."""


class Handoffs:
    """Events are drawn from one weighted table, as rules of their own would end most handoffs
    before they get anywhere. An event that finds nothing to happen to does nothing."""

    def __init__(self) -> None:
        self.now = 0.0
        self.num_named = 0
        self.num_adopted = 0
        self.p = PrefillReplica(num_blocks=NUM_BLOCKS)
        self.d = DecodeReplica(num_blocks=NUM_BLOCKS)
        self.handoffs: dict[TransferId, Handoff] = {}
        self.readings: list[tuple[Handoff, BlockRead]] = []
        self.fills: list[tuple[Filling, Fill]] = []
        self.network: list[KvPiece | SettleTransfer] = []

    def happen(self, event: str, pick: int, which: int) -> None:
        getattr(self, event)(pick, which)

    # P

    def grant(self, pick: int, which: int) -> None:
        transfer_id = self._new_id()
        prompt = FAMILIES[pick % len(FAMILIES)][: 1 + which % 18]
        if self.p.grant(self.d.receiver.epoch, transfer_id, prompt, self.now):
            epochs = self.p.sender.epoch, self.d.receiver.epoch
            handoff = Handoff(transfer_id, prompt, *epochs)
            self.handoffs[transfer_id] = handoff
            if pick % 4:
                self._reserve(handoff)

    def compute(self, pick: int, which: int) -> None:
        for handoff in picked(self._computing(), pick):
            num_tokens = min(handoff.num_computed + 1 + which % 18, len(handoff.prompt))
            handoff.num_computed = num_tokens
            self.p.compute(handoff.transfer_id, num_tokens, lambda layer: self._interject(which))
            if num_tokens == len(handoff.prompt):
                self._leave_the_engine(handoff)

    def stop_computing(self, pick: int, which: int) -> None:
        for handoff in picked(self._computing(), pick):
            self._leave_the_engine(handoff)

    def preempt(self, pick: int, which: int) -> None:
        for handoff in picked(self._computing(), pick):
            self.p.preempt(handoff.transfer_id)
            handoff.is_preempted, handoff.num_computed = True, 0

    def resume(self, pick: int, which: int) -> None:
        preempted = [h for h in self.handoffs.values() if h.is_computing and h.is_preempted]
        for handoff in picked(preempted, pick):
            handoff.is_preempted = not self.p.resume(handoff.transfer_id)

    def begin_read(self, pick: int, which: int) -> None:
        """From anywhere in the prompt: a stream that was cut is opened again."""
        for transfer_id in picked(sorted(self.p.sender.lease_ids), pick):
            handoff = self.handoffs[transfer_id]
            with suppress(UnknownTransfer, TransferAborted):
                for reading in self._read(handoff, which % 5):
                    self.readings.append((handoff, reading))

    def copy(self, pick: int, which: int) -> None:
        """A worker thread gets round to copying; the transfer may be over by now."""
        for handoff, reading in picked(self.readings, pick):
            for cut in picked(list(cuts(reading, lambda: (1, 128, 1 << 20)[pick % 3])), which):
                piece = copied(cut)
                for each in piece.by_plane():
                    for block, view in enumerate(each.views, each.first_block):
                        expected = kv_of(handoff.prompt, block, each.plane)
                        assert view == expected, "reused under its reader"
                self.network.append(piece)

    def end_read(self, pick: int, which: int) -> None:
        for entry in picked(self.readings, pick):
            self.readings.remove(entry)
            self.p.sender.end_read(entry[1])
            self.p.sender.end_read(entry[1])

    def cancel_at_the_sender(self, pick: int, which: int) -> None:
        for transfer_id in picked(sorted(self.p.sender.lease_ids), pick):
            self.p.sender.abort(transfer_id, "cancelled")

    # D

    def reserve(self, pick: int, which: int) -> None:
        """Also by a D that has restarted since the transfer was offered."""
        waiting = [h for h in self.handoffs.values() if h.reservation is None]
        for handoff in picked(waiting, pick):
            self._reserve(handoff)

    def stream(self, pick: int, which: int) -> None:
        """What is published arrives, at once (some of it twice), or it is on its way."""
        filling = [h for h in self.handoffs.values() if self._state(h) in FILLING]
        for handoff in picked(filling, pick):
            cursor = self.d.receiver.filling(handoff.transfer_id).first_missing(0)
            try:
                readings = self._read(handoff, cursor)
            except (UnknownTransfer, TransferAborted):
                self.d.receiver.abort(handoff.transfer_id, AbortReason.FAILED)
                continue
            pieces = [copied(cut) for reading in readings for cut in cuts(reading, lambda: 128)]
            for reading in readings:
                self.p.sender.end_read(reading)
            self.network += pieces if which % 4 == 0 else pieces[: which % 3]
            for piece in pieces if which % 4 else ():
                self._accept(piece)

    def begin_fill(self, pick: int, which: int) -> None:
        """A worker thread gets a piece to write, and takes its time."""
        for piece in picked([m for m in self.network if isinstance(m, KvPiece)], pick):
            with suppress(StaleEpoch, UnknownTransfer, TransferAborted):
                filling = self.d.receiver.filling(piece.transfer_id)
                for part in filling.parts(0, piece):
                    self.fills.append((filling, filling.begin(0, part, self.now)))

    def end_fill(self, pick: int, which: int) -> None:
        """It writes, though the lease may be over by now, or it fails."""
        for filling, fill in picked(self.fills, pick):
            self.fills.remove((filling, fill))
            is_written = which % 5 > 0
            assert not (is_written and place(fill))
            filling.end(fill, is_written)
            self.d.receiver.end_quarantine()

    def seal(self, pick: int, which: int) -> None:
        """A fetch waits for its last write before."""
        writing = {filling.transfer_id for filling, _ in self.fills}
        leases = sorted(self.d.receiver.lease_ids - writing)
        complete = [t for t in leases if self.d.receiver.is_complete(t)]
        for transfer_id in picked(complete, pick):
            self.d.receiver.seal(transfer_id)
            self._send_outcome(transfer_id, Outcome.SEALED)
            if which % 2:
                self._settle(self.network[-1])

    def adopt(self, pick: int, which: int) -> None:
        sealed = [h for h in self.handoffs.values() if self._state(h) is ReceiverState.SEALED]
        for handoff in picked(sealed, pick):
            self.d.adopt(handoff.transfer_id, handoff.prompt)
            self.num_adopted += 1

    def cancel_at_the_receiver(self, pick: int, which: int) -> None:
        """Also when nothing is left to cancel."""
        for transfer_id in picked(list(self.handoffs), pick):
            self.d.receiver.abort(transfer_id, AbortReason.CANCELLED)
            self._send_outcome(transfer_id, Outcome.ABORTED)

    def run_short_of_memory(self, pick: int, which: int) -> None:
        """D aborts the youngest lease that nothing has arrived for, and no other."""
        leased = [h for h in self.handoffs.values() if self._state(h) is not None]
        reserved = [h for h in leased if self._state(h) is ReceiverState.RESERVED]
        assert self.d.receiver.abort_youngest_reserved() == bool(reserved)
        lost = [h for h in leased if self._state(h) is None]
        assert lost == sorted(reserved, key=lambda h: h.reserved_as)[-1:]

    def run_a_local_request(self, pick: int, which: int) -> None:
        """A request on D that had no handoff writes blocks of its own."""
        request_id, num_tokens = self._new_id(), 1 + which % 12
        prompt = tuple(range(1000 * self.num_named, 1000 * self.num_named + num_tokens))
        if self.d.pool.reserve(request_holder(request_id), prompt, b"") is None:
            return
        self.d.requests[request_id] = prompt
        for block in range(LAYOUT.num_blocks_for(num_tokens)):
            for layer in range(LAYOUT.num_layers):
                data = memoryview(kv_of(prompt, block, layer))
                self.d.pool.write(request_holder(request_id), block, layer, data)

    def finish_a_request(self, pick: int, which: int) -> None:
        for request_id in picked(list(self.d.requests), pick):
            self.d.finish(request_id)

    # the network, time and crashes

    def deliver(self, pick: int, which: int) -> None:
        for message in picked(self.network[-6 if which % 2 else 0 :], pick):
            if which % 3:
                self.network.remove(message)  # else it will come again
            if isinstance(message, KvPiece):
                self._accept(message)
            else:
                self._settle(message)

    def deliver_corrupted(self, pick: int, which: int) -> None:
        pieces = [message for message in self.network[-6:] if isinstance(message, KvPiece)]
        for piece in picked(pieces, pick):
            position, at = which % len(piece.views), which % LAYOUT.layer_block_bytes
            data = bytearray(piece.views[position])
            data[at] ^= 1 + pick % 255
            views = (*piece.views[:position], memoryview(data), *piece.views[position + 1 :])
            plane, block = divmod(position, piece.num_blocks)
            refusals = CorruptPiece, StaleEpoch, UnknownTransfer, TransferAborted
            with suppress(*refusals):  # or the block was there already, and is not written
                for fill in self._fill(replace(piece, views=views)):
                    is_of_it = piece.plane + plane in fill.piece.planes
                    assert not is_of_it or piece.first_block + block not in fill.blocks

    def drop(self, pick: int, which: int) -> None:
        for message in picked(self.network, pick):
            self.network.remove(message)

    def let_time_pass(self, pick: int, which: int) -> None:
        self.now += which % 25

    def expire(self, pick: int, which: int) -> None:
        """What nobody touches expires here; a piece that comes too late, on its arrival."""
        (self.p.sender if pick % 2 else self.d.receiver).expire(self.now)

    def crash_the_sender(self, pick: int, which: int) -> None:
        """Its memory is gone; its messages are still on their way."""
        self.p = PrefillReplica(num_blocks=NUM_BLOCKS)
        self.readings.clear()
        for handoff in self.handoffs.values():
            handoff.is_computing = False

    def crash_the_receiver(self, pick: int, which: int) -> None:
        self.fills.clear()
        self.d = DecodeReplica(num_blocks=NUM_BLOCKS)

    def _read(self, handoff: Handoff, first_block: int) -> list[BlockRead]:
        """What a stream that begins there is given first."""
        num_blocks = LAYOUT.num_blocks_for(len(handoff.prompt))
        stream = SendingStream(
            transfer_id=handoff.transfer_id,
            heads=tuple(map(HeadRange.between, LAYOUT.planes, LAYOUT.planes)),
            runs=[index * (num_blocks % 2) for index in range(LAYOUT.num_planes)],
            progress=Progress(first_block, num_blocks, LAYOUT.num_planes),
        )
        return self.p.sender.begin_read(stream)

    def _interject(self, which: int) -> None:
        """What may happen in the middle of a step of P's, between two layers of it."""
        event = ("begin_read", "copy", "end_read", "stream", "deliver", "seal")[which % 6]
        self.happen(event, which // 6, which)

    def _leave_the_engine(self, handoff: Handoff) -> None:
        self.p.finish(handoff.transfer_id)
        handoff.is_computing = False

    def _reserve(self, handoff: Handoff) -> None:
        self.d.clock.now = self.now
        handoff.reservation = self.d.reserve(
            self.p.sender.epoch, handoff.transfer_id, handoff.prompt
        )
        handoff.reserved_at = self.now
        handoff.reserved_as = self.d.receiver.counters.num_reserved

    def _accept(self, piece: KvPiece) -> None:
        """Deliver an intact piece; its lease alone decides whether it is taken."""
        handoff = self.handoffs[piece.transfer_id]
        state, lease = self._state(handoff), handoff.reservation
        is_open = (
            piece.receiver_epoch == self.d.receiver.epoch
            and state in FILLING
            and lease is not None
            and lease.streams[0].source.epoch == piece.sender_epoch
            and self.now < handoff.reserved_at + TIME_LEFT_S
        )
        try:
            self._fill(piece)
        except (StaleEpoch, UnknownTransfer, TransferAborted):
            assert not is_open
        else:
            assert is_open

    def _fill(self, piece: KvPiece) -> list[Fill]:
        self.d.clock.now = self.now
        filling = self.d.receiver.filling(piece.transfer_id)
        return [self.d.accept(part) for part in filling.parts(0, piece)]

    def _settle(self, message: KvPiece | SettleTransfer) -> None:
        assert isinstance(message, SettleTransfer)
        handoff = self.handoffs[message.transfer_id]
        try:
            outcome = self.p.sender.settle(message)
        except StaleEpoch:
            is_for_p = message.sender_epoch == self.p.sender.epoch
            assert not is_for_p or message.receiver_epoch != handoff.receiver_epoch
            return
        assert message.sender_epoch == self.p.sender.epoch
        is_offered_by_p = handoff.sender_epoch == self.p.sender.epoch
        assert (outcome is Outcome.UNKNOWN) == (not is_offered_by_p)
        assert outcome is not Outcome.OPEN
        assert handoff.outcome in (None, outcome), "the first outcome is final"
        if is_offered_by_p:
            handoff.outcome = outcome

    def _send_outcome(self, transfer_id: TransferId, outcome: Outcome) -> None:
        lease = self.handoffs[transfer_id].reservation
        if lease is not None:
            self.network.append(
                SettleTransfer(
                    transfer_id=transfer_id,
                    sender_epoch=lease.streams[0].source.epoch,
                    receiver_epoch=lease.receiver_epoch,
                    outcome=outcome,
                )
            )

    def _computing(self) -> list[Handoff]:
        return [h for h in self.handoffs.values() if h.is_computing and not h.is_preempted]

    def _state(self, handoff: Handoff) -> ReceiverState | None:
        return self.d.receiver.state(handoff.transfer_id)

    def _new_id(self) -> TransferId:
        self.num_named += 1
        return TransferId(f"kv-{self.num_named}")
