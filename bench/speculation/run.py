"""Concurrent requests of one engine at a load: times by turn, and how many drafts were accepted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from operator import sub

from baton.engine.engine import Engine
from baton.engine.request.request import Request
from baton.engine.speculation.draft_tally import DraftCounts

STRETCH = 4
"""Steps of an engine in one turn."""
TURNS_OF_BLOCK = 4
"""Turns in a bootstrap block, since the speedups of neighbouring turns are correlated."""
NO_COUNTS = DraftCounts(0, (), ())


@dataclass(slots=True)
class Run:
    """Concurrent requests of one engine, and its times while all of them run."""

    engine: Engine
    requests: Sequence[Request]
    turns: list[tuple[int, float]] = field(default_factory=list, init=False)
    """Tokens and seconds of each turn."""
    num_steps: int = field(default=0, init=False)
    drafts: DraftCounts = field(default=NO_COUNTS, init=False)
    """Counts of drafts, until all requests end."""
    _num_now: int = field(init=False)
    _drafts_before: DraftCounts = field(init=False)

    def __post_init__(self) -> None:
        """Compute the prompts, which are not measured."""
        self._drafts_before = self._counts()
        for request in self.requests:
            self.engine.add(request)
        self.engine.step()
        self._num_now = self._count()

    @property
    def is_full(self) -> bool:
        return self.engine.num_running == len(self.requests)

    def go_on(self) -> None:
        """Run a turn."""
        started, num_before = self.engine.clock(), self._num_now
        for _ in range(STRETCH):
            if not self.is_full:
                break
            self.engine.step()
            self.num_steps += 1
        seconds, self._num_now = self.engine.clock() - started, self._count()
        self.turns.append((self._num_now - num_before, seconds))

    def finish(self) -> Mapping[str, Sequence[int]]:
        """Run to the end; return the output of each request."""
        while self.engine.has_work:
            self.engine.step()
        self.drafts = combined(self._counts(), self._drafts_before, sub)
        return {request.request_id: request.output for request in self.requests}

    def blocks(self) -> list[tuple[int, float]]:
        """Tokens and seconds of each block of so many turns."""
        starts = range(0, len(self.turns), TURNS_OF_BLOCK)
        groups = [self.turns[start : start + TURNS_OF_BLOCK] for start in starts]
        return [(sum(n for n, _ in group), sum(s for _, s in group)) for group in groups]

    def _count(self) -> int:
        return sum(len(request.output) for request in self.requests)

    def _counts(self) -> DraftCounts:
        speculation = self.engine.speculation
        return NO_COUNTS if speculation is None else speculation.counts()


def combined(one: DraftCounts, other: DraftCounts, by: Callable[[int, int], int]) -> DraftCounts:
    """Both counts combined with `by` at each position, also where only one of them has it."""
    at = (
        [by(a, b) for a, b in zip_longest(mine, theirs, fillvalue=0)]
        for mine, theirs in zip(one[1:], other[1:], strict=True)
    )
    return DraftCounts(by(one.num_proposed, other.num_proposed), *at)
