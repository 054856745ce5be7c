"""The score function of a layer's attention."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoring:
    """q.k times `scale`, then soft-capped."""

    scale: float | None = None
    """None: one over the root of the head width."""
    softcap: float | None = None
    """Scores become  softcap * tanh(score / softcap), so none exceeds it."""

    def scale_of(self, width: int) -> float:
        """The scale for heads of this width."""
        return float(width**-0.5) if self.scale is None else self.scale


PLAIN = Scoring()
