"""A radix tree of prompts' block hashes.

    a b c d e  of 1           a b c     prefix of 2 prompts of 1, and of one of 2
    a b c x    of 2            |- d e
    a b c      of 1            '- x

A look-up takes time in proportion to the edges on its path, not to the number of prompts with a
common prefix. A *number* is a small integer that stands for the owner of a prompt. Compiled if the
library is available (`kernels/cpu/source/names/prefix_tree.cpp`), else in dicts.
"""

from __future__ import annotations

import array
from collections.abc import Iterator
from typing import Protocol

from baton.core.block_hash import BlockNames
from baton.kernels.cpu.library import library_without_torch
from baton.kernels.names.prefix_tree_cpu import CompiledTree


class PrefixTree(Protocol):
    def __bool__(self) -> bool:
        """Whether it has any prompt."""

    def add(self, number: int, names: BlockNames) -> None: ...

    def remove(self, number: int, names: BlockNames) -> None:
        """Remove a prompt that was added."""

    def depths(self, names: BlockNames, num: int) -> array.array[int]:
        """By number: the length of the longest prefix that `names` shares with one of its prompts.
        All numbers are below `num`; an additional 0 at the end is for callers without a number."""

    def num_passed(self, names: BlockNames) -> int:
        """Edges on the path of a look-up."""


def new_prefix_tree() -> PrefixTree:
    found = library_without_torch()
    return ReferenceTree() if found is None else CompiledTree(found)


class _Stretch:
    """An edge of the tree: names without a branch or an end of a prompt between them."""

    def __init__(self, names: BlockNames, num_by_number: dict[int, int], after: _Stretches) -> None:
        self.names = names
        self.num_by_number = num_by_number
        """Number of prompts through this edge, by number."""
        self.after = after

    def enter(self, number: int) -> None:
        self.num_by_number[number] = self.num_by_number.get(number, 0) + 1

    def leave(self, number: int) -> None:
        self.num_by_number[number] -= 1
        if not self.num_by_number[number]:
            del self.num_by_number[number]

    def split(self, num_names: int) -> None:
        """Keep `num_names` names, and move the rest to a new edge below."""
        rest = self.names[num_names:]
        behind = _Stretch(rest, dict(self.num_by_number), self.after)
        self.names = self.names[:num_names]
        self.after = {rest[0]: behind}

    def join(self) -> None:
        """Merge with the edge below, if all prompts continue there."""
        if len(self.after) != 1:
            return
        [behind] = self.after.values()
        if behind.num_by_number == self.num_by_number:
            self.names = BlockNames(self.names.packed + behind.names.packed)
            self.after = behind.after


_Stretches = dict[bytes, _Stretch]
"""Edges by their first name."""


class ReferenceTree:
    """The definition, in dicts."""

    def __init__(self) -> None:
        self._stretches: _Stretches = {}

    def __bool__(self) -> bool:
        return bool(self._stretches)

    def add(self, number: int, names: BlockNames) -> None:
        depth, stretches, num_names = 0, self._stretches, len(names)
        while depth < num_names:
            stretch = stretches.get(first := names[depth])
            if stretch is None:
                stretch = stretches[first] = _Stretch(names[depth:], {}, {})
            elif (num_common := stretch.names.num_common(names, depth)) < len(stretch.names):
                stretch.split(num_common)
            stretch.enter(number)
            depth, stretches = depth + len(stretch.names), stretch.after

    def remove(self, number: int, names: BlockNames) -> None:
        last, depth, stretches, num_names = None, 0, self._stretches, len(names)
        while depth < num_names:
            stretch = stretches[first := names[depth]]
            stretch.leave(number)
            if not stretch.num_by_number:  # nobody goes through those after it, either
                del stretches[first]
                break
            last, depth, stretches = stretch, depth + len(stretch.names), stretch.after
        if last is not None:
            last.join()

    def depths(self, names: BlockNames, num: int) -> array.array[int]:
        found = array.array("I", bytes(4 * (num + 1)))
        for depth, stretch in self._passed(names):
            for number in stretch.num_by_number:
                found[number] = depth
        return found

    def num_passed(self, names: BlockNames) -> int:
        return sum(1 for _ in self._passed(names))

    def _passed(self, names: BlockNames) -> Iterator[tuple[int, _Stretch]]:
        """The edges on the path of a prompt, each with the length of the common prefix at its
        end."""
        depth, stretches, num_names = 0, self._stretches, len(names)
        while depth < num_names and (stretch := stretches.get(names[depth])) is not None:
            num_common = stretch.names.num_common(names, depth)
            depth += num_common
            yield depth, stretch
            if num_common < len(stretch.names):
                return
            stretches = stretch.after
