"""Counts drafts: how many tokens were proposed, verified and accepted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

MEMORY = 64
"""Tokens that `lately` is, about."""


class DraftCounts(NamedTuple):
    """What became of drafts."""

    num_proposed: int
    """Tokens that were drafted; the budget chose of them."""
    num_verified_at: Sequence[int]
    num_accepted_at: Sequence[int]
    """This and the one before by position in the draft: those that were run, and the right ones."""


class DraftTally:
    def __init__(self) -> None:
        self.num_proposed = 0
        self.acceptance: float | None = None
        """Share of lately verified tokens that were right; None before the first."""
        self._verified, self._accepted = Counter[int](), Counter[int]()
        """Drafts of which so many tokens were verified, and were right."""

    def verified(self, num_drafted: int, num_accepted: int) -> None:
        """Count a draft of which so many tokens were verified, and the first of them right."""
        self._verified[num_drafted] += 1
        self._accepted[num_accepted] += 1
        share, fading = num_accepted / num_drafted, (1 - 1 / MEMORY) ** num_drafted
        was = share if self.acceptance is None else self.acceptance
        self.acceptance = fading * was + (1 - fading) * share

    def counts(self) -> DraftCounts:
        """Counts so far."""
        return DraftCounts(
            self.num_proposed, _by_position(self._verified), _by_position(self._accepted)
        )

    def metrics(self) -> dict[str, float]:
        """Metrics by Prometheus name."""
        counts = self.counts()
        return {
            "draft_acceptance": 0.0 if self.acceptance is None else self.acceptance,
            "proposed_tokens_total": counts.num_proposed,
            **_told("verified_tokens_at_total", counts.num_verified_at),
            **_told("accepted_tokens_at_total", counts.num_accepted_at),
        }


def _by_position(lens: Counter[int]) -> tuple[int, ...]:
    """How many of the drafts that came so far have each position."""
    nums = [lens[length] for length in range(max(lens, default=0), 0, -1)]
    return tuple(accumulate(nums))[::-1]


def _told(name: str, nums: Sequence[int]) -> dict[str, float]:
    return {f'{name}{{position="{at}"}}': num for at, num in enumerate(nums, 1)}
