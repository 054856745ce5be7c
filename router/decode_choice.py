"""Which replica decodes a request: the one where that costs least (`decode_costs.py`), or the one
on which another choice of the same request runs, if it has room.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from baton.router.decode_costs import TERMS, asked_to_decode, least_to_decode
from baton.router.eligible import opened
from baton.router.explain.decisions import DecodeConsidered
from baton.router.explain.ranking import MAX_REPORTED, DecodeRanking
from baton.router.placement import PlacementRequest
from baton.router.prompt import drawn
from baton.router.replicas.view import PoolView, ReplicaView, View

FIRST_OUTPUT = 128.0
"""Tokens of an answer, until some are known."""
WEIGHT = 0.01
"""Weight of the last answer in the mean output length."""


class TypicalOutput:
    """How long answers are: a mean over the last hundred or so."""

    def __init__(self) -> None:
        self._num_observed = 0
        self._num_tokens = FIRST_OUTPUT

    def observe(self, num_tokens: int) -> None:
        self._num_observed += 1
        self._num_tokens += (num_tokens - self._num_tokens) * max(WEIGHT, 1.0 / self._num_observed)

    def of(self, request: PlacementRequest) -> float:
        """Expected output tokens of the request; at least one."""
        most = self._num_tokens if request.max_output is None else float(request.max_output)
        return max(min(self._num_tokens, most), 1.0)


class DecodeChoice(NamedTuple):
    replica: ReplicaView
    is_beside: bool
    """Another choice of the request, so that no other was looked at."""
    considered: Sequence[DecodeConsidered] = ()
    """The cheapest: itself first."""


def choose_decode(
    request: PlacementRequest, view: View, now: float, typical: TypicalOutput
) -> DecodeChoice | None:
    """The replica that decodes the request, if any has room."""
    pool = view.decode.pool
    if request.near is not None and request.near not in request.lost:
        row = pool.row(request.near)
        if row is not None and pool.is_open[row]:
            return DecodeChoice(view.decode[row], True)
    open_ = opened(view.decode, request)
    return _cheapest(open_, request, view, now, typical) if len(open_) else None


def _cheapest(
    replicas: PoolView, request: PlacementRequest, view: View, now: float, typical: TypicalOutput
) -> DecodeChoice:
    """Equals by draw: fair among all replicas over many requests, and the same each time for one
    of them."""
    num_output, rate = typical.of(request), view.rates.tokens_per_s
    asked = asked_to_decode(replicas, now, request, num_output, rate)
    order, terms, num_held = least_to_decode(
        asked, replicas, drawn(request.request_id), MAX_REPORTED
    )
    ranking = DecodeRanking(
        known=[(one.info, one.received_at_s) for one in replicas.known(order)],
        decided_s=now,
        num_held=num_held,
        names=TERMS,
        terms=terms,
    )
    return DecodeChoice(replicas[order[0]], False, ranking)
