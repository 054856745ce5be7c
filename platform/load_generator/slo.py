"""Objectives by which goodput is counted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from baton.platform.load_generator.outcome import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """Limits in seconds that a good request must meet; None: no limit."""

    ttft_s: float | None = None
    itl_s: float | None = None
    """Seconds that 99 % of a request's gaps between tokens may not exceed."""
    tpot_s: float | None = None
    e2e_s: float | None = None

    @property
    def is_empty(self) -> bool:
        return self == Slo()

    def is_met_by(self, outcome: Outcome) -> bool:
        """Whether `outcome` meets the objectives; a failed request never does."""
        if not outcome.is_complete:
            return False
        kept = (
            (outcome.ttft_s, self.ttft_s),
            (_slowest_but_1_percent(outcome.gaps_s), self.itl_s),
            (outcome.tpot_s, self.tpot_s),
            (outcome.e2e_s, self.e2e_s),
        )
        return all(took is None or limit is None or took <= limit for took, limit in kept)


def _slowest_but_1_percent(gaps_s: Sequence[float]) -> float | None:
    """The 99th percentile by nearest rank: of fewer than 100, the slowest."""
    return sorted(gaps_s)[math.ceil(0.99 * len(gaps_s)) - 1] if gaps_s else None
