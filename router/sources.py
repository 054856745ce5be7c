"""The replica whose cache spares another one a part of a prompt."""

from __future__ import annotations

from baton.router.placement import PlacementRequest
from baton.router.prompt import drawn, mixed
from baton.router.pulling import Holding, best_source
from baton.router.view import ReplicaView, View


def source_for(taker: ReplicaView, view: View, request: PlacementRequest) -> Holding | None:
    """The replica that has enough more of the prompt than `taker` to be asked for it."""
    draw = drawn(request.request_id)
    replicas = (
        replica
        for replica in (*view.decode, *view.prefill)
        if replica.num_cached_tokens
        and replica.is_connected
        and replica.info.epoch not in request.lost
    )
    holdings = (
        Holding(replica.info, replica.num_cached_tokens)
        for replica in sorted(replicas, key=lambda replica: mixed(draw, replica.candidate.draw))
    )
    return best_source(
        holdings, num_held=taker.num_soon_tokens, taker=taker.info.epoch, rates=view.rates
    )


def num_has(replica: ReplicaView, source: Holding | None) -> int:
    """Leading tokens of the prompt that it has, will have or can fetch."""
    return max(replica.num_soon_tokens, source.num_tokens if source else 0)
