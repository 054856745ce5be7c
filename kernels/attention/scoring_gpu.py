"""The settings of a layer's attention that the kernels need."""

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
    """[N]: one additional score per query head, which takes weight and has no value."""

    @property
    def has_softcap(self) -> bool:
        return self.scoring.softcap is not None

    def numbers(self, width: int) -> tuple[float, float, int]:
        """(scale, soft cap, window size) as all kernels take them; 0 means none."""
        return self.scoring.scale_of(width), self.scoring.softcap or 0.0, self.window_size

    @property
    def window_size(self) -> int:
        """Size of the window, without the first tokens; 0: no window."""
        last = last_of(self.window)
        return 0 if last is None else size_of(last)

    @property
    def num_first(self) -> int:
        """Number of tokens at the beginning that are always visible."""
        return num_first_of(self.window)

    @property
    def is_chunked(self) -> bool:
        """Whether windows are chunks, which begin at multiples of their size."""
        return isinstance(self.window, Chunks)
