"""What enters some layers of a model, read beside its outputs (EAGLE-3 drafts by it).

layer 0 | layer 1 | layer 2 | ...
                  ^ tap 2: the residual stream, of the rows whose outputs are wanted
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from baton.kernels.elementwise.add import add
from baton.kernels.elementwise.take_rows import take_rows


class Taps:
    """Whoever runs passes fills it; whoever reads it does so before the next."""

    def __init__(self, layers: Sequence[int]) -> None:
        self.layers = tuple(layers)
        self.is_on = True
        """Whether anybody will read it: if not, passes need not fill it."""
        self.found: list[Tensor] = []  # [S, D] each
        """Hidden states tapped in the last pass, in the order of `layers`."""

    @property
    def features(self) -> Tensor:
        """[S, F] All of them side by side."""
        return torch.cat(self.found, dim=-1)


class Tapping:
    """One pass, of which `rows` [S] are wanted."""

    def __init__(self, taps: Taps, rows: Tensor) -> None:
        """`taps` are on."""
        taps.found = []
        self._taps = taps
        self._rows = rows

    def see(self, layer: int, x: Tensor, residual: Tensor | None) -> None:
        """`layer` is next; the stream is the sum of x and residual [T, D]."""
        num_taps = self._taps.layers.count(layer)
        if num_taps:
            stream = x if residual is None else add(x, residual)
            self._taps.found += [take_rows(stream, self._rows)] * num_taps
