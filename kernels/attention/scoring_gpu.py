"""The settings of a layer that attention kernels are told."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from baton.kernels.attention.scoring import PLAIN, Scoring
from baton.kernels.paging.window import Chunks, Window, last_of, num_first_of, size_of


@dataclass(frozen=True, slots=True)
class ScoringRules:
    scoring: Scoring = PLAIN
    window: Window = None
    sinks: Tensor | None = None
    """[N]: of each query head a score that takes weight and gives no value."""

    @property
    def has_softcap(self) -> bool:
        return self.scoring.softcap is not None

    def numbers(self, width: int) -> tuple[float, float, int]:
        """(scale, soft cap, size of the window), as all kernels take them; 0 stands for none."""
        return self.scoring.scale_of(width), self.scoring.softcap or 0.0, self.window_size

    @property
    def window_size(self) -> int:
        """But for the first tokens."""
        last = last_of(self.window)
        return 0 if last is None else size_of(last)

    @property
    def num_first(self) -> int:
        """Tokens at the beginning that all see."""
        return num_first_of(self.window)

    @property
    def is_chunked(self) -> bool:
        """Whether the window begins where a multiple of its size does."""
        return isinstance(self.window, Chunks)
