"""How replicas are counted for people."""

from __future__ import annotations

import pytest

from baton.core.replicas import Role, counts_by_role


@pytest.mark.parametrize(
    ("counts", "told"),
    [
        ({}, "no replicas"),  # the pools are asleep
        ({Role.DECODE: 1}, "1 decode replica"),
        ({Role.DECODE: 1, Role.PREFILL: 1}, "1 decode and 1 prefill replicas"),
    ],
)
def test_replicas_are_counted_by_role(counts: dict[Role, int], told: str) -> None:
    assert counts_by_role(counts) == told
