"""Which of the replicas in a view may take a request: those whose word allows it, and did not fail.

    ready      prefill replicas that do not drain       in_time    of these, who is not late
    opened     decode replicas that take one more       but_lost   no earlier attempt failed there

Where nobody is left by the last two, all are.
"""

from __future__ import annotations

from collections.abc import Sequence

from baton.router.placement import PlacementRequest
from baton.router.view import ReplicaView

OVERDUE_S = 0.5
"""A replica whose oldest prompt is later than this is not waited for."""


def ready(replicas: Sequence[ReplicaView], request: PlacementRequest) -> list[ReplicaView]:
    return but_lost([replica for replica in replicas if not replica.is_draining], request)


def opened(replicas: Sequence[ReplicaView], request: PlacementRequest) -> list[ReplicaView]:
    return but_lost([replica for replica in replicas if replica.is_open], request)


def in_time(replicas: list[ReplicaView], now: float) -> list[ReplicaView]:
    return [one for one in replicas if not is_late(one, now)] or replicas


def is_late(replica: ReplicaView, now: float) -> bool:
    return replica.candidate.overdue_s(now) > OVERDUE_S


def but_lost(replicas: list[ReplicaView], request: PlacementRequest) -> list[ReplicaView]:
    return [one for one in replicas if one.info.epoch not in request.lost] or replicas
