"""The adapter's memory between reconciliations; empty after a restart.

It is not needed for correctness: it only delays actions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from baton.platform.worker_groups.groups import Pod, WorkerGroup

EMPTY_FOR_S = 30.0
"""Seconds for which a pod must be empty before it is removed."""


@dataclass(slots=True)
class Memory:
    agree: Any = None
    """A document of Serve's, and one of a RayService that has its numbers."""
    _empty_since_s: dict[str, float] = field(default_factory=dict)
    _counts: dict[str, set[int]] = field(default_factory=dict)
    """Replica counts that this adapter may have set, by group: a patch that was not answered may
    have been made, or not."""
    _held_until_s: dict[str, float] = field(default_factory=dict)
    _numbers: Any = None

    def see_pods(self, pods: Iterable[Pod], busy_ips: Iterable[str], now_s: float) -> None:
        busy = frozenset(busy_ips)
        empty = [pod.name for pod in pods if not (pod.ip and pod.ip in busy)]
        self._empty_since_s = {name: self._empty_since_s.get(name, now_s) for name in empty}

    def may_go(self, pod: Pod, now_s: float) -> bool:
        return now_s - self._empty_since_s.get(pod.name, now_s) >= EMPTY_FOR_S

    def see_counts(self, groups: Mapping[str, WorkerGroup], now_s: float, hold_s: float) -> None:
        """A number that somebody else set stays for `hold_s`."""
        for name, group in groups.items():
            if group.replicas not in self._counts.get(name, {group.replicas}):
                self._held_until_s[name] = now_s + hold_s
            self._counts[name] = {group.replicas}

    def sets(self, group: str, replicas: int) -> None:
        """Note a count that is about to be set; to be called before the patch."""
        self._counts.setdefault(group, set()).add(replicas)

    def hold_left_s(self, group: str, now_s: float) -> float:
        return max(self._held_until_s.get(group, now_s) - now_s, 0.0)

    def is_steady(self, numbers: Any) -> bool:
        """Whether these are what the last look saw, too."""
        is_same = bool(numbers == self._numbers)
        self._numbers = numbers
        return is_same
