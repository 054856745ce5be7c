"""What becomes of replicas while `baton serve` serves: a line for each that went, came or flipped.

decode-ab12 is gone: 1 of 2 decode replicas serve
decode-cd34 has come: 2 of 2 decode replicas serve
prefill-ef56 now decodes: 1 prefill and 3 decode replicas serve
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from baton.core.ids import ReplicaId
from baton.core.replicas import Membership, Role
from baton.gateway.requests.readiness import after_flips

SETTLED_S = 15.0
"""By then all replicas have reported to a registry that was started anew."""


@dataclass(frozen=True, slots=True)
class News:
    text: str
    level: int
    """A level of `logging`: a warning, unless somebody has ordered what happened."""


class ReplicaNews:
    def __init__(self, wanted: Mapping[Role, int]) -> None:
        self._wanted = wanted
        self._role_by_replica: Mapping[ReplicaId, Role] | None = None
        """Roles of replicas that serve; one that changes its role still has the former."""

    def since_last_time(self, known: Membership) -> list[News]:
        """What is new; of the first time nothing."""
        if known.age_s < SETTLED_S:
            return []
        before = self._role_by_replica
        now = {info.replica_id: info.role for info in known.replicas}
        if before is None:
            self._role_by_replica = now
            return []
        starting = {one.replica_id for one in known.starting}
        between = {one: role for one, role in before.items() if one in starting - now.keys()}
        self._role_by_replica = {**now, **between}
        wanted = after_flips(self._wanted, (*known.replicas, *known.starting))
        return [*_left_and_joined(before, now, between, wanted), *_flipped(before, now)]


def _left_and_joined(
    before: Mapping[ReplicaId, Role],
    now: Mapping[ReplicaId, Role],
    between: Mapping[ReplicaId, Role],
    wanted: Mapping[Role, int],
) -> Iterator[News]:
    counts = Counter(now.values())

    def told(replica_id: ReplicaId, what: str, role: Role) -> News:
        serve = f"{counts[role]} of {wanted.get(role, 0)} {role} replicas serve"
        return News(f"{replica_id} {what}: {serve}", logging.WARNING)

    for replica_id, role in before.items():
        if replica_id not in now and replica_id not in between:
            yield told(replica_id, "is gone", role)
    for replica_id, role in now.items():
        if replica_id not in before:
            yield told(replica_id, "has come", role)


def _flipped(before: Mapping[ReplicaId, Role], now: Mapping[ReplicaId, Role]) -> Iterator[News]:
    counts = Counter(now.values())
    serve = f"{counts[Role.PREFILL]} prefill and {counts[Role.DECODE]} decode replicas serve"
    for replica_id, role in now.items():
        if before.get(replica_id, role) is not role:
            yield News(f"{replica_id} now {role}s: {serve}", logging.INFO)
