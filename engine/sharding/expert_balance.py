"""Where the experts of a layer had better be, from how many pairs each of them gets.

Expert parallelism load balancing (EPLB, DeepSeek-V3): the busiest experts get copies, which share
their pairs, and slots are dealt out so that all ranks get like loads.

    global         copies of any expert                ->  slots to ranks
    hierarchical   groups of experts to machines       ->  copies within each  ->  slots to ranks

Where a router chooses groups first (DeepSeek), those of a machine stay together, so that a token is
sent to few machines. Everything is the longest processing time first, with as many slots on each
rank; then the busiest rank changes slots with the idlest while that makes both less busy than it.

Copies may make things worse where loads happened to fit without. So what comes out is the best of:
as planned; without copies but of what a rank has anyway; as it is now.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace, nsmallest

from baton.engine.mesh.expert_map import ExpertMap

MAX_SWAPS = 1000
"""Each makes the busiest rank less busy, or one of the busiest: they end by themselves."""
MAX_PARTNERS = 3
"""The least busy ones, with whom the busiest may change an expert."""
MIN_GAIN = 0.05
"""Share of the mean load: for less no expert is moved; so much changes by chance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """Ranks that are near each other, and experts that are chosen together."""

    num_machines: int = 1
    num_groups: int = 1

    @property
    def are_used(self) -> bool:
        return self.num_machines > 1 and self.num_groups % self.num_machines == 0


Ranks = list[list[int]]
"""The experts of each."""


def balanced(loads: Sequence[int], now: ExpertMap, machines: Machines) -> ExpertMap:
    """The best that was found, with as few moves as may be; `now` if nothing is clearly better."""
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
    return max(found.loads_of_ranks(loads))


def by_machine(loads: Sequence[int], machines: Machines) -> Ranks:
    """The experts of each: whole groups, as many on each."""
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
    """One rank has all of an expert; slots that are left over get what their rank has.

    Where there are fewer experts than ranks, some have none.
    """
    dealt = _deal([float(loads[expert]) for expert in experts], num_ranks, slots_per_rank)
    every = [[experts[item] for item in own] for own in dealt]
    return [(own * slots_per_rank)[:slots_per_rank] for own in every]


def with_copies(
    loads: Sequence[int], experts: Sequence[int], num_ranks: int, slots_per_rank: int
) -> Ranks:
    """Another copy of whose copies are busiest, until all slots are taken; then to ranks."""
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
    """Items to packs of at most so many: the heaviest first, each to the lightest pack."""
    packs: Ranks = [[] for _ in range(num_packs)]
    sums = [0.0] * num_packs
    for item in sorted(range(len(weights)), key=lambda item: (-weights[item], item)):
        open_packs = (pack for pack in range(num_packs) if len(packs[pack]) < most)
        pack = min(open_packs, key=lambda pack: (sums[pack], len(packs[pack]), pack))
        packs[pack].append(item)
        sums[pack] += weights[item]
    return packs


def _swap(packs: Ranks, weights: Sequence[float]) -> None:
    """Swap items until the heaviest pack finds no other with which a swap makes both lighter."""
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
    """The map with sets of experts moved to the ranks and slots that have most of them in `now`.

    They change places among `size` ranks, those of one machine.
    """
    experts: list[int] = []
    for first in range(0, now.num_ranks, size):
        run = range(first, first + size)
        for rank, own in zip(run, _nearest(now, ranks[first : first + size], run), strict=True):
            experts += _in_place(now.of_rank(rank), own)
    return ExpertMap(tuple(experts), now.num_experts, now.num_ranks)


def _nearest(now: ExpertMap, ranks: Ranks, run: range) -> Ranks:
    """Sets to ranks, most in common first."""
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
    """The experts by slot; those that are there already keep theirs."""
    left = Counter(own)
    kept: list[int | None] = []
    for expert in now:
        stays = left[expert] > 0
        left[expert] -= stays
        kept.append(expert if stays else None)
    others = left.elements()
    return [next(others) if expert is None else expert for expert in kept]
