"""Cases of which some that share little are part of every run; all others are `wide`."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import pytest


def with_wide(cases: Iterable[str], far_apart: Collection[str]) -> list[object]:
    """For `parametrize`: all cases, those that are not among the few marked."""
    names = list(cases)
    if unknown := set(far_apart) - set(names):
        raise ValueError(f"no cases are called {sorted(unknown)}")
    return [
        pytest.param(name, marks=[] if name in far_apart else [pytest.mark.wide], id=name)
        for name in names
    ]
