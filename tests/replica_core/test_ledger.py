from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.replica_core.replica_core import TokenLedger


def test_a_token_is_in_flight_until_it_is_delivered_or_discarded() -> None:
    ledger = TokenLedger()
    ledger.sample(10)

    ledger.settle(delivered=6, discarded=1)

    assert (ledger.delivered, ledger.discarded, ledger.in_flight) == (6, 1, 3)


@pytest.mark.parametrize(("delivered", "discarded"), [(4, 0), (0, 4), (2, 2), (-1, 0), (0, -1)])
def test_no_token_leaves_that_was_not_sampled(delivered: int, discarded: int) -> None:
    ledger = TokenLedger()
    ledger.sample(3)

    with pytest.raises(ValueError, match="of 3 tokens in flight"):
        ledger.settle(delivered=delivered, discarded=discarded)

    assert (ledger.delivered, ledger.discarded, ledger.in_flight) == (0, 0, 3)


def test_a_refused_entry_does_not_hide_behind_a_negative_one() -> None:
    ledger = TokenLedger()
    ledger.sample(3)

    with pytest.raises(ValueError, match="delivered=5"):
        ledger.settle(delivered=5, discarded=-5)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9))))
def test_the_books_always_balance(steps: list[tuple[int, int, int]]) -> None:
    ledger = TokenLedger()
    for sampled, delivered, discarded in steps:
        ledger.sample(sampled)
        if delivered + discarded <= ledger.in_flight:
            ledger.settle(delivered=delivered, discarded=discarded)
        assert ledger.sampled == ledger.delivered + ledger.discarded + ledger.in_flight
        assert ledger.in_flight >= 0
