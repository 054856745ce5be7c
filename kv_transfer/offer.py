"""One transfer as P keeps it: what was promised to D, how much of it is there, who reads it."""

from __future__ import annotations

from dataclasses import dataclass, field

from baton.core.ids import Epoch, TransferId
from baton.core.kv_pool import Holder, HolderKind
from baton.kv_transfer.lease import SenderState, Transfer
from baton.kv_transfer.messages import Outcome
from baton.kv_transfer.pieces import Reading

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
    expires_at: float
    num_held: int = 0
    """Blocks that its source took from the pool."""
    state: SenderState = field(default_factory=SenderState)
    published: list[int]
    """By plane: how many blocks may be read."""
    readings: set[Reading] = field(default_factory=set)
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
