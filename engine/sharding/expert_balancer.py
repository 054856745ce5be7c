"""Rebalances experts while serving: the lead rank reads their loads every N passes and moves
experts between ranks if that evens out the loads.

    pass      N       read how many pairs went to each expert since the last time
              N + 1   layer 0: plan; if it is worth it, all ranks move its experts
              N + 2   layer 1 ..                         one layer before each pass
              N + L   the last layer; then N passes until the loads are read again

At most one layer's weights are moved before a pass, so requests wait for moments only. A moved
expert has the same weights on its new rank, so outputs do not change.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence

from baton.engine.mesh.expert_load import ExpertLoad
from baton.engine.mesh.orders import move_words, tally_words
from baton.engine.mesh.ranks import MeshGroups, RankGroup, Ranks
from baton.engine.sharding.expert_balance import balanced
from baton.engine.sharding.held_experts import HeldExperts

LOOK_PASSES = 1000
"""Passes between reports of the loads if rebalancing is off."""


class ExpertBalancer:
    """Runs on an engine's lead rank, which tells the other ranks what to move.

    Engines that share experts (data parallelism) count the same passes and sum the same loads, so
    each of them makes the same plan.
    """

    def __init__(self, held: HeldExperts, groups: MeshGroups, rebalance_passes: int) -> None:
        """`rebalance_passes`: number of passes between rebalances; 0 never moves an expert."""
        self.load = ExpertLoad()
        self._held = held
        self._groups = groups
        self._moves = rebalance_passes > 0
        self._period = rebalance_passes or LOOK_PASSES
        self._maps = dict(held.start)
        """Expert maps by layer, other pipeline stages' layers included."""
        self._waiting: deque[tuple[int, Sequence[int]]] = deque()
        """Layers still to be planned, with the loads of their experts."""
        self._num_passes = 0
        """Passes since all layers were planned."""

    def turn(self) -> None:
        """Do the balancing work that is due before a pass. Raises RuntimeError if a rank is
        gone."""
        if self._waiting:
            self._balance(*self._waiting.popleft())
            return
        self._num_passes += 1
        if self._num_passes == self._period:
            self._num_passes = 0
            self._look()

    def _look(self) -> None:
        """Sum the loads of all ranks, report them and queue the layers. Raises RuntimeError if a
        rank is gone."""
        self._tell(tally_words())
        of_engine = added_up(self._held.tally(), self._groups.engine)
        loads = self._by_layer(added_up(of_engine, self._groups.data))
        self.load.look(self._maps[layer].imbalance(each) for layer, each in loads.items())
        if self._moves:
            self._waiting = deque(loads.items())

    def _by_layer(self, words: Sequence[int]) -> dict[int, Sequence[int]]:
        found, at = {}, 0
        for layer, of_layer in self._maps.items():
            found[layer] = words[at : at + of_layer.num_experts]
            at += of_layer.num_experts
        return found

    def _balance(self, layer: int, loads: Sequence[int]) -> None:
        now = self._maps[layer]
        new = balanced(loads, now, self._held.machines)
        if new is now:
            return
        self._tell(move_words(layer, new.experts))
        self._held.move(layer, new.experts)
        self.load.num_moved += sum(a != b for a, b in zip(now.experts, new.experts, strict=True))
        self._maps[layer] = new

    def _tell(self, words: array[int]) -> None:
        if isinstance(self._groups.engine, RankGroup):
            self._groups.engine.send_order(words)


def added_up(words: array[int], ranks: Ranks) -> array[int]:
    """The elementwise sums of all ranks' `words`. A collective: all ranks of the group call it at
    the same time. Raises RuntimeError if one of them is gone."""
    if not isinstance(ranks, RankGroup):
        return words
    return array("q", [sum(each) for each in zip(*ranks.gather(words), strict=True)])
