"""Of a test with many rows, those that `make test` runs: the others are `wide`.

A row has a name on each axis, an axis being one `parametrize` or fixture. Of one axis all values
are run; of two, each value of either; of more, each pair of values that occurs. Most faults show
with one value and nearly all others where two meet, while the whole product grows with every axis.
Which rows these are is decided by their places alone, so all workers and all runs choose the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations

FEW = 6
"""So many rows are run whatever they are."""


def covering(rows: Sequence[Sequence[str]]) -> list[bool]:
    """Whether each row is one of those: greedily, the one that adds most."""
    if len(rows) <= FEW:
        return [True] * len(rows)
    points = along_axes(rows)
    strength = 2 if len(points[0]) > 2 else 1
    lacking = [set(combinations(enumerate(point), strength)) for point in points]
    used: Counter[tuple[int, str]] = Counter()
    chosen = [False] * len(rows)
    while any(lacking):
        most = max(map(len, lacking))
        best = min(
            (n for n, parts in enumerate(lacking) if len(parts) == most),
            key=lambda n: sum(used[value] for value in enumerate(points[n])),
        )
        chosen[best] = True
        used.update(enumerate(points[best]))
        found = set(lacking[best])
        for parts in lacking:
            parts -= found
    return chosen


def along_axes(rows: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """The rows without what is the same in all."""
    axes = [column for column in zip(*rows, strict=True) if len(set(column)) > 1]
    return list(zip(*axes, strict=True)) or [("",)] * len(rows)
