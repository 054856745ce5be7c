"""What D and P say to each other about one transfer, whatever carries it.

    D                               P
      | --- OpenTransfer ---------> |   both epochs, D's layout, the first block D lacks
      | <== KvPiece, as computed == |   each with a checksum per (block, head); D releases it
      | --- OpenTransfer(only) ---> |   what came with wrong bytes: once more, and nothing else
      | <== KvPiece ================ |
      | --- SettleTransfer -------> |   SEALED or ABORTED; may be repeated, or ask
      | <-- Outcome --------------- |

Block indices count within the prompt, never within a pool.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from baton.core.block_views import num_bytes_of
from baton.core.ids import Epoch, TransferId
from baton.core.kv_layout import KvLayout


def _nothing_to_release() -> None:
    """A piece whose bytes are its own has nothing to release."""


class Outcome(StrEnum):
    OPEN = "open"
    SEALED = "sealed"
    """All pieces verified and recorded by D; P has released its references or is about to."""
    ABORTED = "aborted"
    UNKNOWN = "unknown"
    """P holds nothing for this transfer; D may release what it holds."""


class BlockRange(NamedTuple):
    """Blocks [start, stop) of one plane."""

    plane: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransfer:
    transfer_id: TransferId
    sender_epoch: Epoch
    receiver_epoch: Epoch
    layout: KvLayout
    """The receiver's."""
    first_block: int
    """Counted in the sender's blocks. Those before it D has, or has no use for."""
    only: tuple[BlockRange, ...] = ()
    """Just these, which came with wrong bytes before; empty: everything from `first_block` on."""
    max_piece_bytes: int = 0
    """Set by P for a transport that does not carry pieces itself; 0: as long as P likes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvPiece:
    """Some consecutive blocks of one plane, all heads, as D got them.

    The views show the sender's layout. They stay valid until `release` is called, once, from any
    thread: they may look into memory of the sender's, or into a buffer that is used again.
    """

    transfer_id: TransferId
    sender_epoch: Epoch
    receiver_epoch: Epoch
    plane: int
    first_block: int
    views: Sequence[memoryview]
    """By block: [KV heads][2][block size][head dim] as bytes."""
    checksums: tuple[int, ...]
    """XXH3-64 of each (block, head), in the order of the views."""
    release: Callable[[], None] = _nothing_to_release
    executor: Executor | None = None
    """Whose threads may wait for bytes that have yet to come; None: they are there."""
    transport: str = ""
    """Which way it came, where the transport itself had a choice."""

    @property
    def num_blocks(self) -> int:
        return len(self.views)

    @property
    def num_bytes(self) -> int:
        return num_bytes_of(self.views)


@dataclass(frozen=True, slots=True, kw_only=True)
class SettleTransfer:
    transfer_id: TransferId
    sender_epoch: Epoch
    receiver_epoch: Epoch
    outcome: Outcome | None
    """SEALED or ABORTED tells; None asks."""
