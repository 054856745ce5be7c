"""Which blocks of a piece are still to be written."""

from __future__ import annotations

import pytest

from baton.kv_transfer.handoff.slots import Slots


def test_blocks_before_the_first_one_wanted_are_nobodys() -> None:
    slots = Slots(start=2, stop=6, num_planes=1)

    assert slots.claim(0, 0, (10, 11, 12, 13)) == (2, 3)
    slots.record(0, (2, 3))

    assert slots.num_missing == 2
    assert slots.first_missing() == 4


def test_what_is_given_back_may_be_claimed_again_and_what_is_there_may_not() -> None:
    slots = Slots(start=0, stop=4, num_planes=2)
    assert slots.claim(1, 0, (20, 21, 22, 23)) == (0, 1, 2, 3)

    slots.record(1, (0, 1))
    slots.give_back(1, (2, 3))

    assert slots.claim(1, 0, (20, 21, 22, 23)) == (2, 3)
    assert slots.claim(0, 0, (7, 8)) == (0, 1)
    with pytest.raises(ValueError, match="block 1 has arrived before"):
        slots.claim(1, 1, (99, 22))
