"""Blocks of prompts that are on their way to a replica: not cached yet, but soon
(`prefix_tree.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from baton.core.block_hash import BlockNames
from baton.core.ids import Epoch
from baton.kernels.names.prefix_tree import PrefixTree, new_prefix_tree
from baton.router.table.numbering import Numbering, PrefixOverlaps


@dataclass(frozen=True, slots=True, eq=False)
class Expected:
    """The blocks of one prompt that a replica will soon have, or has already."""

    names: BlockNames
    epoch: Epoch


class ExpectedBlocks:
    def __init__(self, tree: PrefixTree | None = None) -> None:
        self._tree = tree if tree is not None else new_prefix_tree()
        self._expected: set[Expected] = set()
        self._numbering = Numbering()
        self._number_by_epoch: dict[Epoch, int] = {}
        self._free_numbers: list[int] = []
        self._num_numbers = 0

    def add(self, names: BlockNames, epoch: Epoch) -> Expected:
        """Count blocks as expected until they are given back to `remove`."""
        expected = Expected(names, epoch)
        self._expected.add(expected)
        self._tree.add(self._number(epoch), names)
        return expected

    def remove(self, expected: Expected) -> None:
        """Safe to repeat."""
        if expected in self._expected:
            self._expected.remove(expected)
            self._tree.remove(self._number(expected.epoch), expected.names)

    def forget(self, epoch: Epoch) -> None:
        """Nothing is on its way to a replica that is gone."""
        for expected in [one for one in self._expected if one.epoch == epoch]:
            self.remove(expected)
        number = self._number_by_epoch.pop(epoch, None)
        if number is not None:
            self._numbering.take(epoch)
            self._free_numbers.append(number)

    def overlaps(self, names: BlockNames) -> PrefixOverlaps:
        """How many leading blocks of a prompt each replica will have by those on their way."""
        found = self._tree.depths(names, self._num_numbers)
        return PrefixOverlaps(self._numbering, np.frombuffer(found, np.uint32))

    def _number(self, epoch: Epoch) -> int:
        number = self._number_by_epoch.get(epoch)
        if number is None:
            if not self._free_numbers:
                self._free_numbers.append(self._num_numbers)
                self._num_numbers += 1
            number = self._number_by_epoch[epoch] = self._free_numbers.pop()
            self._numbering.give(epoch, number)
        return number
