"""Moves the experts of one layer between ranks, from one placement to another, between two passes.

    slot     | rank 0: 0 1 2 | rank 1: 3 4 5 |
    from     |         0 1 2 |         2 3 0 |       slot 5 has a copy of expert 0,
    to       |         0 1 2 |         2 3 1 |       and gets one of expert 1, from slot 1

Every rank knows both maps and derives from them which rank sends what to which, so only weights are
exchanged. They are sent in the format they are stored in, one matrix after the other, a part of all
slots at a time. A received part is written only after the same part of all slots has been sent, so
a slot may be sent and overwritten in one move.
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
"""Most bytes that a rank sends, and receives, at once; needs buffers of this size in addition."""


@dataclass(frozen=True, slots=True)
class Move:
    """A copy of one expert's weights between two slots, numbered over all ranks."""

    source: int
    target: int


def moves(old: ExpertMap, new: ExpertMap) -> list[Move]:
    """The moves from `old` to `new`. An expert is copied within its rank if there is a copy of it;
    otherwise from the rank that sends least so far."""
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
    """Move this rank's experts from `old` to `new`. A collective: all ranks of the group call it at
    the same time. Raises RuntimeError if one of them is gone."""
    plans = [
        _Plan.of_rank(moves(old, new), rank, ranks.size, old.slots_per_rank)
        for rank in range(ranks.size)
    ]
    own, most = plans[ranks.rank], max(len(each) for plan in plans for each in plan.by_slot)
    step = max(1, part_bytes // max(1, most))
    for stack in experts_stacks(experts):
        rows = stack.flatten(1).view(torch.uint8)  # [slots, bytes], a view: slots are contiguous
        for start in range(0, rows.shape[1], step):
            part = rows[:, start : start + step]
            # Copied row by row: indexing with a list would copy byte by byte.
            sent = part.new_empty(len(own.sources), part.shape[1])
            for row, slot in zip(sent, own.sources, strict=True):
                row.copy_(part[slot])
            found = ranks.all_to_all(sent, own.sent, own.received)
            for row, slot in zip(found, own.targets, strict=True):
                part[slot].copy_(row)


def experts_stacks(experts: Experts) -> Sequence[Tensor]:
    """All tensors of the experts, [slots, ...] each: matrices, their scales, and biases."""
    biases = [each for each in (experts.gate_up_bias, experts.down_bias) if each is not None]
    return [*stacks_of(experts.gate_up), *stacks_of(experts.down), *biases]


@dataclass(frozen=True, slots=True)
class _Plan:
    """One rank's sends and receives, each in the order of the other rank, then of the moves."""

    sources: list[int]
    """The rank's own slots to send."""
    sent: list[int]
    """Number of slots sent to each rank."""
    targets: list[int]
    """The rank's own slots to write."""
    received: list[int]
    """Number of slots received from each rank."""

    @property
    def by_slot(self) -> tuple[list[int], list[int]]:
        """`sources` and `targets`."""
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
