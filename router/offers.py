"""Finds the prompt, among those waiting for other replicas, that gains most at an idle replica.

    offered   the first few of each line; of those, the ones that would wait longest otherwise
    gain      time until it would be done in its line - work here - delay of the waiting prompts
              through additional work here

Compiled if the library is available and can look into the replica's cache
(`kernels/cpu/source/routing/offers.cpp`): it chooses the same prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import accumulate, islice
from typing import NamedTuple

import numpy as np

from baton.kernels.cpu.library import library_without_torch
from baton.kernels.routing import offers_cpu as compiled
from baton.router.cache.matches import Lookup
from baton.router.replicas.candidate import LATE_S, Candidate, Waiting
from baton.router.replicas.candidates import Candidates, works_s
from baton.router.table.columns import Numbers, Places

MAX_OFFERED = 8
"""Prompts at the head of each line that are offered to a candidate that has none of its own."""

MAX_LOOKED_AT = 128
"""The most offered prompts that are looked up: those that would wait longest otherwise."""

LOOKED_AT = 8
"""Offered prompts that are looked up first where nothing is compiled; then each time twice as many,
only if one of them could gain more."""

Usable = Callable[[Sequence[Waiting], Candidate], Sequence[int]]
"""How many leading tokens of each prompt in line a candidate need not compute."""


class _Offered(NamedTuple):
    """Some of those who wait; a row for each."""

    waiting: Sequence[Waiting]
    over_s: Numbers
    """When each would be over in its line, after those before it."""
    work_s: Numbers
    """Seconds that it takes there."""
    order: Places
    """Places of those that would wait longest first."""


class Offers:
    """Offers at one moment to replicas with credit and an empty line."""

    def __init__(self, candidates: Candidates, num_waiting: int, now: float) -> None:
        """`num_waiting`: prompts in line, for whomever."""
        self.now = now
        self._candidates = candidates
        self._crowd = num_waiting / len(candidates)

    def number_for(self, candidate: Candidate, lookup: Lookup) -> int | None:
        """The number of the prompt in another's line that gains most, by compiled code; -1: none
        gains. None where nothing is compiled."""
        found = library_without_torch()
        if found is None:
            return None
        candidates, line = self._candidates, candidate.columns.line
        place = compiled.best_offer(
            found,
            (
                *(self.now, LATE_S, candidate.busy_s(self.now), self._crowd),
                *(*candidate.speed.pace, lookup.block_size),
            ),
            compiled.Offered(
                candidates.columns.rows,
                candidates.places,
                len(candidates),
                line.addresses,
                line.facts,
                MAX_OFFERED,
                MAX_LOOKED_AT,
            ),
            lookup.blocks,
        )
        return place if place < 0 else line.number(place)

    def best_for(self, candidate: Candidate, usable: Usable) -> Waiting | None:
        """The prompt in another line that gains most, after the costs of all others; the earlier
        one on a tie. The definition.

        More work here than there delays all waiting prompts. Those that would wait longest are
        looked up first, as no prompt can gain more than its whole wait.
        """
        offered, busy_s = self._found, candidate.busy_s(self.now)
        best, best_s = -1, busy_s
        start, num = 0, LOOKED_AT
        while start < len(offered.waiting):
            places = offered.order[start : start + num]
            over_s = offered.over_s[places]
            if over_s[0] <= busy_s or over_s[0] < best_s:
                break
            every = [offered.waiting[place] for place in places.tolist()]
            num_held = np.array(usable(every, candidate), float)
            num_tokens = np.array([waiting.prompt.num_tokens for waiting in every], float)
            work_s = works_s(candidate.speed.pace, num_tokens, num_held)
            extra_s = np.maximum(work_s - offered.work_s[places], 0.0)
            gain_s = over_s - work_s - extra_s * self._crowd
            most_s = gain_s.item(gain_s.argmax())
            place = min(places[gain_s == most_s].tolist())
            if most_s > best_s or (most_s == best_s and 0 <= place < best):
                best, best_s = place, most_s
            start, num = start + num, 2 * num
        return None if best < 0 else offered.waiting[best]

    @cached_property
    def _found(self) -> _Offered:
        """Computed once, if at all, however many candidates ask."""
        offered: list[Waiting] = []
        found: list[float] = []
        works: list[float] = []
        places = self._candidates.num_waiting.nonzero()[0]
        busy_s = self._candidates.busy_s(self.now).take(places).tolist()
        for place, before_s in zip(places.tolist(), busy_s, strict=True):
            candidate = self._candidates[place]
            offered += candidate.waiting[:MAX_OFFERED]
            works += (works_s := candidate.works_s[:MAX_OFFERED])
            found += islice(accumulate(works_s, initial=before_s), 1, None)
        over_s, work_s = np.array(found), np.array(works)
        order = (-over_s).argsort(kind="stable")
        if len(offered) > MAX_LOOKED_AT:
            longest, order = order[:MAX_LOOKED_AT], np.arange(MAX_LOOKED_AT)
            offered = [offered[place] for place in longest.tolist()]
            over_s, work_s = over_s[longest], work_s[longest]
        return _Offered(offered, over_s, work_s, order)
