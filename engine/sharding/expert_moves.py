"""Experts on their way from one map to another, of one layer, between two passes.

    slot     | rank 0: 0 1 2 | rank 1: 3 4 5 |
    from     |         0 1 2 |         2 3 0 |       slot 5 has a copy of expert 0,
    to       |         0 1 2 |         2 3 1 |       and gets one of expert 1, from slot 1

Every rank knows both maps, so all know who sends what to whom: nothing but weights is exchanged, as
they are kept, matrix after matrix, and of all slots some bytes at a time. What comes is put in its
place when as much has left all slots, so one may be sent and overwritten at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from baton.engine.layers.moe import Experts
from baton.engine.mesh.expert_map import ExpertMap
from baton.engine.mesh.ranks import RankGroup
from baton.kernels.experts.moe import stacks_of

PART_BYTES = 64 << 20
"""Bytes that a rank sends, or receives, at once: memory for them must be found beside all else."""


@dataclass(frozen=True, slots=True)
class Move:
    """A move of one expert's weights, by slots of all ranks."""

    source: int
    target: int


def moves(old: ExpertMap, new: ExpertMap) -> list[Move]:
    """Moves within a rank where it has a copy already; of other experts each copy sends as many."""
    count = old.slots_per_rank
    num_sent = [0] * old.num_ranks
    found = []
    for target, (before, expert) in enumerate(zip(old.experts, new.experts, strict=True)):
        if before == expert:
            continue
        rank = target // count
        source = min(
            old.slots_by_expert[expert],
            key=lambda slot: (slot // count != rank, num_sent[slot // count], slot),
        )
        num_sent[source // count] += source // count != rank
        found.append(Move(source, target))
    return found


def move_weights(
    experts: Experts,
    ranks: RankGroup,
    old: ExpertMap,
    new: ExpertMap,
    *,
    part_bytes: int = PART_BYTES,
) -> None:
    """All ranks of the group do this at once. Raises RuntimeError once one of them is gone."""
    plans = [
        _Plan.of_rank(moves(old, new), rank, ranks.size, old.slots_per_rank)
        for rank in range(ranks.size)
    ]
    own, most = plans[ranks.rank], max(len(each) for plan in plans for each in plan.by_slot)
    step = max(1, part_bytes // max(1, most))
    for stack in experts_stacks(experts):
        rows = stack.flatten(1).view(torch.uint8)  # no copy: they lie end to end
        for start in range(0, rows.shape[1], step):
            part = rows[:, start : start + step]
            sent = part.new_empty(len(own.sources), part.shape[1])  # indexing goes byte by byte
            for row, slot in zip(sent, own.sources, strict=True):
                row.copy_(part[slot])
            found = ranks.all_to_all(sent, own.sent, own.received)
            for row, slot in zip(found, own.targets, strict=True):
                part[slot].copy_(row)


def experts_stacks(experts: Experts) -> Sequence[Tensor]:
    """Everything that differs from expert to expert, by slot."""
    biases = [each for each in (experts.gate_up_bias, experts.down_bias) if each is not None]
    return [*stacks_of(experts.gate_up), *stacks_of(experts.down), *biases]


@dataclass(frozen=True, slots=True)
class _Plan:
    """One rank's moves, by its own slots; both in the order of the other rank, then of moves."""

    sources: list[int]
    sent: list[int]
    """Slots sent to each rank."""
    targets: list[int]
    received: list[int]
    """Slots received from each rank."""

    @property
    def by_slot(self) -> tuple[list[int], list[int]]:
        return self.sources, self.targets

    @classmethod
    def of_rank(cls, planned: Sequence[Move], rank: int, num_ranks: int, count: int) -> _Plan:
        outgoing = [move for move in planned if move.source // count == rank]
        incoming = [move for move in planned if move.target // count == rank]
        outgoing.sort(key=lambda move: move.target // count)
        incoming.sort(key=lambda move: move.source // count)
        sent, received = [0] * num_ranks, [0] * num_ranks
        for move in outgoing:
            sent[move.target // count] += 1
        for move in incoming:
            received[move.source // count] += 1
        first = rank * count
        return cls(
            sources=[move.source - first for move in outgoing],
            sent=sent,
            targets=[move.target - first for move in incoming],
            received=received,
        )
