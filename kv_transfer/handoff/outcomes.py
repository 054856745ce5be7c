"""The outcomes of finished transfers, for a peer that asks late. Bounded: old ones are dropped."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from baton.core.ids import Epoch, TransferId
from baton.kv_transfer.handoff.messages import Outcome


@dataclass(frozen=True, slots=True)
class EndedTransfer:
    peer_epoch: Epoch
    outcome: Outcome
    reason: str = ""
    """Why it was aborted."""
    kept: range = range(0)
    """Tokens that came before it was, and stayed in the prefix cache."""


class RecentOutcomes:
    def __init__(self, max_remembered: int) -> None:
        self._max_remembered = max_remembered
        self._ended: OrderedDict[TransferId, EndedTransfer] = OrderedDict()

    def record(self, transfer_id: TransferId, ended: EndedTransfer) -> None:
        self._ended[transfer_id] = ended
        if len(self._ended) > self._max_remembered:
            self._ended.popitem(last=False)

    def get(self, transfer_id: TransferId) -> EndedTransfer | None:
        return self._ended.get(transfer_id)
