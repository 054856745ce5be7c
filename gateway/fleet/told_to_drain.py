"""Which replicas this gateway has told to become empty that have yet to say so themselves.

    add --> told --> its own word that it drains, which holds from then on -----> forgotten
                 --> another word, when all from before it was told are here ---> forgotten

A replica need not say what was over at once, like a change of roles that failed.
"""

from __future__ import annotations

from baton.core.clock import Clock
from baton.core.ids import Epoch
from baton.core.replicas import HEARTBEAT_S
from baton.gateway.fleet.replica_link import LastWord

OLD_WORDS_S = 2 * HEARTBEAT_S
"""Words that come so late were said after it was told."""


class ToldToDrain:
    def __init__(self, clock: Clock) -> None:
        self._told_at_s: dict[Epoch, float] = {}
        self._clock = clock

    def __contains__(self, epoch: object) -> bool:
        return epoch in self._told_at_s

    def add(self, epoch: Epoch) -> None:
        self._told_at_s[epoch] = self._clock()

    def discard(self, epoch: Epoch) -> None:
        self._told_at_s.pop(epoch, None)

    def hear(self, epoch: Epoch, said: LastWord) -> None:
        told_at_s, heard_at_s = self._told_at_s.get(epoch), said.heard_at_s
        if told_at_s is None or said.capacity is None or heard_at_s is None:
            return
        if said.capacity.is_draining or heard_at_s > told_at_s + OLD_WORDS_S:
            self.discard(epoch)
