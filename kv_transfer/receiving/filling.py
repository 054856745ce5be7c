"""The blocks of one lease while they are filled: the part of it that several threads may touch.

    parts(piece)   a piece of several planes, or each plane, if some have arrived before
    begin(part)    checks epoch, state, time and range, and claims its empty slots
    ...            its bytes are written and verified, on any thread (`placing.py`)
    agree(fill)    its checksums are those that its blocks had before, if these have come before
    end(fill)      correct units are recorded, wrong ones are missing again

Between `begin` and `end` the lease counts a fill: if it is aborted meanwhile, its blocks stay in
quarantine. One lock guards all of it; nothing that takes long, or calls out, happens under it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import NoReturn

from baton.core.block_views import chosen, sizes_of
from baton.core.errors import CorruptPiece, StaleEpoch, TransferAborted, UnknownTransfer
from baton.core.ids import TransferId
from baton.core.kv_layout import KvLayout
from baton.core.kv_pool import BlockTargets
from baton.kv_transfer.handoff.lease import (
    ReceiverEvent,
    ReceiverLease,
    ReceiverState,
    next_receiver_lease,
)
from baton.kv_transfer.handoff.messages import KvPiece
from baton.kv_transfer.handoff.reservation import Reservation, ReservedStream, WantedKv
from baton.kv_transfer.handoff.slots import Slots
from baton.kv_transfer.layouts.integrity import CHECKSUM_BYTES, combined_checksums
from baton.kv_transfer.layouts.plan import BlockPlacement
from baton.kv_transfer.receiving.counters import FillCounters

_DAMAGED = "its checksums were damaged on the way"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fill:
    """One piece that is being written. It must be ended, once."""

    piece: KvPiece
    stream: ReservedStream
    slots: Slots
    targets: BlockTargets
    tokens: range
    """Tokens that the lease lacks; no others are written."""
    blocks: Sequence[int]
    """Blocks of the piece that were empty, in each of its planes."""

    @property
    def placement(self) -> BlockPlacement:
        """The placement of the planes that the piece is of, which are alike."""
        return self.stream.placement.planes[self.piece.plane]

    @property
    def is_in_memory(self) -> bool:
        """Whether what it brings has one place in memory of this host for each block."""
        return self.targets.are_together(heads_of(self.stream.placement.arriving))

    def views(self, blocks: Sequence[int]) -> Sequence[memoryview]:
        """The bytes of these blocks of the piece, by plane and block."""
        if len(blocks) == self.piece.num_blocks:
            return self.piece.views
        return chosen(self.piece.views, self._positions(blocks))

    def checksums(self, blocks: Sequence[int]) -> bytes:
        """Checksums by plane, block and head, as the sender computed them."""
        checksums = self.piece.known_checksums
        if len(blocks) == self.piece.num_blocks:
            return checksums
        size = CHECKSUM_BYTES * self.placement.arriving.num_kv_heads
        starts = [position * size for position in self._positions(blocks)]
        return b"".join([checksums[start : start + size] for start in starts])

    @property
    def num_duplicates(self) -> int:
        return (self.piece.num_blocks - len(self.blocks)) * self.piece.num_planes

    def by_plane(self) -> Iterable[Fill]:
        """This fill split into one a plane. They need not be ended."""
        if self.piece.num_planes == 1:
            return (self,)
        return (replace(self, piece=each) for each in self.piece.by_plane())

    def _positions(self, blocks: Sequence[int]) -> list[int]:
        piece = self.piece
        starts = range(0, len(piece.views), piece.num_blocks)
        return [start + block - piece.first_block for start in starts for block in blocks]


class Filling:
    def __init__(
        self,
        reservation: Reservation,
        targets: BlockTargets,
        expires_at: float,
        counters: FillCounters,
        wanted: WantedKv,
    ) -> None:
        num_planes = reservation.streams[0].wanted.num_planes
        self.reservation = reservation
        self.expires_at = expires_at
        self.wanted = wanted
        self.is_computed = wanted.is_computed
        """Whether the source has computed all of it, with outputs that can be right."""
        self._targets = targets
        self._counters = counters
        self._lock = threading.Lock()
        self._lease = ReceiverLease()
        self._reason = ""
        self._slots = [
            Slots(stream.blocks.start, stream.blocks.stop, num_planes)
            for stream in reservation.streams
        ]

    @property
    def transfer_id(self) -> TransferId:
        return self.reservation.transfer_id

    @property
    def began_at(self) -> float:
        return self.expires_at - self.reservation.time_left_s

    @property
    def state(self) -> ReceiverState:
        return self._lease.state

    @property
    def is_released(self) -> bool:
        """Given up, and nothing writes to its blocks any more."""
        return self._lease.is_released

    @property
    def num_missing(self) -> int:
        """(plane, block)s that are not there, counted in the senders' blocks."""
        return sum(slots.num_missing for slots in self._slots)

    @property
    def num_missing_bytes(self) -> int:
        """Bytes of these, of the average plane."""
        streams = zip(self.reservation.streams, self._slots, strict=True)
        return sum(
            slots.num_missing * stream.placement.arriving.block_bytes // stream.wanted.num_planes
            for stream, slots in streams
        )

    @property
    def num_verified(self) -> int:
        """Leading tokens whose KV is here in all planes: it came, or was cached before."""
        with self._lock:
            firsts = [slots.first_missing() for slots in self._slots]
        tokens, streams = self.reservation.tokens, self.reservation.streams
        sizes = [stream.placement.arriving.block_size for stream in streams]
        ends = [first * size for first, size in zip(firsts, sizes, strict=True)]
        return max(tokens.start, min(tokens.stop, *ends))

    def note_computed(self) -> None:
        """The source has computed all of it: from now on what has come is worth keeping."""
        self.is_computed = True

    def is_plain(self, stream: int) -> bool:
        """Whether the stream's pieces are copied to memory of this host as they are."""
        placement = self.reservation.streams[stream].placement
        is_in_memory = self._targets.are_together(heads_of(placement.arriving))
        return is_in_memory and all(plane.is_direct for plane in placement.planes)

    def first_missing(self, stream: int) -> int:
        """The first block of the stream that is not there in all planes; its stop if all are."""
        with self._lock:
            return self._slots[stream].first_missing()

    def parts(self, stream: int, piece: KvPiece) -> Iterable[KvPiece]:
        """What to `begin`: the piece, or its planes where not the same blocks of them are empty.

        Bytes that have yet to come are read before they are split. Raises CorruptPiece if their
        checksums were damaged: once, as for a piece that is not split.
        """
        num_planes = len(self.reservation.streams[stream].placement.planes)
        if piece.num_planes == 1 or piece.planes.stop > num_planes:  # which `begin` refuses
            return (piece,)
        with self._lock:
            slots = self._slots[stream]
            if slots.are_alike(piece.planes, piece.first_block, piece.num_blocks):
                return (piece,)
        planes = tuple(piece.by_plane())
        if not piece.has_checksums:
            first = piece.first_block
            self._refuse(piece, _DAMAGED, range(first, first + piece.num_blocks))
        return planes

    def begin(self, stream: int, piece: KvPiece, now: float) -> Fill:
        """Raises StaleEpoch, UnknownTransfer, TransferAborted or CorruptPiece."""
        reserved = self.reservation.streams[stream]
        self._check_sender(piece, reserved)
        with self._lock:
            self._check_state(now)
            self._check_shape(piece, reserved)
            slots = self._slots[stream]
            blocks = self._claim(slots, piece)
            self._lease = next_receiver_lease(self._lease, ReceiverEvent.FILL_BEGUN)
        return Fill(
            piece=piece,
            stream=reserved,
            slots=slots,
            targets=self._targets,
            tokens=self.reservation.tokens,
            blocks=blocks,
        )

    def agree(self, fill: Fill) -> None:
        """Compare checksums that came behind the bytes with those of blocks that came before.

        Raises CorruptPiece; `begin` has done it for those that were announced.
        """
        if fill.piece.checksums_behind is not None and fill.piece.has_checksums:
            with self._lock:
                self._agree(fill.slots, fill.piece, fill.blocks)

    def end(self, fill: Fill, is_written: bool) -> None:
        """Its bytes are in place and verified, or they are not."""
        planes = fill.piece.planes
        settle = fill.slots.record if is_written else fill.slots.give_back
        with self._lock:
            settle(planes, fill.blocks)
            if is_written:
                size = fill.placement.arriving.layer_block_bytes
                self._counters.filled(len(planes) * len(fill.blocks) * size)
            self._lease = next_receiver_lease(self._lease, ReceiverEvent.FILL_ENDED)

    def refuse(self, fill: Fill, bad: Sequence[object]) -> NoReturn:
        """Its bytes are wrong, or nothing proves them. Raises CorruptPiece, and counts it against
        the source."""
        piece = fill.piece
        blocks = range(fill.blocks[0], fill.blocks[-1] + 1)
        if not piece.has_checksums:
            self._refuse(piece, _DAMAGED, blocks)
        with self._lock:
            checksums = _by_block(piece)
            for plane, block in product(piece.planes, fill.blocks):
                number = (plane - piece.plane) * piece.num_blocks + block - piece.first_block
                start = CHECKSUM_BYTES * number
                fill.slots.expect(plane, block, checksums[start : start + CHECKSUM_BYTES])
        what = f"(block, head) {bad[:8]} do not match their checksums"
        self._refuse(piece, what, blocks)

    # On the owner's thread.

    def happen(self, event: ReceiverEvent, reason: str = "") -> ReceiverLease:
        """SEAL, ADOPT or ABORT; what the lease is then. Raises ValueError if it cannot happen."""
        with self._lock:
            self._lease = next_receiver_lease(self._lease, event)
            self._reason = reason
            return self._lease

    # What follows is called with the lock held.

    def _claim(self, slots: Slots, piece: KvPiece) -> Sequence[int]:
        """The blocks that were empty: the same ones in all planes. Or none is claimed."""
        try:
            blocks = slots.claim(piece.planes, piece.first_block, piece.num_blocks)
        except ValueError as conflict:
            self._refuse(piece, str(conflict))
        if piece.has_checksums:
            try:
                self._agree(slots, piece, blocks)
            except CorruptPiece:
                slots.give_back(piece.planes, blocks)
                raise
        return blocks

    def _agree(self, slots: Slots, piece: KvPiece, blocks: Sequence[int]) -> None:
        try:
            slots.agree(piece.planes, piece.first_block, _by_block(piece), blocks)
        except ValueError as conflict:
            self._refuse(piece, str(conflict))

    def _check_state(self, now: float) -> None:
        if self.state is ReceiverState.ABORTED:
            raise TransferAborted(f"{self.transfer_id} was given up: {self._reason}")
        if self.state in (ReceiverState.SEALED, ReceiverState.ADOPTED):
            raise UnknownTransfer(f"{self.transfer_id} is sealed and takes no more pieces")
        if self.expires_at <= now:
            raise TransferAborted(f"{self.transfer_id}: its time is up")

    def _check_sender(self, piece: KvPiece, stream: ReservedStream) -> None:
        if piece.receiver_epoch != self.reservation.receiver_epoch:
            raise StaleEpoch(f"a piece of {piece.transfer_id} is for an earlier incarnation")
        if piece.sender_epoch != stream.source.epoch:
            raise StaleEpoch(f"a piece of {piece.transfer_id} is from another incarnation")
        if piece.transfer_id != self.transfer_id:
            raise UnknownTransfer(f"a piece of {piece.transfer_id} came for {self.transfer_id}")

    def _check_shape(self, piece: KvPiece, stream: ReservedStream) -> None:
        planes, wanted_planes = stream.placement.planes, piece.planes
        if not 0 <= wanted_planes.start < wanted_planes.stop <= len(planes):
            self._refuse(piece, f"there are {len(planes)} planes")
        if stream.placement.runs[wanted_planes[0]] != stream.placement.runs[wanted_planes[-1]]:
            self._refuse(piece, "its planes are not alike")
        num_blocks, num_views = piece.num_blocks, len(piece.views)
        stop = piece.first_block + num_blocks
        layout = planes[piece.plane].arriving
        has_other_size = sizes_of(piece.views) != {layout.layer_block_bytes} or num_views % len(
            wanted_planes
        )
        checksum_bytes = CHECKSUM_BYTES * num_views * layout.num_kv_heads
        if not 0 <= piece.first_block <= stop <= stream.blocks.stop:
            self._refuse(piece, f"{num_blocks} blocks from {piece.first_block} are out of range")
        wanted = range(piece.first_block, stop)
        if not piece.num_checksum_bytes:
            self._refuse(piece, _DAMAGED, wanted)
        if not num_blocks or has_other_size or piece.num_checksum_bytes != checksum_bytes:
            what = f"{piece.num_bytes} bytes, {piece.num_checksum_bytes} of checksums"
            self._refuse(piece, what, wanted)

    def _refuse(self, piece: KvPiece, what: str, blocks: range = range(0)) -> NoReturn:
        """`blocks` may come again."""
        self._counters.refused(piece.sender_epoch)
        planes = f"plane {piece.plane}"
        if piece.num_planes > 1:
            planes = f"planes {piece.plane} to {piece.planes[-1]}"
        raise CorruptPiece(
            f"{piece.transfer_id}, {planes}: {what}",
            plane=piece.plane,
            num_planes=piece.num_planes,
            blocks=blocks,
        )


def heads_of(layout: KvLayout) -> range:
    return range(layout.first_kv_head, layout.stop_kv_head)


def _by_block(piece: KvPiece) -> bytes:
    """One checksum a block, by plane and block."""
    num_each = piece.num_checksum_bytes // (CHECKSUM_BYTES * len(piece.views))
    return combined_checksums(piece.known_checksums, num_each)
