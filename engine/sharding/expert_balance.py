"""Plans the placement of a layer's experts from their loads, the number of tokens that each got.

Expert parallelism load balancing (EPLB, DeepSeek-V3, https://arxiv.org/abs/2412.19437): the busiest
experts get copies, which share their load, and the copies are placed so that ranks get similar
loads.

    global         copies of any expert                ->  slots to ranks
    hierarchical   groups of experts to machines       ->  copies within each  ->  slots to ranks

If the router chooses groups of experts first (DeepSeek), a group stays on one machine, so that a
token is sent to few machines. Items are assigned greedily, the largest first, to the least loaded
rank that has a free slot (the longest-processing-time rule). Then the busiest rank swaps slots with
the least busy ones as long as that lowers the larger of both loads.

Copies can make the balance worse if loads happen to fit without them. The result is therefore the
best of three placements: the planned one, one without copies on other ranks, and the present one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace, nsmallest

from baton.engine.mesh.expert_map import ExpertMap

MAX_SWAPS = 1000
"""Bound on the number of swaps. Swapping also ends by itself, as each swap lowers a largest
load."""
MAX_PARTNERS = 3
"""Number of the least busy ranks with which the busiest may swap an expert."""
MIN_GAIN = 0.05
"""Least reduction of the largest load, as a share of the mean load, for which experts are moved.
Smaller changes happen by chance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """The machines that ranks are on, and the groups of experts that the router chooses from."""

    num_machines: int = 1
    num_groups: int = 1

    @property
    def are_used(self) -> bool:
        """Whether groups are assigned to machines: there are several machines, and they can get the
        same number of groups each."""
        return self.num_machines > 1 and self.num_groups % self.num_machines == 0


Ranks = list[list[int]]
"""The experts of each rank."""


def balanced(loads: Sequence[int], now: ExpertMap, machines: Machines) -> ExpertMap:
    """The best placement found, arranged to move few experts; `now` if none is clearly better.
    `loads`: pairs by expert."""
    num_machines = machines.num_machines if machines.are_used else 1
    size, count = now.num_ranks // num_machines, now.slots_per_rank
    planned, plain = [], []
    for experts in by_machine(loads, machines):
        planned += with_copies(loads, experts, size, count)
        plain += without_copies(loads, experts, size, count)
    found = [like(now, ranks, size) for ranks in (planned, plain) if all(ranks)]
    best = min(found, key=lambda each: busiest(each, loads))
    gain = busiest(now, loads) - busiest(best, loads)
    return best if gain > MIN_GAIN * sum(loads) / now.num_ranks else now


def busiest(found: ExpertMap, loads: Sequence[int]) -> float:
    """The load of the busiest rank, in pairs."""
    return max(found.loads_of_ranks(loads))


def by_machine(loads: Sequence[int], machines: Machines) -> Ranks:
    """The experts of each machine: whole groups, the same number on each machine."""
    if not machines.are_used:
        return [list(range(len(loads)))]
    size, num_machines = len(loads) // machines.num_groups, machines.num_machines
    members = [range(group * size, (group + 1) * size) for group in range(machines.num_groups)]
    of_groups = [float(sum(loads[expert] for expert in group)) for group in members]
    dealt = _deal(of_groups, num_machines, machines.num_groups // num_machines)
    return [[expert for group in own for expert in members[group]] for own in dealt]


def without_copies(
    loads: Sequence[int], experts: Sequence[int], num_ranks: int, slots_per_rank: int
) -> Ranks:
    """A placement in which each expert is on one rank. Slots that are left over repeat their rank's
    experts. With fewer experts than ranks, some ranks get none."""
    dealt = _deal([float(loads[expert]) for expert in experts], num_ranks, slots_per_rank)
    every = [[experts[item] for item in own] for own in dealt]
    return [(own * slots_per_rank)[:slots_per_rank] for own in every]


def with_copies(
    loads: Sequence[int], experts: Sequence[int], num_ranks: int, slots_per_rank: int
) -> Ranks:
    """A placement with copies: the expert with the largest load per copy gets another one, until
    all slots are taken; then slots are assigned to ranks."""
    slots = list(experts)
    queue = [(-float(loads[expert]), expert, 1) for expert in slots]
    heapify(queue)
    copies = Counter(slots)
    while len(slots) < num_ranks * slots_per_rank:
        _, expert, count = queue[0]
        slots.append(expert)
        copies[expert] += 1
        heapreplace(queue, (-loads[expert] / (count + 1), expert, count + 1))
    of_slots = [loads[expert] / copies[expert] for expert in slots]
    dealt = _deal(of_slots, num_ranks, slots_per_rank)
    _swap(dealt, of_slots)
    return [[slots[item] for item in own] for own in dealt]


def _deal(weights: Sequence[float], num_packs: int, most: int) -> Ranks:
    """Assign items to packs of at most `most` items: the heaviest first, each to the lightest pack
    with room. Returns the indices of each pack's items."""
    packs: Ranks = [[] for _ in range(num_packs)]
    sums = [0.0] * num_packs
    for item in sorted(range(len(weights)), key=lambda item: (-weights[item], item)):
        open_packs = (pack for pack in range(num_packs) if len(packs[pack]) < most)
        pack = min(open_packs, key=lambda pack: (sums[pack], len(packs[pack]), pack))
        packs[pack].append(item)
        sums[pack] += weights[item]
    return packs


def _swap(packs: Ranks, weights: Sequence[float]) -> None:
    """Swap items between the heaviest pack and one of the lightest as long as both are lighter
    after the swap than the heaviest was before."""
    sums = [sum(weights[item] for item in pack) for pack in packs]
    for _ in range(MAX_SWAPS):
        heavy = max(range(len(packs)), key=sums.__getitem__)
        best = (sums[heavy], heavy, 0, 0)
        for other in nsmallest(MAX_PARTNERS, range(len(packs)), key=sums.__getitem__):
            for mine, item in enumerate(packs[heavy]):
                for theirs, item_of_other in enumerate(packs[other]):
                    less = weights[item] - weights[item_of_other]
                    heavier = max(sums[heavy] - less, sums[other] + less)
                    if less > 0 and heavier < best[0]:
                        best = (heavier, other, mine, theirs)
        after, other, mine, theirs = best
        if after >= sums[heavy] * (1 - 1e-9):
            return
        one, two = packs[heavy][mine], packs[other][theirs]
        packs[heavy][mine], packs[other][theirs] = two, one
        sums[heavy] += weights[two] - weights[one]
        sums[other] += weights[one] - weights[two]


def like(now: ExpertMap, ranks: Ranks, size: int) -> ExpertMap:
    """The map of this placement in which each set of experts goes to the rank that has most of them
    in `now`, and each expert stays in its slot if possible. Sets are exchanged only among the
    `size` ranks of one machine."""
    experts: list[int] = []
    for first in range(0, now.num_ranks, size):
        run = range(first, first + size)
        for rank, own in zip(run, _nearest(now, ranks[first : first + size], run), strict=True):
            experts += _in_place(now.of_rank(rank), own)
    return ExpertMap(tuple(experts), now.num_experts, now.num_ranks)


def _nearest(now: ExpertMap, ranks: Ranks, run: range) -> Ranks:
    """The sets of experts by rank of `run`. Pairs of set and rank with the most experts in common
    are matched first."""
    counts = [Counter(own) for own in ranks]
    pairs = sorted(
        (-(counts[which] & Counter(now.of_rank(rank))).total(), which, rank)
        for which in range(len(ranks))
        for rank in run
    )
    given: dict[int, int] = {}
    taken: set[int] = set()
    for _, which, rank in pairs:
        if rank not in given and which not in taken:
            given[rank] = which
            taken.add(which)
    return [ranks[given[rank]] for rank in run]


def _in_place(now: Sequence[int], own: Sequence[int]) -> list[int]:
    """The experts `own` by slot; those that the rank has `now` keep their slots."""
    left = Counter(own)
    kept: list[int | None] = []
    for expert in now:
        stays = left[expert] > 0
        left[expert] -= stays
        kept.append(expert if stays else None)
    others = left.elements()
    return [next(others) if expert is None else expert for expert in kept]
