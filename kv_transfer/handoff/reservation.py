"""What D wants to receive, and the blocks that it has reserved for it.

WantedKv ----Receiver.reserve----> Reservation: one stream for each source that holds some of it
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from baton.core.ids import Epoch, TransferId
from baton.core.kv_layout import KvLayout
from baton.kv_transfer.layouts.plan import BlockPlacement


@dataclass(frozen=True, slots=True, kw_only=True)
class KvSource:
    """One process that sends: a replica, or one rank of it."""

    epoch: Epoch
    address: str
    """The sender's address as the transport understands it."""
    layout: KvLayout
    """The sender's."""
    head_runs: tuple[range, ...] = ()
    """See `KvPool.head_runs`, of the sender; empty where all heads are to come on one stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedKv:
    transfer_id: TransferId
    sources: tuple[KvSource, ...]
    """The senders, all of one model; together they hold all heads."""
    tokens: Sequence[int]
    salt: bytes
    tenant: str = ""
    """The tenant that the blocks count for."""
    time_left_s: float
    is_computed: bool = False
    """Whether the senders have all of it already; of a prompt that is being computed, they tell
    later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservedStream:
    """What one source is to send."""

    source: KvSource
    placement: BlockPlacement
    blocks: range
    """The source's, counted within the prompt: those that hold something that D lacks."""

    @property
    def wanted(self) -> KvLayout:
        """D's layout, but for the heads: those that this source is to send."""
        return self.placement.wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Blocks waiting for the KV of one prompt."""

    transfer_id: TransferId
    receiver_epoch: Epoch
    streams: tuple[ReservedStream, ...]
    num_blocks: int
    """D's, of the whole prompt, the cached ones included."""
    tokens: range
    """Positions that D lacks: those before came from its own prefix cache."""
    time_left_s: float

    @property
    def num_cached(self) -> int:
        """Tokens."""
        return self.tokens.start
