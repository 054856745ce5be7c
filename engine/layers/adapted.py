"""What adapters (LoRA) add to the outputs of a linear layer, row by row.

    y[t] = W x[t] + U[m] D[m] x[t]        m: the adapter of row t, if it has one

A pass computes rows of several adapters, and of none. Which row has which is told to all layers of
a model at once (`PassAdapters`): a layer is given rows alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from threading import local

from torch import Tensor

from baton.engine.batch.row_adapters import RowAdapters
from baton.kernels.products.low_rank import LowRank, add_low_rank_


class PassAdapters:
    """The adapters of the rows of the present pass: the one that this thread runs, as engines that
    share a model have a thread each."""

    def __init__(self) -> None:
        self.exist = False
        """Whether the model has adapters at all."""
        self._present = local()

    @property
    def rows(self) -> RowAdapters | None:
        """None: no row has one."""
        return getattr(self._present, "rows", None)

    @rows.setter
    def rows(self, rows: RowAdapters | None) -> None:
        self._present.rows = rows


@dataclass(frozen=True, slots=True, eq=False)
class AdapterUpdates:
    """The updates of one linear layer, of all adapters."""

    updates: LowRank
    present: PassAdapters
    takes_outputs: bool = False
    """Whether the layer is given the rows whose outputs are wanted, not all tokens."""

    def add_(self, y: Tensor, x: Tensor) -> Tensor:
        """Add the updates for x [T, K] to y [T, N], in place; returns y."""
        rows = self.present.rows
        if rows is None:
            return y
        numbers = rows.outputs if self.takes_outputs else rows.tokens
        return add_low_rank_(y, x, self.updates, numbers)
