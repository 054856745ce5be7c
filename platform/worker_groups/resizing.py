"""Decides the number of replicas of each worker group, and which pods to remove.

    more replicas wanted than places    groups grow, the first first, to their maxReplicas
    more places than that               groups shrink, the last first, to their minReplicas: by
                                        replicas whose pods are all empty, each of them named
    Ray's autoscaler is on              only minReplicas moves, between the RayService's own and
                                        maxReplicas: the autoscaler adds, chooses and removes

Pure. A pod in use always stays. Removed pods are always named, since KubeRay would otherwise
choose.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from baton.platform.worker_groups.groups import Hosts, Pod, WorkerGroup

PlacesOf = Callable[[WorkerGroup], int]
"""Replicas of the pool that each replica of a group holds; at least one."""


@dataclass(frozen=True, slots=True)
class Resize:
    """The new size of one group."""

    group: str
    replicas: int
    victims: tuple[str, ...] = ()
    """Pods that go."""


@dataclass(frozen=True, slots=True)
class Verdict:
    resizes: tuple[Resize, ...]
    lacking: int = 0
    """Replicas for which no group may grow."""


def resize(
    groups: Sequence[WorkerGroup],
    wanted: int,
    places_of: PlacesOf,
    pods: Mapping[str, Sequence[Pod]],
    empty: Sequence[Hosts],
) -> Verdict:
    """Resize the groups of one pool. `pods`: of each group, those that do not leave yet. `empty`:
    what of them may go, the best first."""
    spare = sum(group.desired * places_of(group) for group in groups) - wanted
    if spare < 0:
        return _grown(groups, -spare, places_of)
    found: list[Resize] = []
    for group in reversed(groups):
        there = len(pods.get(group.name, ()))
        candidates = [hosts for hosts in empty if hosts.group == group.name]
        # Pods beyond those that it is to have are leaving by somebody else's word, who may mean any
        # of them. Those that KubeRay has yet to make are no reason to want fewer: it may have made
        # them since.
        if there > group.desired * group.num_hosts:
            continue
        most = group.desired - group.min_replicas
        gone = candidates[: min(most, spare // places_of(group))]
        if gone:
            spare -= len(gone) * places_of(group)
            victims = tuple(name for hosts in gone for name in hosts.names)
            found.append(Resize(group.name, group.desired - len(gone), victims))
    return Verdict(tuple(found))


def floors(
    groups: Sequence[WorkerGroup],
    own_floors: Mapping[str, int],
    wanted: int,
    places_of: PlacesOf,
) -> Verdict:
    """Each group's `minReplicas` for one pool where Ray's autoscaler is on, as `replicas` of the
    result. `own_floors`: what a person wants at least."""
    least = {group.name: min(own_floors.get(group.name, 0), group.max_replicas) for group in groups}
    lacking = wanted - sum(least[group.name] * places_of(group) for group in groups)
    for group in groups:
        more = min(group.max_replicas - least[group.name], -(-lacking // places_of(group)))
        if more > 0:
            least[group.name] += more
            lacking -= more * places_of(group)
    changed = (group for group in groups if least[group.name] != group.min_replicas)
    return Verdict(
        tuple(Resize(group.name, least[group.name]) for group in changed), max(lacking, 0)
    )


def best_first(
    empty: Iterable[Hosts],
    busy: Iterable[Pod],
    topology: Callable[[Pod], Sequence[str]],
) -> list[Hosts]:
    """What is empty in the order in which to remove it, so that the others stay near each other:
    what has no node yet, as nothing ever ran there; then from domains with the fewest pods that
    work, the widest domain first."""
    working = Counter(domain for pod in busy for domain in _domains(topology(pod)))

    def order(hosts: Hosts) -> tuple[object, ...]:
        near = [[working[domain] for domain in _domains(topology(pod))] for pod in hosts.pods]
        return (
            all(pod.node for pod in hosts.pods),
            [sum(each) for each in zip(*near, strict=False)],
            hosts.names,
        )

    return sorted(empty, key=order)


def _domains(values: Sequence[str]) -> list[tuple[str, ...]]:
    """A rack is one of its zone: two zones may have racks of one name."""
    return [tuple(values[: place + 1]) for place in range(len(values))]


def _grown(groups: Sequence[WorkerGroup], lacking: int, places_of: PlacesOf) -> Verdict:
    found: list[Resize] = []
    for group in groups:
        more = min(group.max_replicas - group.desired, -(-lacking // places_of(group)))
        if more > 0:
            found.append(Resize(group.name, group.desired + more))
            lacking -= more * places_of(group)
    return Verdict(tuple(found), max(lacking, 0))
