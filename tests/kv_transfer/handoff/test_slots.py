"""Which blocks of a piece are still to be written."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest

from baton.kv_transfer.handoff.slots import Slots


def sums(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}Q", *numbers)


def claimed(slots: Slots, planes: range, first: int, checksums: bytes) -> Sequence[int]:
    """The blocks that are the caller's, if none came before with another checksum."""
    blocks = slots.claim(planes, first, len(checksums) // (8 * len(planes)))
    try:
        slots.agree(planes, first, checksums, blocks)
    except ValueError:
        slots.give_back(planes, blocks)
        raise
    return blocks


def test_blocks_before_the_first_one_wanted_are_nobodys() -> None:
    slots = Slots(start=2, stop=6, num_planes=1)

    assert claimed(slots, range(1), 0, sums(10, 11, 12, 13)) == (2, 3)
    slots.record(range(1), (2, 3))

    assert slots.num_missing == 2
    assert slots.first_missing() == 4


def test_what_is_given_back_may_be_claimed_again_and_what_is_there_may_not() -> None:
    slots = Slots(start=0, stop=4, num_planes=2)
    assert claimed(slots, range(1, 2), 0, sums(20, 21, 22, 23)) == range(4)
    assert slots.first_missing() == 0
    assert not slots.are_alike(range(2), 0, 4)

    slots.record(range(1, 2), (0, 1))
    slots.give_back(range(1, 2), (2, 3))

    assert claimed(slots, range(1, 2), 0, sums(20, 21, 22, 23)) == (2, 3)
    assert claimed(slots, range(1), 0, sums(7, 8)) == range(2)
    with pytest.raises(ValueError, match="block 1 has arrived before"):
        claimed(slots, range(1, 2), 1, sums(99, 22))


def test_the_first_block_that_lacks_a_plane_is_the_first_missing() -> None:
    slots = Slots(start=1, stop=5, num_planes=2)
    for plane, blocks in ((0, range(1, 5)), (1, range(1, 3))):
        slots.record(
            range(plane, plane + 1), claimed(slots, range(plane, plane + 1), 1, sums(*blocks))
        )
    assert (slots.num_missing, slots.first_missing()) == (2, 3)

    slots.record(range(1, 2), claimed(slots, range(1, 2), 4, sums(4)))
    assert claimed(slots, range(1, 2), 3, sums(9)) == range(3, 4)
    assert slots.are_alike(range(2), 1, 4), "claimed is not empty"

    assert (slots.num_missing, slots.first_missing()) == (1, 3), "claimed is not there"
    slots.expect(1, 3, sums(9))
    slots.give_back(range(1, 2), range(3, 4))
    with pytest.raises(ValueError, match="block 3 has arrived before"):
        claimed(slots, range(1, 2), 3, sums(3))
    slots.record(range(1, 2), claimed(slots, range(1, 2), 3, sums(9)))
    assert (slots.num_missing, slots.first_missing()) == (0, 5)


def test_whole_rows_of_several_planes_are_claimed_together_or_not_at_all() -> None:
    slots = Slots(start=2, stop=4, num_planes=3)
    both = sums(12, 13, 22, 23)
    slots.record(range(1), claimed(slots, range(1), 2, sums(2, 3)))

    assert claimed(slots, range(1, 3), 2, both) == range(2, 4)
    slots.record(range(1, 3), range(2, 4))
    assert (slots.num_missing, slots.first_missing()) == (0, 4)
    with pytest.raises(ValueError, match="block 3 has arrived before"):
        claimed(slots, range(1, 3), 2, sums(12, 13, 22, 99))
    assert claimed(slots, range(1, 3), 2, both) == ()

    slots = Slots(start=2, stop=4, num_planes=3)
    claimed(slots, range(1, 2), 3, sums(13))
    with pytest.raises(ValueError, match="of some planes"):
        claimed(slots, range(1, 3), 2, both)
    assert claimed(slots, range(2, 3), 2, both[16:]) == range(2, 4), "nothing was claimed in vain"
