"""A gateway's view of its replicas when it places one request.

    Pool         the replicas of one role, updated by events (`pool.py`)
      `- PoolView      the pool for one request: how much of its prompt each replica has
           `- ReplicaView    one of them

Everything that a policy needs is in the pool's candidates; it sees nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, overload

import numpy as np

from baton.core.replicas import Capacity, ReplicaInfo
from baton.router.cache.kv_index import KvIndex
from baton.router.cache.prompt_names import PromptNames
from baton.router.cache.pulling import PullRates
from baton.router.replicas.candidate import Candidate
from baton.router.replicas.candidates import Candidates
from baton.router.replicas.pool import KnownReplica, Pool
from baton.router.table.columns import Mask, Numbers, Places


class ReplicaView(NamedTuple):
    """The gateway's view of one replica, for one request."""

    replica: KnownReplica
    place: int
    """Its index in its pool."""
    num_cached_tokens: int = 0
    """Leading tokens of this prompt that are in its prefix cache."""
    num_expected_tokens: int = 0
    """Leading tokens of this prompt that other requests placed there bring along, or brought."""

    @property
    def info(self) -> ReplicaInfo:
        return self.replica.info

    @property
    def candidate(self) -> Candidate:
        return self.replica.candidate

    @property
    def capacity(self) -> Capacity | None:
        return self.replica.capacity

    @property
    def is_connected(self) -> bool:
        return self.replica.is_connected

    @property
    def num_soon_tokens(self) -> int:
        return max(self.num_cached_tokens, self.num_expected_tokens)


class PoolView(Sequence[ReplicaView]):
    """Some of a pool's replicas, or all."""

    __slots__ = ("_candidates", "_most_cached", "_soon", "cached", "expected", "places", "pool")

    def __init__(
        self, pool: Pool, cached: Numbers, expected: Numbers, places: Places | None = None
    ) -> None:
        self.pool = pool
        self.places = places
        """Indices in the pool; None: all."""
        self.cached = cached
        """[pool] Leading tokens of this prompt in each one's prefix cache."""
        self.expected = expected
        """[pool] The same of what others placed there bring along."""
        self._most_cached: int | None = None
        self._soon: Numbers | None = None
        self._candidates: tuple[int, Candidates] | None = None
        """The candidates, with the version of the table that they were taken from."""

    def __len__(self) -> int:
        return len(self.pool.replicas if self.places is None else self.places)

    @overload
    def __getitem__(self, place: int) -> ReplicaView: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[ReplicaView]: ...
    def __getitem__(self, place: int | slice) -> ReplicaView | Sequence[ReplicaView]:
        if isinstance(place, slice):
            return [self[each] for each in range(*place.indices(len(self)))]
        places = self.places
        row = range(len(self.pool.replicas))[place] if places is None else int(places[place])
        return ReplicaView(
            self.pool.replicas[row], row, int(self.cached[row]), int(self.expected[row])
        )

    def known(self, places: Iterable[int]) -> list[KnownReplica]:
        """Some of these, whatever they have of the prompt."""
        every, rows = self.pool.replicas, self.places
        if rows is None:
            return [every[place] for place in places]
        return [every[rows[place]] for place in places]

    def __iter__(self) -> Iterator[ReplicaView]:
        return map(self.__getitem__, range(len(self)))

    def place(self, replica: ReplicaView) -> int:
        """The replica's place among these. Raises ValueError if it has none."""
        if self.places is None:
            return replica.place
        places: list[int] = self.places.tolist()
        return places.index(replica.place)

    def where(self, is_wanted: Mask) -> PoolView:
        """The replicas of this view for which it holds; `is_wanted` is `[pool]`."""
        if self.places is None:
            if np.count_nonzero(is_wanted) == len(is_wanted):
                return self
            return self.at(is_wanted.nonzero()[0])
        return self.at(self.places[is_wanted[self.places]])

    def at(self, places: Places) -> PoolView:
        return PoolView(self.pool, self.cached, self.expected, places)

    @property
    def most_cached(self) -> int:
        """Number of leading tokens of the replica with most of the prompt."""
        if self._most_cached is None:
            self._most_cached = (
                int(self.cached.item(self.cached.argmax())) if len(self.cached) else 0
            )
        return self._most_cached

    @property
    def candidates(self) -> Candidates:
        if self.places is None:
            return self.pool.candidates
        table, known = self.pool.table, self._candidates
        if known is None or known[0] != table.version:
            known = self._candidates = table.version, table.at(self.places)
        return known[1]

    @property
    def soon(self) -> Numbers:
        """Leading tokens of this prompt that each has, or will have."""
        if self._soon is None:
            soon = np.maximum(self.cached, self.expected)
            self._soon = soon if self.places is None else soon[self.places]
        return self._soon


NOBODY = PoolView(Pool(), np.zeros(0), np.zeros(0))


NO_PULLS = PullRates(is_enabled=False)


class View(NamedTuple):
    decode: PoolView = NOBODY
    prefill: PoolView = NOBODY
    rates: PullRates = NO_PULLS
    """Costs of fetching KV from one of them to another, and of computing it there."""

    @property
    def most_cached(self) -> int:
        """Number of leading tokens of the replica with most of the prompt."""
        return max(self.decode.most_cached, self.prefill.most_cached)


def look(
    prompt: PromptNames, index: KvIndex, decode: Pool, prefill: Pool, rates: PullRates
) -> View:
    """All replicas, with what each has of the prompt by its own block names."""
    every = prompt.by_each(decode.ways + prefill.ways)
    cached = [index.cached(names) for names in every]
    expected = [index.expected(names) for names in every]
    seen = PoolView(prefill, prefill.tokens(cached), prefill.tokens(expected))
    return View(
        decode=PoolView(decode, decode.tokens(cached), decode.tokens(expected)),
        prefill=seen.where(~prefill.is_away) if prefill.num_away else seen,
        rates=rates,
    )
