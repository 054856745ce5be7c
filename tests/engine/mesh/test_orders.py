"""What the lead tells, as numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.engine.batch.batch import Chunk
from baton.engine.batch.decoding import Decoding
from baton.engine.mesh.orders import (
    BeginDecoding,
    Expect,
    Head,
    Join,
    MoveExperts,
    Pass,
    SendAuxHiddenStates,
    Stop,
    Tally,
    Turn,
    decoding_words,
    expect_words,
    head_words,
    join_words,
    move_words,
    pass_words,
    read_order,
    stop_words,
    tally_words,
    tap_words,
    turn_words,
)

numbers = st.lists(st.integers(0, 2**31), max_size=5).map(tuple)
few = st.integers(0, 5)
chunks = st.builds(Chunk, numbers, st.integers(0, 10**6), numbers, few, few, few)


@given(st.lists(chunks, max_size=5).map(tuple))
def test_a_pass_is_read_as_it_was_told(told: tuple[Chunk, ...]) -> None:
    heard = read_order(tuple(pass_words(told)))

    assert heard == Pass(told)


def test_a_turn_of_a_decoding_is_a_pass_like_any_other() -> None:
    decoding = Decoding([5, 6], [17, 3], [[1, 2], [0]], [3, 1], [0, 2])

    heard = read_order(tuple(pass_words(decoding)))

    assert heard == Pass((Chunk((5,), 17, (1, 2), 1, 3), Chunk((6,), 3, (0,), 1, 1, 2)))


def test_a_decoding_is_begun_as_a_pass_and_goes_on_by_what_is_new() -> None:
    decoding = Decoding([5, 6], [17, 3], [(1, 2), (0,)], [3, 1], [0, 2])

    assert read_order(tuple(decoding_words(decoding))) == BeginDecoding(tuple(decoding))
    for tokens, grown in (
        ((), ()),
        ((7, 8), ((1, (4,)),)),
        ((), ((0, ()), (1, (9, 2)))),
    ):
        words = tuple(turn_words(tokens, grown))
        assert read_order(words) == Turn(tokens, grown)
    for wrong in (words[:-1], (*words, 1, 3, 5)):
        with pytest.raises(ValueError, match=r"words|unpack"):
            read_order(wrong)


def test_what_has_no_chunks() -> None:
    assert read_order(tuple(head_words((3, 32)))) == Head((3, 32))
    assert read_order(tuple(stop_words())) == Stop()
    assert read_order(tuple(join_words())) == Join()
    assert read_order(tuple(expect_words(12))) == Expect(12)
    assert read_order(tuple(tap_words((2, 2, 7)))) == SendAuxHiddenStates((2, 2, 7))


def test_orders_about_experts() -> None:
    assert read_order(tuple(tally_words())) == Tally()
    assert read_order(tuple(move_words(3, (0, 2, 1, 0)))) == MoveExperts(3, (0, 2, 1, 0))


def test_a_pass_of_which_words_are_missing_or_too_many_is_refused() -> None:
    words = tuple(pass_words((Chunk((5, 6, 7), 4, (1, 2), 1, 3),)))

    for wrong in (words[:-1], (*words, 8), words[:4]):
        with pytest.raises(ValueError, match=r"words|unpack"):
            read_order(wrong)


def test_other_words_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown kind: 11"):
        read_order((11,))
