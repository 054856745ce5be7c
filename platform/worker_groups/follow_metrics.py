"""Prometheus metrics of worker groups and reconciliations."""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import get_args

from baton.core.metrics import Counter, Family, Sample, gauge
from baton.platform.worker_groups.account import Account, Cause


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSeen:
    group: str
    role: str
    wanted_places: int
    """Replicas of its role that nodes are wanted for, on whatever group."""
    places: int
    pods: int
    up: int
    busy: int


@dataclass(slots=True)
class FollowMetrics:
    _seen: dict[str, GroupSeen] = field(default_factory=dict)
    _looks: Counter = field(
        default_factory=lambda: Counter(
            "baton_worker_groups_looks_total",
            "Looks at the RayService, by what came of them: ok, away, or the API server's status",
            ["result"],
        )
    )
    _resizes: Counter = field(
        default_factory=lambda: Counter(
            "baton_worker_groups_resizes_total", "Groups whose number was changed", ["group"]
        )
    )

    _patches: Counter = field(
        default_factory=lambda: Counter(
            "baton_worker_groups_patches_total",
            "Patches by kind of object and what came of them: ok, conflict, refused, or away",
            ["object", "result"],
        )
    )

    def patched(self, kind: str, result: str) -> None:
        self._patches.add(1, kind, result)

    def looked(self) -> None:
        self._looks.add(1, "ok")

    def failed(self, status: int | None) -> None:
        self._looks.add(1, str(status) if status else "away")

    def moved(self, group: str) -> None:
        self._resizes.add(1, group)

    def saw(self, seen: GroupSeen) -> None:
        self._seen[seen.group] = seen

    def families(self, account: Account) -> Iterator[Family]:
        yield self._looks.family()
        yield self._resizes.family()
        yield self._patches.family()
        if account.looked_at is not None:
            help = "Of the last look that could read all"
            yield gauge("baton_worker_groups_looked_timestamp_seconds", help, account.looked_at)
        waits = Counts(reason.cause for reason in account.reasons)
        yield Family(
            "baton_worker_groups_waits",
            "gauge",
            "Reasons why groups are not as they are wanted, by cause",
            [Sample({"cause": cause}, float(waits[cause])) for cause in get_args(Cause)],
        )
        groups = list(self._seen.values())
        if not groups:
            return
        yield _family("pods", "Pods that the group is to have", groups, "pods")
        yield _family("up_pods", "Pods that run", groups, "up")
        yield _family("busy_pods", "Pods with something on them", groups, "busy")
        yield _family("places", "Replicas that its pods hold", groups, "places")
        wanted = {seen.role: float(seen.wanted_places) for seen in groups}
        yield Family(
            "baton_worker_groups_wanted_places",
            "gauge",
            "Replicas that there are to be or nodes are asked for, by role",
            [Sample({"role": role}, number) for role, number in wanted.items()],
        )


def _family(name: str, help: str, groups: list[GroupSeen], which: str) -> Family:
    samples = [
        Sample({"group": seen.group, "role": seen.role}, float(getattr(seen, which)))
        for seen in groups
    ]
    return Family(f"baton_worker_group_{name}", "gauge", help, samples)
