"""What becomes of replicas while `baton serve` serves: a line for each that went or came.

decode-ab12 is gone: 1 of 2 decode replicas serve
decode-cd34 has come: 2 of 2 decode replicas serve
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from baton.core.ids import ReplicaId
from baton.core.replicas import Membership, Role

SETTLED_S = 15.0
"""A registry that was started anew has heard from all replicas by then."""


class ReplicaNews:
    def __init__(self, wanted: Mapping[Role, int]) -> None:
        self._wanted = wanted
        self._role_by_replica: Mapping[ReplicaId, Role] | None = None

    def lines(self, known: Membership) -> list[str]:
        """What is new since the last time; of the first time nothing."""
        if known.age_s < SETTLED_S:
            return []
        before = self._role_by_replica
        now = {info.replica_id: info.role for info in known.replicas}
        self._role_by_replica = now
        if before is None:
            return []
        counts = Counter(now.values())

        def told(replica_id: ReplicaId, what: str, role: Role) -> str:
            wanted = self._wanted.get(role, 0)
            return f"{replica_id} {what}: {counts[role]} of {wanted} {role} replicas serve"

        gone = [told(one, "is gone", role) for one, role in before.items() if one not in now]
        come = [told(one, "has come", role) for one, role in now.items() if before.get(one) != role]
        return gone + come
