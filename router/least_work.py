"""The policy of least work: where the fewest tokens are computed before this request's first.

    cost of a replica = tokens queued there + tokens of this prompt it neither has nor soon will

The decode replica with the least cost wins; requests it already runs count a little, so that equals
are filled evenly. Of equals, one that has more of the prompt; then the request's id decides, by
rendezvous hashing: gateways that see the same spread what they place, and a request that is placed
again ranks them as before. A request that belongs beside another goes there, if there is room. If
the replica lacks no more than `local_prefill_tokens` of the prompt, or there is no prefill pool, it
computes the prompt itself; else the prefill replicas are ranked the same way. What another replica
has cached of it counts as there if fetching it is clearly cheaper than computing it (`pulling.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from baton.router.policy import Placement, PlacementRequest
from baton.router.pulling import Holding, best_source
from baton.router.view import ReplicaView, View

RUNNING_REQUEST_COST = 8
"""Tokens' worth of a request that decodes on a replica: it slows every step a little."""

MAX_PREFILL_CANDIDATES = 2


@dataclass(frozen=True, slots=True)
class LeastWork:
    """The policy drawn above."""

    local_prefill_tokens: int = 64

    def place(self, request: PlacementRequest, view: View, now: float) -> Placement | None:
        """See `PlacementPolicy`. The age of what is known does not matter here."""
        open_decode = [replica for replica in view.decode if replica.is_open]
        beside = _beside(open_decode, request)
        decode = beside or _cheapest(open_decode, request)
        if decode is None:
            return None
        ready = [replica for replica in view.prefill if replica.info.is_ready]
        source = _source(view, request, decode)
        # The first choice has shown that its prompt is there; events may tell of it later.
        num_held = decode.num_soon_tokens if beside else decode.num_cached_tokens
        num_cached = max(num_held, source.num_tokens if source else 0)
        reason = self._reason_for_local(request, decode, num_cached, has_peers=bool(ready))
        ranked: list[ReplicaView] = []
        if not reason:
            ranked = sorted(ready, key=lambda replica: _rank(replica, request))
            source = _source(view, request, ranked[0])
            reason = (
                f"least work: {ranked[0].num_queued_tokens} tokens queued and "
                f"{ranked[0].num_soon_tokens} cached on the prefill replica, "
                f"{decode.num_open} requests open on the decode replica"
            )
        if source is not None:
            reason = f"{reason}; {source.num_tokens} tokens cached on {source.info.replica_id}"
        if beside is None:
            reason += _told_of_equals("decode", open_decode, decode, request)
        if ranked:
            reason += _told_of_equals("prefill", ready, ranked[0], request)
        return Placement(
            decode=decode.info,
            prefill=tuple(r.info.endpoint for r in ranked[:MAX_PREFILL_CANDIDATES]),
            num_prefill_tokens=_num_to_prefill(request, ranked, source),
            source=None if source is None else source.info.endpoint,
            reason=f"beside another choice of this request; {reason}" if beside else reason,
        )

    def _reason_for_local(
        self, request: PlacementRequest, decode: ReplicaView, num_cached: int, *, has_peers: bool
    ) -> str:
        """Why `decode`, which has or gets `num_cached` tokens, computes the prompt; empty: not."""
        if request.local_because:
            return f"{request.local_because}: computed locally"
        if not has_peers:
            return "no prefill replica: computed locally"
        num_missing = request.num_tokens - num_cached
        limit = self.local_prefill_tokens
        if decode.info.epoch == request.near:
            limit = max(limit, decode.info.layout.block_size)  # what no cache ever holds
        if num_missing > limit:
            return ""
        return f"{num_missing} of {request.num_tokens} tokens uncached: computed locally"


def _source(view: View, request: PlacementRequest, taker: ReplicaView) -> Holding | None:
    """The replica that has enough more of the prompt than `taker` to be asked for it."""
    replicas = (
        replica
        for replica in (*view.decode, *view.prefill)
        if replica.num_cached_tokens
        and replica.is_connected
        and replica.info.epoch not in request.lost
    )
    holdings = (
        Holding(replica.info, replica.num_cached_tokens)
        for replica in sorted(replicas, key=lambda replica: _draw(replica, request))
    )
    return best_source(
        holdings, num_held=taker.num_soon_tokens, taker=taker.info.epoch, rates=view.rates
    )


def _num_to_prefill(
    request: PlacementRequest, ranked: Sequence[ReplicaView], source: Holding | None
) -> int:
    if not ranked:
        return 0
    num_pulled = 0 if source is None else source.num_tokens
    return request.num_tokens - max(ranked[0].num_soon_tokens, num_pulled)


def _beside(replicas: Sequence[ReplicaView], request: PlacementRequest) -> ReplicaView | None:
    for replica in replicas:
        if replica.info.epoch == request.near and replica.info.epoch not in request.lost:
            return replica
    return None


def _cheapest(replicas: Sequence[ReplicaView], request: PlacementRequest) -> ReplicaView | None:
    return min(replicas, key=lambda replica: _rank(replica, request), default=None)


def _rank(replica: ReplicaView, request: PlacementRequest) -> tuple[tuple[bool, int, int], bytes]:
    return _cost(replica, request), _draw(replica, request)


def _cost(replica: ReplicaView, request: PlacementRequest) -> tuple[bool, int, int]:
    """The smallest wins; of equal work, who has more of the prompt: the pool computes less."""
    num_has = replica.num_soon_tokens
    busy = replica.num_queued_tokens + RUNNING_REQUEST_COST * replica.num_open
    return replica.info.epoch in request.lost, busy + request.num_tokens - num_has, -num_has


def _draw(replica: ReplicaView, request: PlacementRequest) -> bytes:
    """Fair among all replicas over many requests, and the same each time for one of them."""
    pair = f"{request.request_id} {replica.info.epoch}"
    return blake2b(pair.encode(), digest_size=8).digest()


def _told_of_equals(
    role: str, replicas: Sequence[ReplicaView], chosen: ReplicaView, request: PlacementRequest
) -> str:
    cost = _cost(chosen, request)
    num_equals = sum(_cost(replica, request) == cost for replica in replicas)
    if num_equals == 1:
        return ""
    return f"; drawn by the request's id from {num_equals} equal {role} replicas"
