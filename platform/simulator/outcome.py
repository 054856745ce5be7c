"""What came of a simulated load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np


class Served(NamedTuple):
    """One prompt's way."""

    ttft_s: float
    """Waited and computed."""
    num_tokens: int
    num_cached: int


@dataclass(slots=True)
class Outcome:
    served: list[Served] = field(default_factory=list)
    rejected: int = 0
    duration_s: float = 0.0
    busy_s: Sequence[float] = ()
    """Of each replica."""

    def serve(self, served: Served) -> None:
        self.served.append(served)

    def ended(self, now: float, busy_s: Sequence[float]) -> None:
        self.duration_s = now
        self.busy_s = busy_s

    def figures(self, slo_ttft_s: float) -> dict[str, float]:
        """What a row of the table says.

        mean_s, p99_s   of wait and prefill, of what was not rejected
        hit             share of the prompts' tokens that were cached where they were computed
        imbalance       the busiest replica's time over the mean replica's
        goodput         share of all requests, the rejected included, with a first token in time
        """
        ttft = np.array([one.ttft_s for one in self.served] or [0.0])
        num_tokens = sum(one.num_tokens for one in self.served)
        busy_s = np.array(self.busy_s)
        num_good = sum(one.ttft_s <= slo_ttft_s for one in self.served)
        return {
            "mean_s": float(ttft.mean()),
            "p99_s": float(np.percentile(ttft, 99)),
            "hit": sum(one.num_cached for one in self.served) / max(num_tokens, 1),
            "imbalance": float(busy_s.max() / busy_s.mean()) if busy_s.any() else 1.0,
            "goodput": num_good / max(len(self.served) + self.rejected, 1),
            "rejected": float(self.rejected),
        }
