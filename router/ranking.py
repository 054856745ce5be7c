"""The replicas that a decision tells of, best first: kept as columns, and spelt when somebody asks.

    Ranking[place] --> Considered      one replica, with all that was known of it

Most are never asked for: a placement needs the first of them, its regret two numbers of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

from baton.core.messages import ReplicaInfo
from baton.router.columns import Numbers
from baton.router.decisions import Considered


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Ranking(Sequence[Considered]):
    infos: Sequence[ReplicaInfo]
    costs: Numbers
    num_held: Numbers
    wait_s: Numbers
    work_s: Numbers
    latency_s: Sequence[float]
    corrected_s: Sequence[float]
    ages_s: Sequence[float | None]
    terms: dict[str, Numbers]
    """By name, of each of them."""

    @property
    def first_token_s(self) -> float:
        """Predicted of the first of them, from the decision on."""
        return float(self.wait_s[0]) + float(self.work_s[0]) + self.latency_s[0]

    def __len__(self) -> int:
        return len(self.infos)

    @overload
    def __getitem__(self, place: int) -> Considered: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Considered]: ...
    def __getitem__(self, place: int | slice) -> Considered | Sequence[Considered]:
        if isinstance(place, slice):
            return [self[each] for each in range(*place.indices(len(self)))]
        info = self.infos[place]
        return Considered(
            replica_id=info.replica_id,
            epoch=info.epoch,
            cost=float(self.costs[place]),
            num_held_tokens=int(self.num_held[place]),
            wait_s=float(self.wait_s[place]),
            work_s=float(self.work_s[place]),
            latency_s=self.latency_s[place],
            corrected_s=self.corrected_s[place],
            age_s=self.ages_s[place],
            terms={name: float(term[place]) for name, term in self.terms.items()},
        )
