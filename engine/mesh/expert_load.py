"""The last measured balance of experts' loads over a replica's ranks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(slots=True)
class ExpertLoad:
    """Written by the engine's thread, read by any."""

    max_over_mean: float = 1.0
    """Load of the busiest rank over the mean, averaged over layers."""
    num_looks: int = 0
    num_moved: int = 0
    """Slots that got another expert."""

    def look(self, by_layer: Iterable[float]) -> None:
        found = list(by_layer)
        self.max_over_mean = sum(found) / len(found)
        self.num_looks += 1

    def as_metrics(self) -> dict[str, float]:
        return {
            "expert_load_max_over_mean": self.max_over_mean,
            "expert_load_looks_total": self.num_looks,
            "experts_moved_total": self.num_moved,
        }
