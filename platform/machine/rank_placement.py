"""Assigns ranks to GPUs so that those that communicate most get the best links. Pure.

    devices   as they were given      0    1    2    3        NVLink joins 0-2 and 1-3
    ranks     tensor 2, pipeline 2      0    2    1    3        so 0-1 and 2-3 are tensor groups

Axes count in the order of their traffic. Of two placements, the better one has the better worst
link within tensor groups, then the better links in total, then the same for the next axis. Pipeline
stages communicate with their neighbours, other groups all to all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations, pairwise, permutations
from math import fsum

from baton.engine.mesh.mesh import Axis, Mesh
from baton.platform.machine.link_matrix import slowness

BY_TALK = (Axis.TENSOR, Axis.CONTEXT, Axis.EXPERT, Axis.DATA, Axis.PIPELINE)
MAX_TRIED_ALL = 8
"""Devices for which every placement is tried: 7! of them, as the lead stays where it is."""
MAX_TRIED = 20_000
"""Exchanges of two that are tried, of more devices."""

Links = Sequence[Sequence[str]]
"""Kind of link between each two devices; see platform/machine/link_matrix.py."""
Slowness = Sequence[Sequence[float]]
Pairs = list[tuple[int, int]]
"""The pairs of ranks that talk to each other, of one axis."""
Cost = tuple[tuple[float, float], ...]


def place(mesh: Mesh, links: Links) -> tuple[int, ...]:
    """The device of each rank. Rank 0 has the first; none is worse than to leave all as they
    are."""
    devices = tuple(range(mesh.size))
    if len({links[one][other] for one, other in permutations(devices, 2)}) < 2:
        return devices
    axes, slow = axis_pairs(mesh), slownesses(links)
    found: Iterable[tuple[int, ...]]
    if mesh.size <= MAX_TRIED_ALL:  # the first of them is as it is: ties leave it so
        found = ((0, *rest) for rest in permutations(devices[1:]))
    else:
        found = (_exchanged(axes, slow, each) for each in (devices, _greedy(axes, slow)))
    return min(found, key=lambda placement: placement_cost(axes, slow, placement))


def slownesses(links: Links) -> Slowness:
    return [[slowness(link) for link in row] for row in links]


def links_by_axis(mesh: Mesh, links: Links, placement: Sequence[int]) -> dict[Axis, list[str]]:
    """The kinds of links that ranks of an axis talk over, best first; of axes with several."""
    found: dict[Axis, list[str]] = {}
    for axis, pairs in zip(BY_TALK, axis_pairs(mesh), strict=True):
        if pairs:
            kinds = {links[placement[one]][placement[other]] for one, other in pairs}
            found[axis] = sorted(kinds, key=slowness)
    return found


def links_told(by_axis: Mapping[Axis, Sequence[str]]) -> str:
    return ", ".join(f"{axis.value} over {' and '.join(kinds)}" for axis, kinds in by_axis.items())


def axis_pairs(mesh: Mesh) -> list[Pairs]:
    """Pairs of ranks that talk, for each axis of `BY_TALK`; axes of one rank have none."""
    return [list(_pairs(mesh, axis)) for axis in BY_TALK]


def _pairs(mesh: Mesh, axis: Axis) -> Iterator[tuple[int, int]]:
    for group in dict.fromkeys(mesh.members(axis, rank) for rank in range(mesh.size)):
        yield from pairwise(group) if axis is Axis.PIPELINE else combinations(group, 2)


def placement_cost(axes: Sequence[Pairs], slow: Slowness, placement: Sequence[int]) -> Cost:
    """The cost to minimise: for each axis its worst link, then all links."""
    links = [[slow[placement[one]][placement[other]] for one, other in pairs] for pairs in axes]
    return tuple((max(each, default=0.0), fsum(each)) for each in links)


def _greedy(axes: Sequence[Pairs], slow: Slowness) -> tuple[int, ...]:
    """A greedy placement: each rank on the device nearest to the ranks it communicates with
    most."""
    placement = [0]
    free = set(range(1, len(slow)))
    while free:
        rank = len(placement)
        partners = [[one for one, other in pairs if other == rank] for pairs in axes]

        def farness(device: int, partners: list[list[int]] = partners) -> tuple[list[float], int]:
            sums = [sum(slow[placement[one]][device] for one in each) for each in partners]
            return sums, device

        placement.append(min(free, key=farness))
        free.remove(placement[-1])
    return tuple(placement)


def _exchanged(
    axes: Sequence[Pairs], slow: Slowness, placement: tuple[int, ...]
) -> tuple[int, ...]:
    """Swap pairs of devices while that lowers the cost."""
    best, cost = list(placement), placement_cost(axes, slow, placement)
    num_tried, is_better = 0, True
    while is_better and num_tried < MAX_TRIED:
        is_better = False
        for one, other in combinations(range(1, len(best)), 2):
            best[one], best[other] = best[other], best[one]
            new = placement_cost(axes, slow, best)
            num_tried += 1
            if new < cost:
                cost, is_better = new, True
            else:
                best[one], best[other] = best[other], best[one]
    return tuple(best)
