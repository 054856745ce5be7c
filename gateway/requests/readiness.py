"""What a deployment still lacks, as text for /ready and for the log of `baton serve`.

Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import msgspec

from baton.core.replicas import ReplicaInfo, Role, StartingReplica

Wanted = Mapping[Role, int]
"""Replicas by role, as configured."""


NOBODY: Wanted = MappingProxyType({})


class Missing(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A role with fewer ready replicas than are wanted."""

    role: str
    wanted: int
    ready: int
    waiting_for: str
    causes: tuple[str, ...] = ()
    """Why starts have failed. May name files, so only for operators."""

    def __str__(self) -> str:
        return "; ".join(
            (f"{self.role} {self.ready}/{self.wanted}: {self.waiting_for}", *self.causes)
        )


def missing(
    wanted: Wanted,
    trouble_by_replica: Mapping[ReplicaInfo, str],
    starting: Sequence[StartingReplica],
) -> tuple[Missing, ...]:
    """`trouble_by_replica`: why each known replica accepts nothing; empty: it is ready."""
    found = []
    for role, num_wanted in after_flips(wanted, (*trouble_by_replica, *starting)).items():
        trouble = {it: why for it, why in trouble_by_replica.items() if it.role is role}
        num_ready = sum(not why for why in trouble.values())
        if num_ready >= num_wanted:
            continue
        reasons = [f"{info.replica_id}: {why}" for info, why in trouble.items() if why]
        reasons += [_progress(one) for one in starting if one.role is role]
        num_living = len(trouble) + sum(one.role is role and not one.failure for one in starting)
        reasons += _unheard(num_wanted - num_living)
        text = ", ".join(reasons)
        failed = [one for one in starting if one.role is role and one.failure]
        causes = tuple(f"{one.replica_id}: {one.failure}" for one in failed)
        found.append(
            Missing(role=role, wanted=num_wanted, ready=num_ready, waiting_for=text, causes=causes)
        )
    return tuple(found)


def after_flips(wanted: Wanted, there: Sequence[ReplicaInfo | StartingReplica]) -> Wanted:
    """The wanted replicas by role, after flips: a flipped replica is wanted in its new role."""
    came = Counter(one.role for one in there if one.is_flipped)
    num_flips = came.total()
    return {
        role: max(0, wanted.get(role, 0) + 2 * came[role] - num_flips)
        for role in dict.fromkeys((*wanted, *came))
    }


def _progress(one: StartingReplica) -> str:
    if one.failure:
        return f"{one.replica_id}: failed while {one.stage}"
    done = "" if one.fraction is None else f" {one.fraction:.0%}"
    return f"{one.replica_id}: {one.stage}{done} ({one.stage_s:.0f} s)"


def _unheard(number: int) -> Iterator[str]:
    if number > 0:
        yield f"Ray to start {number} {'process' if number == 1 else 'processes'}"
