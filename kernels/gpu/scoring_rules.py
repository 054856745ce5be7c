"""What attention kernels are told about a layer."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from baton.kernels.scoring import PLAIN, Scoring


@dataclass(frozen=True, slots=True)
class ScoringRules:
    scoring: Scoring = PLAIN
    window: int | None = None
    """Tokens that a token sees, itself included. None: all before it."""
    sinks: Tensor | None = None
    """[N]: of each query head a score that takes weight and gives no value."""

    @property
    def has_softcap(self) -> bool:
        return self.scoring.softcap is not None

    def numbers(self, width: int) -> tuple[float, float, int]:
        """(scale, soft cap, window), as all kernels take them; 0 stands for none."""
        return self.scoring.scale_of(width), self.scoring.softcap or 0.0, self.window or 0
