"""The placement of a layer's experts.

    slots     | rank 0: 0 1 2 | rank 1: 3 4 5 | ...        as many on each rank
    experts   |         0 1 2 |         2 3 0 | ...        each at least once; copies share its load

A map is an immutable value; moving experts changes to another map.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from baton.core.errors import InvalidConfig


@dataclass(frozen=True)
class ExpertMap:
    """Raises ValueError if an expert has no slot, or ranks have different numbers of slots."""

    experts: tuple[int, ...]
    """Expert in each slot."""
    num_experts: int
    num_ranks: int

    def __post_init__(self) -> None:
        if len(self.experts) % self.num_ranks:
            raise ValueError(f"{len(self.experts)} slots on {self.num_ranks} ranks")
        if set(self.experts) != set(range(self.num_experts)):
            raise ValueError(f"not each of {self.num_experts} experts has a slot: {self.experts}")

    @property
    def slots_per_rank(self) -> int:
        return len(self.experts) // self.num_ranks

    @cached_property
    def slots_by_expert(self) -> Sequence[Sequence[int]]:
        """Slots of each expert, in the order of assigning (token, expert) pairs."""
        found: list[list[int]] = [[] for _ in range(self.num_experts)]
        for slot, expert in enumerate(self.experts):
            found[expert].append(slot)
        return found

    def of_rank(self, rank: int) -> tuple[int, ...]:
        count = self.slots_per_rank
        return self.experts[rank * count : (rank + 1) * count]

    def loads_of_ranks(self, loads: Sequence[int]) -> list[float]:
        """Load of each rank, where copies of an expert share its load evenly."""
        copies = Counter(self.experts)
        return [
            sum(loads[expert] / copies[expert] for expert in self.of_rank(rank))
            for rank in range(self.num_ranks)
        ]

    def imbalance(self, loads: Sequence[int]) -> float:
        """Load of the busiest rank over the mean; 1 is perfect."""
        of_ranks = self.loads_of_ranks(loads)
        total = sum(of_ranks)
        return max(of_ranks) * self.num_ranks / total if total else 1.0


def spread(num_experts: int, num_ranks: int, num_redundant: int = 0) -> ExpertMap:
    """The initial map: consecutive experts per rank; redundant slots hold copies of the next ranks'
    experts. Raises InvalidConfig if a rank would have more slots than there are experts.
    """
    count = num_slots(num_experts, num_ranks, num_redundant)
    experts = []
    for rank in range(num_ranks):
        start = rank * num_experts // num_ranks
        experts += [(start + place) % num_experts for place in range(count)]
    return ExpertMap(tuple(experts), num_experts, num_ranks)


def num_slots(num_experts: int, num_ranks: int, num_redundant: int) -> int:
    """Slots of one rank: its part of the experts, plus redundant ones."""
    count = -(-num_experts // num_ranks) + num_redundant
    if count > num_experts:
        most = num_experts - count + num_redundant
        raise InvalidConfig(
            f"{num_redundant} redundant experts on each of {num_ranks} ranks: of {num_experts} "
            f"experts each has {count - num_redundant} already; {most} more are all there are"
        )
    return count
