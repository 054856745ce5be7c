"""Auxiliary hidden states: the inputs of some layers, captured in addition to outputs (for
EAGLE-3).

layer 0 | layer 1 | layer 2 | ...
                  ^ tap 2: the residual stream, for the rows whose outputs are wanted
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from baton.kernels.elementwise.add import add
from baton.kernels.elementwise.take_rows import take_rows


class AuxHiddenStates:
    """The inputs of some layers (`taps`) in the last pass. The runner fills it; read it before the
    next pass."""

    def __init__(self, layers: Sequence[int]) -> None:
        self.layers = tuple(layers)
        self.is_on = True
        """Whether it will be read; otherwise passes skip it."""
        self.found: list[Tensor] = []  # [S, D] each
        """Hidden states captured in the last pass, in the order of `layers`."""

    @property
    def features(self) -> Tensor:
        """[S, F] All of them, concatenated."""
        return torch.cat(self.found, dim=-1)


class AuxCapture:
    """Captures `rows` [S] of the auxiliary hidden states in one pass."""

    def __init__(self, taps: AuxHiddenStates, rows: Tensor) -> None:
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
