"""How matrices are split over tensor-parallel ranks (Shoeybi et al. 2019).

    y = W x     OUTPUTS   each rank has some rows of W, and gets some of y
                INPUTS    each has some columns, and gets a summand of y: all ranks' are added
                NONE      each has all of W

    attention   qkv OUTPUTS (whole heads)  ->  scores, values  ->  out INPUTS      one all-reduce
    feed-forward      gate, up OUTPUTS  ->  activation  ->  down INPUTS            another

Where there are more ranks than KV heads, several have the same head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import accumulate

import torch
from torch import Tensor


class Split(Enum):
    OUTPUTS = auto()
    INPUTS = auto()
    NONE = auto()


@dataclass(frozen=True, slots=True)
class Share:
    """A rank's index among `size` equal shares."""

    rank: int
    size: int

    def span(self, whole: int, own: int) -> slice:
        """The range of this share's `own` rows of `whole`; with more shares than rows, neighbours
        have the same."""
        start = self.rank * whole // self.size // own * own
        return slice(start, start + own)

    def rows(self, stacked: Tensor, whole: Sequence[int], own: Sequence[int]) -> Tensor:
        """The share's rows of each of the stacked matrices, of `whole` rows each; a view of one."""
        starts = accumulate(whole, initial=0)
        parts = [
            stacked[start : start + count][self.span(count, part)]
            for start, count, part in zip(starts, whole, own, strict=False)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def run(self, count: int) -> slice:
        """This share's part of `count` items that all ranks have."""
        return slice(self.rank * count // self.size, (self.rank + 1) * count // self.size)

    def columns(self, matrix: Tensor) -> Tensor:
        """A view."""
        width = matrix.shape[1] // self.size
        return matrix[:, self.rank * width : (self.rank + 1) * width]
