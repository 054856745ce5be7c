"""Counts drafts: how many tokens were proposed, verified and accepted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

MEMORY = 64
"""Time constant of the moving average `acceptance`, in tokens."""


class DraftCounts(NamedTuple):
    """Numbers of draft tokens proposed, verified and accepted so far."""

    num_proposed: int
    """Tokens that the drafter made; the budget selects some of them for verification."""
    num_verified_at: Sequence[int]
    """Verified tokens by position in their draft."""
    num_accepted_at: Sequence[int]
    """Accepted tokens by position in their draft."""


class DraftTally:
    """Counts outcomes of drafts. Belongs to the engine's thread; `counts` is for any."""

    def __init__(self) -> None:
        self.num_proposed = 0
        self.acceptance: float | None = None
        """Share of recently verified tokens that were accepted; None before the first."""
        self._verified, self._accepted = Counter[int](), Counter[int]()
        """Number of drafts, by how many of their tokens were verified and accepted."""

    def verified(self, num_drafted: int, num_accepted: int) -> None:
        """Count a draft of which `num_drafted` tokens were verified and the first `num_accepted`
        accepted."""
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
            **_metrics_by_position("verified_tokens_at_total", counts.num_verified_at),
            **_metrics_by_position("accepted_tokens_at_total", counts.num_accepted_at),
        }


def _by_position(lens: Counter[int]) -> tuple[int, ...]:
    """By position: the number of drafts that are at least that long. `lens`: drafts by length."""
    nums = [lens[length] for length in range(max(lens, default=0), 0, -1)]
    return tuple(accumulate(nums))[::-1]


def _metrics_by_position(name: str, nums: Sequence[int]) -> dict[str, float]:
    return {f'{name}{{position="{at}"}}': num for at, num in enumerate(nums, 1)}
