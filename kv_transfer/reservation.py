"""What D has set aside for one handoff: enough to open it and to know when it is whole."""

from __future__ import annotations

from dataclasses import dataclass

from baton.core.ids import Epoch, TransferId
from baton.core.kv_layout import KvLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Blocks waiting for the KV of one prompt."""

    transfer_id: TransferId
    sender_epoch: Epoch
    receiver_epoch: Epoch
    layout: KvLayout
    first_block: int
    """Blocks before this one came from D's own prefix cache."""
    num_blocks: int
    """Of the whole prompt, the cached ones included."""
    num_cached: int
    """Tokens."""
    time_left_s: float
