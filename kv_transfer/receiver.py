"""D's side of handoffs: blocks reserved for KV under way, filled piece by piece, then adopted.

    reserve -> accept, accept, ... -> seal -> adopt         the request joins the batch
                        abort / expire / pressure           blocks go back, pieces are refused

Only this process writes its pool: a piece is bytes of its own, checked against epoch, state, range
and checksum before a block is touched. Synchronous: it lives on the engine's thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NoReturn

from baton.core.errors import (
    CorruptPiece,
    StaleEpoch,
    TransferAborted,
    TransferError,
    UnknownTransfer,
)
from baton.core.ids import Epoch, TransferId
from baton.core.kv_pool import Holder, HolderKind, KvPool
from baton.kv_transfer.filling import Filling
from baton.kv_transfer.integrity import bad_units, combined_checksum
from baton.kv_transfer.lease import ReceiverEvent, ReceiverState, next_receiver_state
from baton.kv_transfer.messages import KvPiece, Outcome
from baton.kv_transfer.outcomes import Ended, RecentOutcomes
from baton.kv_transfer.reservation import Reservation


class AbortReason(StrEnum):
    CANCELLED = "cancelled"
    EXPIRED = "its time is up"
    PRESSURE = "blocks are needed by running requests"
    FAILED = "the transfer failed"


AbortListener = Callable[[TransferId, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverConfig:
    max_leased_fraction: float = 0.5
    """Share of the pool that leases may hold together; 0 < x <= 1."""
    max_remembered: int = 4096

    def __post_init__(self) -> None:
        if not 0 < self.max_leased_fraction <= 1:
            raise ValueError(f"max_leased_fraction must be in (0, 1]: {self.max_leased_fraction}")


@dataclass(slots=True, kw_only=True)
class ReceiverCounters:
    num_reserved: int = 0
    num_refused: int = 0
    """Reservations that did not fit."""
    num_sealed: int = 0
    num_adopted: int = 0
    num_aborted: Counter[str] = field(default_factory=Counter)
    """By reason."""
    num_corrupt: Counter[Epoch] = field(default_factory=Counter)
    """Bad pieces, by the epoch of the sender they came from."""
    num_bytes: int = 0
    """Written into the pool."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """What one piece brought."""

    num_new: int
    """Blocks of the piece's layer that were missing until now."""
    num_duplicates: int
    """Blocks that were there already, equal."""


@dataclass(slots=True, kw_only=True)
class _Lease:
    transfer_id: TransferId
    sender_epoch: Epoch
    expires_at: float
    filling: Filling
    state: ReceiverState = ReceiverState.RESERVED

    @property
    def holder(self) -> Holder:
        return Holder(HolderKind.LEASE, self.transfer_id)


class Receiver:
    def __init__(self, pool: KvPool, epoch: Epoch, config: ReceiverConfig | None = None) -> None:
        self.epoch = epoch
        self.counters = ReceiverCounters()
        self.on_aborted: list[AbortListener] = []
        """Each called on the engine's thread, after the blocks were given back."""
        self._pool = pool
        self._config = config or ReceiverConfig()
        self._leases: dict[TransferId, _Lease] = {}  # oldest first
        self._recent = RecentOutcomes(self._config.max_remembered)

    @property
    def lease_ids(self) -> frozenset[TransferId]:
        """Transfers that hold blocks, for the auditor."""
        return frozenset(self._leases)

    @property
    def num_leased_blocks(self) -> int:
        """Blocks that leases took from the pool; shared prefixes do not count."""
        return sum(
            lease.filling.num_blocks - lease.filling.first_block for lease in self._leases.values()
        )

    def state(self, transfer_id: TransferId) -> ReceiverState | None:
        lease = self._leases.get(transfer_id)
        return lease.state if lease is not None else None

    def reserve(
        self,
        transfer_id: TransferId,
        sender_epoch: Epoch,
        *,
        tokens: Sequence[int],
        salt: bytes,
        time_left_s: float,
        now: float,
    ) -> Reservation | None:
        """Take blocks for `tokens`; None, with nothing changed, if too few may be had.

        Raises ValueError for a transfer id that was used before.
        """
        if transfer_id in self._leases or self._recent.get(transfer_id) is not None:
            raise ValueError(f"{transfer_id} was reserved before; draw a new transfer id")
        layout = self._pool.layout
        num_blocks = layout.num_blocks_for(len(tokens))
        max_leased = self._config.max_leased_fraction * self._pool.num_blocks
        if self.num_leased_blocks + num_blocks > max_leased:
            self.counters.num_refused += 1
            return None
        num_cached = self._pool.reserve(Holder(HolderKind.LEASE, transfer_id), tokens, salt)
        if num_cached is None:
            self.counters.num_refused += 1
            return None
        first_block = num_cached // layout.block_size
        self._leases[transfer_id] = _Lease(
            transfer_id=transfer_id,
            sender_epoch=sender_epoch,
            expires_at=now + time_left_s,
            filling=Filling(first_block, num_blocks, layout.num_layers),
        )
        self.counters.num_reserved += 1
        return Reservation(
            transfer_id=transfer_id,
            sender_epoch=sender_epoch,
            receiver_epoch=self.epoch,
            layout=layout,
            first_block=first_block,
            num_blocks=num_blocks,
            num_cached=num_cached,
            time_left_s=time_left_s,
        )

    def accept(self, piece: KvPiece, now: float) -> Accepted:
        """Write what a piece brings and the lease lacks.

        Raises StaleEpoch, UnknownTransfer, TransferAborted or CorruptPiece, and writes nothing
        then. A refused piece does not abort the lease by itself.
        """
        lease = self._filling(piece, now)
        self._check_bytes(piece, lease)
        heads, size = self._pool.layout.num_kv_heads, self._pool.layout.layer_block_bytes
        checksums = [
            combined_checksum(piece.checksums[start : start + heads])
            for start in range(0, len(piece.checksums), heads)
        ]
        try:
            missing = lease.filling.missing(piece.layer, piece.first_block, checksums)
        except ValueError as conflict:
            self._reject(piece, str(conflict))
        lease.state = next_receiver_state(lease.state, ReceiverEvent.FILL)
        data = memoryview(piece.data)
        for block in missing:
            index = block - piece.first_block
            chunk = data[index * size : (index + 1) * size]
            self._pool.write(lease.holder, block, piece.layer, chunk)
            lease.filling.record(piece.layer, block, checksums[index])
        self.counters.num_bytes += len(missing) * size
        return Accepted(len(missing), len(checksums) - len(missing))

    def is_complete(self, transfer_id: TransferId) -> bool:
        lease = self._leases.get(transfer_id)
        return lease is not None and lease.filling.num_missing == 0

    def first_missing(self, transfer_id: TransferId) -> int:
        """The first block that is not there in all layers; the number of blocks if all are.

        Raises UnknownTransfer or TransferAborted.
        """
        return self._lease(transfer_id).filling.first_missing()

    def seal(self, transfer_id: TransferId) -> None:
        """Every piece is there and verified. May be repeated.

        Raises UnknownTransfer, TransferAborted, or TransferError if something is missing.
        """
        lease = self._lease(transfer_id)
        if lease.filling.num_missing:
            raise TransferError(f"{transfer_id} lacks {lease.filling.num_missing} (layer, block)s")
        if lease.state is not ReceiverState.SEALED:
            self.counters.num_sealed += 1
        lease.state = next_receiver_state(lease.state, ReceiverEvent.SEAL)

    def adopt(self, transfer_id: TransferId) -> Holder:
        """End a sealed lease; the caller hands the returned holder's blocks over to a request.

        Call it and `Engine.adopt` in one go, with no engine step between. Raises UnknownTransfer
        or TransferAborted; ValueError for a lease that is not sealed.
        """
        lease = self._lease(transfer_id)
        lease.state = next_receiver_state(lease.state, ReceiverEvent.ADOPT)
        del self._leases[transfer_id]
        self._recent.record(transfer_id, Ended(lease.sender_epoch, Outcome.SEALED))
        self.counters.num_adopted += 1
        return lease.holder

    def abort(self, transfer_id: TransferId, reason: str) -> None:
        """Give the blocks back. Changes nothing for a lease that is over or was adopted."""
        lease = self._leases.pop(transfer_id, None)
        if lease is None:
            return
        lease.state = next_receiver_state(lease.state, ReceiverEvent.ABORT)
        self._pool.release(lease.holder)
        self._recent.record(transfer_id, Ended(lease.sender_epoch, Outcome.ABORTED, reason))
        self.counters.num_aborted[reason] += 1
        for listener in self.on_aborted:
            listener(transfer_id, reason)

    def abort_youngest_reserved(self) -> bool:
        """Under memory pressure: give up the youngest lease nothing has arrived for, if any."""
        for lease in reversed(self._leases.values()):
            if lease.state is ReceiverState.RESERVED:
                self.abort(lease.transfer_id, AbortReason.PRESSURE)
                return True
        return False

    def expire(self, now: float) -> list[TransferId]:
        """Abort what is past its time. The backstop, for senders that went silent."""
        expired = [lease.transfer_id for lease in self._leases.values() if lease.expires_at <= now]
        for transfer_id in expired:
            self.abort(transfer_id, AbortReason.EXPIRED)
        return expired

    def _lease(self, transfer_id: TransferId) -> _Lease:
        lease = self._leases.get(transfer_id)
        if lease is not None:
            return lease
        ended = self._recent.get(transfer_id)
        if ended is not None and ended.outcome is Outcome.ABORTED:
            raise TransferAborted(f"{transfer_id} was given up by the receiver: {ended.reason}")
        raise UnknownTransfer(f"the receiver holds nothing for {transfer_id}")

    def _filling(self, piece: KvPiece, now: float) -> _Lease:
        """The lease a piece may be written to, as far as who, when and where tell."""
        if piece.receiver_epoch != self.epoch:
            raise StaleEpoch(f"a piece of {piece.transfer_id} is for an earlier incarnation")
        lease = self._lease(piece.transfer_id)
        if piece.sender_epoch != lease.sender_epoch:
            raise StaleEpoch(f"a piece of {piece.transfer_id} is from another incarnation")
        if lease.expires_at <= now:
            self.abort(piece.transfer_id, AbortReason.EXPIRED)
            raise TransferAborted(f"{piece.transfer_id}: {AbortReason.EXPIRED}")
        if lease.state is ReceiverState.SEALED:
            raise UnknownTransfer(f"{piece.transfer_id} is sealed and takes no more pieces")
        return lease

    def _check_bytes(self, piece: KvPiece, lease: _Lease) -> None:
        layout = self._pool.layout
        num_blocks, rest = divmod(len(piece.data), layout.layer_block_bytes)
        if rest or not num_blocks or len(piece.checksums) != num_blocks * layout.num_kv_heads:
            self._reject(piece, f"{len(piece.data)} bytes, {len(piece.checksums)} checksums")
        is_inside = 0 <= piece.first_block <= lease.filling.num_blocks - num_blocks
        if not is_inside or not 0 <= piece.layer < layout.num_layers:
            self._reject(piece, f"{num_blocks} blocks from {piece.first_block} are out of range")
        if bad := bad_units(piece, layout):
            self._reject(piece, f"(block, head) {bad[:8]} do not match their checksums")

    def _reject(self, piece: KvPiece, what: str) -> NoReturn:
        self.counters.num_corrupt[piece.sender_epoch] += 1
        raise CorruptPiece(f"{piece.transfer_id}, layer {piece.layer}: {what}")
