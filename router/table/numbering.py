"""Small numbers that stand for replicas, so that facts about many of them form one array.

Numbering   replica -> its number, for as long as it has that
  `- PrefixOverlaps   by number: how many leading blocks of one prompt it has
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from baton.core.ids import Epoch
from baton.router.table.columns import Places


class Numbering:
    def __init__(self) -> None:
        self._number_by_epoch: dict[Epoch, int] = {}
        self.version = 0
        """Changes whenever a number is given or taken."""

    def __iter__(self) -> Iterator[tuple[Epoch, int]]:
        return iter(self._number_by_epoch.items())

    def give(self, epoch: Epoch, number: int) -> None:
        self._number_by_epoch[epoch] = number
        self.version += 1

    def take(self, epoch: Epoch) -> None:
        del self._number_by_epoch[epoch]
        self.version += 1

    def of(self, epochs: Sequence[Epoch]) -> Places:
        """-1 for those that have none."""
        return np.array([self._number_by_epoch.get(epoch, -1) for epoch in epochs], np.intp)


class PrefixOverlaps(NamedTuple):
    """How many leading blocks of one prompt each replica has."""

    numbering: Numbering
    by_number: NDArray[np.uint32]
    """The last is a 0, of those that have no number."""

    def by_epoch(self) -> dict[Epoch, int]:
        """Blocks by replica. Replicas that have none are left out."""
        overlaps = self.by_number
        return {epoch: int(overlaps[n]) for epoch, n in self.numbering if overlaps[n]}
