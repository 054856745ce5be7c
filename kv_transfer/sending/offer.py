"""One transfer of P's: what was promised to D, how much of it is there, who reads it."""

from __future__ import annotations

from dataclasses import dataclass, field

from baton.core.ids import Epoch, TransferId
from baton.core.kv_pool import Holder, HolderKind
from baton.kv_transfer.handoff.lease import SenderState, Transfer
from baton.kv_transfer.handoff.messages import Outcome
from baton.kv_transfer.sending.pieces import BlockRead

_OUTCOMES = {
    Transfer.OPEN: Outcome.OPEN,
    Transfer.ACKED: Outcome.SEALED,
    Transfer.ABORTED: Outcome.ABORTED,
}


@dataclass(slots=True, kw_only=True)
class Offer:
    transfer_id: TransferId
    receiver_epoch: Epoch
    source: Holder
    num_tokens: int
    num_blocks: int
    offered_at: float
    expires_at: float
    state: SenderState = field(default_factory=SenderState)
    computed: list[int]
    """Blocks of each plane that are computed, and held."""
    published: list[int]
    """Blocks of each plane that D may read: some of those that are computed."""
    readings: set[BlockRead] = field(default_factory=set)
    reason: str = ""

    @property
    def outcome(self) -> Outcome:
        return _OUTCOMES[self.state.transfer]

    @property
    def lease(self) -> Holder:
        return Holder(HolderKind.LEASE, self.transfer_id)

    @property
    def quarantine(self) -> Holder:
        return Holder(HolderKind.QUARANTINE, self.transfer_id)
