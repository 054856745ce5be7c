"""Blocks of prompts on their way: not stored yet where they go, but soon.

    a b c d e  to 1           a b c     through which go 2 prompts to 1, and one to 2
    a b c x    to 2            |- d e
    a b c      to 1            '- x

What prompts begin with alike is one stretch, so a look-up takes as long as it passes stretches,
however many prompts begin alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from baton.core.block_hash import BlockNames
from baton.core.ids import Epoch
from baton.router.columns import Places
from baton.router.numbering import Depths, Numbering


@dataclass(frozen=True, slots=True, eq=False)
class Expected:
    """The blocks of one prompt that a replica will soon have, or has already."""

    names: BlockNames
    epoch: Epoch


class _Stretch:
    """Names between two places where prompts part, or end."""

    __slots__ = ("_numbers", "after", "names", "num_by_number", "num_names")

    def __init__(self, names: BlockNames, num_by_number: dict[int, int], after: _Stretches) -> None:
        self.names = names
        self.num_names = len(names)
        self.num_by_number = num_by_number
        """Prompts that go through it, by the number of the replica they go to."""
        self.after = after
        self._numbers: Places | None = None

    @property
    def numbers(self) -> Places:
        if self._numbers is None:
            self._numbers = np.fromiter(self.num_by_number, np.intp, len(self.num_by_number))
        return self._numbers

    def enter(self, number: int) -> None:
        num = self.num_by_number.get(number, 0)
        self.num_by_number[number] = num + 1
        if not num:
            self._numbers = None

    def leave(self, number: int) -> None:
        self.num_by_number[number] -= 1
        if not self.num_by_number[number]:
            del self.num_by_number[number]
            self._numbers = None

    def split(self, num_names: int) -> None:
        """Keep so many names, and let another stretch come after with the rest."""
        rest = self.names[num_names:]
        behind = _Stretch(rest, dict(self.num_by_number), self.after)
        self.names, self.num_names = self.names[:num_names], num_names
        self.after = {rest[0]: behind}

    def join(self) -> None:
        """Take in the stretch after it, if all go on there."""
        if len(self.after) != 1:
            return
        [behind] = self.after.values()
        if behind.num_by_number == self.num_by_number:
            self.names = BlockNames(self.names.packed + behind.names.packed)
            self.num_names += behind.num_names
            self.after = behind.after


_Stretches = dict[bytes, _Stretch]
"""By the first name."""


class ExpectedBlocks:
    def __init__(self) -> None:
        self._stretches: _Stretches = {}
        self._expected: set[Expected] = set()
        self._numbering = Numbering()
        self._number_by_epoch: dict[Epoch, int] = {}
        self._free_numbers: list[int] = []
        self._num_numbers = 0

    def add(self, names: BlockNames, epoch: Epoch) -> Expected:
        """Until given back to `remove`."""
        expected = Expected(names, epoch)
        self._expected.add(expected)
        number, depth, stretches = self._number(epoch), 0, self._stretches
        num_names = len(names)
        while depth < num_names:
            stretch = stretches.get(first := names[depth])
            if stretch is None:
                stretch = stretches[first] = _Stretch(names[depth:], {}, {})
            elif (num_common := stretch.names.num_common(names, depth)) < stretch.num_names:
                stretch.split(num_common)
            stretch.enter(number)
            depth, stretches = depth + stretch.num_names, stretch.after
        return expected

    def remove(self, expected: Expected) -> None:
        """Safe to repeat."""
        if expected not in self._expected:
            return
        self._expected.remove(expected)
        number, names = self._number(expected.epoch), expected.names
        last, depth, stretches = None, 0, self._stretches
        num_names = len(names)
        while depth < num_names:
            stretch = stretches[first := names[depth]]
            stretch.leave(number)
            if not stretch.num_by_number:  # nobody goes through those after it, either
                del stretches[first]
                break
            last, depth, stretches = stretch, depth + stretch.num_names, stretch.after
        if last is not None:
            last.join()

    def forget(self, epoch: Epoch) -> None:
        """Nothing is on its way to a replica that is gone."""
        for expected in [one for one in self._expected if one.epoch == epoch]:
            self.remove(expected)
        number = self._number_by_epoch.pop(epoch, None)
        if number is not None:
            self._numbering.take(epoch)
            self._free_numbers.append(number)

    def depths(self, names: BlockNames) -> Depths:
        """How many leading blocks of a prompt each replica will have by those on their way."""
        found = np.zeros(self._num_numbers + 1, np.uint32)
        for depth, stretch in self._passed(names):
            found[stretch.numbers] = depth
        return Depths(self._numbering, found)

    def _passed(self, names: BlockNames) -> Iterator[tuple[int, _Stretch]]:
        """Stretches that a prompt goes through, and how deep it is at the end of what it has in
        common with them."""
        depth, stretches = 0, self._stretches
        num_names = len(names)
        while depth < num_names and (stretch := stretches.get(names[depth])) is not None:
            num_common = stretch.names.num_common(names, depth)
            depth += num_common
            yield depth, stretch
            if num_common < stretch.num_names:
                return
            stretches = stretch.after

    def _number(self, epoch: Epoch) -> int:
        number = self._number_by_epoch.get(epoch)
        if number is None:
            if not self._free_numbers:
                self._free_numbers.append(self._num_numbers)
                self._num_numbers += 1
            number = self._number_by_epoch[epoch] = self._free_numbers.pop()
            self._numbering.give(epoch, number)
        return number
