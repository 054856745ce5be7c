"""The replicas that a decision considered, best first: kept as columns, and built on demand.

    Ranking[place] --> Considered      one replica, with all that was known of it

Most are never asked for: a placement needs the first of them, its regret two numbers of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

from baton.core.replicas import ReplicaInfo, Role
from baton.router.explain.decisions import Considered, DecodeConsidered
from baton.router.table.columns import Numbers

MAX_REPORTED = 8
"""Most candidates in a decision's record, the cheapest first."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Ranking(Sequence[Considered]):
    known: Sequence[tuple[ReplicaInfo, float, float | None]]
    """Each one's `corrected_s`, and when its last word was said: what changes afterwards."""
    decided_s: float
    """The decision's time, by the clock of the last words in `known`."""
    costs: Numbers
    num_held: Numbers
    wait_s: Numbers
    work_s: Numbers
    latency_s: float
    """Seconds that a transfer takes, however short; counts for what a prefill replica computes."""
    fetch_s: Numbers
    """Seconds of fetching that are added to each candidate's work."""
    names: Sequence[str]
    terms: Numbers | None
    """[name, place]"""

    @property
    def first_token_s(self) -> float:
        """Predicted of the first of them, from the decision on."""
        return float(self.wait_s[0]) + float(self.work_s[0]) + self._latency_s(0)

    def _latency_s(self, place: int) -> float:
        latency_s = self.latency_s * (self.known[place][0].role is Role.PREFILL)
        return latency_s + float(self.fetch_s[place])

    def __len__(self) -> int:
        return len(self.known)

    @overload
    def __getitem__(self, place: int) -> Considered: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Considered]: ...
    def __getitem__(self, place: int | slice) -> Considered | Sequence[Considered]:
        if isinstance(place, slice):
            return [self[each] for each in range(*place.indices(len(self)))]
        place = range(len(self))[place]
        info, corrected_s, received_at_s = self.known[place]
        terms = () if self.terms is None else self.terms[:, place].tolist()
        return Considered(
            replica_id=info.replica_id,
            epoch=info.epoch,
            cost=float(self.costs[place]),
            num_held_tokens=int(self.num_held[place]),
            wait_s=float(self.wait_s[place]),
            work_s=float(self.work_s[place]),
            latency_s=self._latency_s(place),
            corrected_s=corrected_s,
            age_s=None if received_at_s is None else self.decided_s - received_at_s,
            terms=dict(zip(self.names, terms, strict=True)),
        )


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class DecodeRanking(Sequence[DecodeConsidered]):
    """The ranking of the replicas that might decode."""

    known: Sequence[tuple[ReplicaInfo, float | None]]
    """And when each one's last word was said."""
    decided_s: float
    num_held: Numbers
    names: Sequence[str]
    terms: Numbers
    """[name, place]; the last row is their sum."""

    def __len__(self) -> int:
        return len(self.known)

    @overload
    def __getitem__(self, place: int) -> DecodeConsidered: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[DecodeConsidered]: ...
    def __getitem__(self, place: int | slice) -> DecodeConsidered | Sequence[DecodeConsidered]:
        if isinstance(place, slice):
            return [self[each] for each in range(*place.indices(len(self)))]
        place = range(len(self))[place]
        info, received_at_s = self.known[place]
        *terms, cost_s = self.terms[:, place].tolist()
        return DecodeConsidered(
            replica_id=info.replica_id,
            epoch=info.epoch,
            cost_s=cost_s,
            num_held_tokens=int(self.num_held[place]),
            age_s=None if received_at_s is None else self.decided_s - received_at_s,
            terms=dict(zip(self.names, terms, strict=True)),
        )
