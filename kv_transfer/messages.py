"""What D and P say to each other about one transfer, whatever carries it.

    D                               P
      | --- OpenTransfer ---------> |   both epochs, D's layout, the first block D lacks
      | <== KvPiece, layer order == |   each with a checksum per (block, head)
      | --- SettleTransfer -------> |   SEALED or ABORTED; may be repeated, or ask
      | <-- Outcome --------------- |

Block indices count within the prompt, never within a pool.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from baton.core.ids import Epoch, TransferId
from baton.core.kv_layout import KvLayout


class Outcome(StrEnum):
    OPEN = "open"
    SEALED = "sealed"
    """All pieces verified and recorded by D; P has released its references or is about to."""
    ABORTED = "aborted"
    UNKNOWN = "unknown"
    """P holds nothing for this transfer; D may release what it holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransfer:
    transfer_id: TransferId
    sender_epoch: Epoch
    receiver_epoch: Epoch
    layout: KvLayout
    """The receiver's."""
    first_block: int
    """Blocks before this one are in D's own prefix cache, or have arrived already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvPiece:
    """Some consecutive blocks of one layer, all heads."""

    transfer_id: TransferId
    sender_epoch: Epoch
    receiver_epoch: Epoch
    layer: int
    first_block: int
    data: bytes | memoryview
    """[blocks][KV heads][2][block size][head dim]; never changes once the piece exists."""
    checksums: tuple[int, ...]
    """XXH3-64 of each (block, head), in the order of data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettleTransfer:
    transfer_id: TransferId
    sender_epoch: Epoch
    receiver_epoch: Epoch
    outcome: Outcome | None
    """SEALED or ABORTED tells; None asks."""
