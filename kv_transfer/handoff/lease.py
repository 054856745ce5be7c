"""The two sides of a handoff as values: which state a lease is in, and what each event makes of it.

Receiver D: a state and a count.

    RESERVED --FILL_BEGUN--> FILLING --SEAL--> SEALED --ADOPT--> ADOPTED
        |                    |  ^__FILL_BEGUN  |
        `-------ABORT--------+------ABORT------'----------> ABORTED

    num_fills     +1 at FILL_BEGUN, -1 at FILL_ENDED, which may come after an ABORT

    SEALED: every piece is verified, so no fill is in flight. ADOPTED and ABORTED are final: an
    ABORT that comes after the adoption changes nothing, because the blocks are no longer the
    lease's to give up. Blocks of an ABORTED lease are released when no fill writes to them.

Sender P: two independent facts and a count.

    computation   RUNNING --COMPUTED--> DONE
    transfer      OPEN --ACK--> ACKED,  OPEN --ABORT--> ABORTED     the first to come is final
    num_reads     +1 at READ_BEGUN (only while OPEN), -1 at READ_ENDED

    References are released once: (ACKED or ABORTED) and no local read in flight.

Events that may be repeated by a retrying peer (SEAL, ACK, ABORT, COMPUTED) change nothing the
second time. An event that cannot happen raises ValueError: it is a mistake of ours, never a peer's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto


class ReceiverState(Enum):
    RESERVED = auto()
    FILLING = auto()
    SEALED = auto()
    ADOPTED = auto()
    ABORTED = auto()


class ReceiverEvent(Enum):
    FILL_BEGUN = auto()
    FILL_ENDED = auto()
    SEAL = auto()
    ADOPT = auto()
    ABORT = auto()


_RECEIVER_TABLE = {
    (ReceiverState.RESERVED, ReceiverEvent.FILL_BEGUN): ReceiverState.FILLING,
    (ReceiverState.RESERVED, ReceiverEvent.ABORT): ReceiverState.ABORTED,
    (ReceiverState.FILLING, ReceiverEvent.FILL_BEGUN): ReceiverState.FILLING,
    (ReceiverState.FILLING, ReceiverEvent.FILL_ENDED): ReceiverState.FILLING,
    (ReceiverState.FILLING, ReceiverEvent.SEAL): ReceiverState.SEALED,
    (ReceiverState.FILLING, ReceiverEvent.ABORT): ReceiverState.ABORTED,
    (ReceiverState.SEALED, ReceiverEvent.SEAL): ReceiverState.SEALED,
    (ReceiverState.SEALED, ReceiverEvent.ADOPT): ReceiverState.ADOPTED,
    (ReceiverState.SEALED, ReceiverEvent.ABORT): ReceiverState.ABORTED,
    (ReceiverState.ADOPTED, ReceiverEvent.SEAL): ReceiverState.ADOPTED,
    (ReceiverState.ADOPTED, ReceiverEvent.ABORT): ReceiverState.ADOPTED,
    (ReceiverState.ABORTED, ReceiverEvent.ABORT): ReceiverState.ABORTED,
    (ReceiverState.ABORTED, ReceiverEvent.FILL_ENDED): ReceiverState.ABORTED,
}

_FILLS = {ReceiverEvent.FILL_BEGUN: 1, ReceiverEvent.FILL_ENDED: -1}


@dataclass(frozen=True, slots=True)
class ReceiverLease:
    state: ReceiverState = ReceiverState.RESERVED
    num_fills: int = 0
    """Writes to its blocks that are in flight."""

    @property
    def is_released(self) -> bool:
        """Given up, and nothing writes to its blocks any more."""
        return self.state is ReceiverState.ABORTED and self.num_fills == 0


def next_receiver_lease(lease: ReceiverLease, event: ReceiverEvent) -> ReceiverLease:
    """Raises ValueError if `event` cannot happen to `lease`."""
    state = _RECEIVER_TABLE.get((lease.state, event))
    num_fills = lease.num_fills + _FILLS.get(event, 0)
    is_early = event is ReceiverEvent.SEAL and lease.num_fills > 0
    if state is None or num_fills < 0 or is_early:
        raise ValueError(f"{event.name} cannot happen to {lease}")
    return ReceiverLease(state, num_fills)


class Computation(Enum):
    RUNNING = auto()
    DONE = auto()


class Transfer(Enum):
    OPEN = auto()
    ACKED = auto()
    ABORTED = auto()


class SenderEvent(Enum):
    COMPUTED = auto()
    ACK = auto()
    ABORT = auto()
    READ_BEGUN = auto()
    READ_ENDED = auto()


@dataclass(frozen=True, slots=True)
class SenderState:
    computation: Computation = Computation.RUNNING
    transfer: Transfer = Transfer.OPEN
    num_reads: int = 0

    @property
    def is_settled(self) -> bool:
        return self.transfer is not Transfer.OPEN

    @property
    def is_released(self) -> bool:
        """Nothing needs the references any more."""
        return self.is_settled and self.num_reads == 0


def next_sender_state(state: SenderState, event: SenderEvent) -> SenderState:
    """Raises ValueError if `event` cannot happen in `state`."""
    match event:
        case SenderEvent.COMPUTED:
            return replace(state, computation=Computation.DONE)
        case SenderEvent.ACK:
            return state if state.is_settled else replace(state, transfer=Transfer.ACKED)
        case SenderEvent.ABORT:
            return state if state.is_settled else replace(state, transfer=Transfer.ABORTED)
        case SenderEvent.READ_BEGUN if not state.is_settled:
            return replace(state, num_reads=state.num_reads + 1)
        case SenderEvent.READ_ENDED if state.num_reads > 0:
            return replace(state, num_reads=state.num_reads - 1)
    raise ValueError(f"{event.name} cannot happen to {state}")
