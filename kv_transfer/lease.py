"""The two sides of a handoff as values: which state a lease is in, and what each event makes of it.

Receiver D:

    RESERVED --FILL--> FILLING --SEAL--> SEALED --ADOPT--> ADOPTED
        |              |  ^__FILL        |
        `----ABORT-----+------ABORT------'----------> ABORTED

    SEALED: every piece is verified. ADOPTED and ABORTED are final: an ABORT that comes after the
    adoption changes nothing, because the blocks are no longer the lease's to give up.

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
    FILL = auto()
    SEAL = auto()
    ADOPT = auto()
    ABORT = auto()


_RECEIVER_TABLE = {
    (ReceiverState.RESERVED, ReceiverEvent.FILL): ReceiverState.FILLING,
    (ReceiverState.RESERVED, ReceiverEvent.ABORT): ReceiverState.ABORTED,
    (ReceiverState.FILLING, ReceiverEvent.FILL): ReceiverState.FILLING,
    (ReceiverState.FILLING, ReceiverEvent.SEAL): ReceiverState.SEALED,
    (ReceiverState.FILLING, ReceiverEvent.ABORT): ReceiverState.ABORTED,
    (ReceiverState.SEALED, ReceiverEvent.SEAL): ReceiverState.SEALED,
    (ReceiverState.SEALED, ReceiverEvent.ADOPT): ReceiverState.ADOPTED,
    (ReceiverState.SEALED, ReceiverEvent.ABORT): ReceiverState.ABORTED,
    (ReceiverState.ADOPTED, ReceiverEvent.SEAL): ReceiverState.ADOPTED,
    (ReceiverState.ADOPTED, ReceiverEvent.ABORT): ReceiverState.ADOPTED,
    (ReceiverState.ABORTED, ReceiverEvent.ABORT): ReceiverState.ABORTED,
}


def next_receiver_state(state: ReceiverState, event: ReceiverEvent) -> ReceiverState:
    """Raises ValueError if `event` cannot happen in `state`."""
    try:
        return _RECEIVER_TABLE[state, event]
    except KeyError:
        raise ValueError(f"{event.name} cannot happen to a lease that is {state.name}") from None


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
