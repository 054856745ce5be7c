"""A prompt's KV on its way from a prefill replica to a decode replica, as the two sides see it.

    P  asked -> granted -> chunk, chunk, ... -> first token            -> released when acked
    D            reserved -> filled as chunks are computed -> sealed -> adopted

The states are those of a live handoff (`baton.kv_transfer.handoff.lease`). KV travels while it is
computed, chunk by chunk; what a decode replica receives comes one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from baton.core.kv_pool import Holder, HolderKind
from baton.core.messages import PrefillRequest
from baton.core.replicas import ReplicaAddress
from baton.engine.request.request import Request
from baton.kv_transfer.handoff.lease import (
    ReceiverEvent,
    ReceiverLease,
    ReceiverState,
    SenderEvent,
    SenderState,
    next_receiver_lease,
    next_sender_state,
)
from baton.platform.simulator.fleet.turns import Turn


@dataclass(slots=True, eq=False)
class Handoff:
    turn: Turn
    gateway: int
    message: PrefillRequest
    peer: ReplicaAddress
    """P."""
    others: tuple[ReplicaAddress, ...]
    """Prefill replicas to be asked if that one can not."""
    request: Request | None = None
    """The engine's request at P, once it has admitted the prompt."""
    sender: SenderState = field(default_factory=SenderState)
    lease: ReceiverLease | None = None
    """D's lease; None until it has reserved blocks."""
    num_fresh_blocks: int = 0
    """Blocks that the lease took from D's pool."""
    num_sent: int = 0
    """Tokens, those included that D had."""
    arrives_s: float = 0.0
    """Time at which the last of what was sent is there."""
    is_given_up: bool = False

    @property
    def holder(self) -> Holder:
        return Holder(HolderKind.LEASE, self.message.transfer_id)

    @property
    def num_computed(self) -> int:
        """Tokens, at P."""
        return 0 if self.request is None else self.request.num_computed

    @property
    def num_tokens(self) -> int:
        return len(self.message.prompt)

    @property
    def is_reserved(self) -> bool:
        """Nothing of it has come yet."""
        return self.lease is not None and self.lease.state is ReceiverState.RESERVED

    @property
    def is_open(self) -> bool:
        """Blocks are kept for it at D, or filled."""
        return self.lease is not None and self.lease.state in (
            ReceiverState.RESERVED,
            ReceiverState.FILLING,
        )

    def receiver_hears(self, event: ReceiverEvent) -> None:
        assert self.lease is not None
        self.lease = next_receiver_lease(self.lease, event)

    def sender_hears(self, event: SenderEvent) -> None:
        self.sender = next_sender_state(self.sender, event)
