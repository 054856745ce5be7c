"""What the lead tells, as numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.engine.batch import Chunk
from baton.engine.decoding import Decoding
from baton.engine.parallel.orders import (
    Head,
    Pass,
    Stop,
    head_words,
    pass_words,
    read_order,
    stop_words,
)

numbers = st.lists(st.integers(0, 2**31), max_size=5).map(tuple)
chunks = st.builds(Chunk, numbers, st.integers(0, 10**6), numbers, st.integers(0, 5))


@given(st.lists(chunks, max_size=5).map(tuple))
def test_a_pass_is_read_as_it_was_told(told: tuple[Chunk, ...]) -> None:
    heard = read_order(tuple(pass_words(told)))

    assert heard == Pass(told)


def test_a_turn_of_a_decoding_is_a_pass_like_any_other() -> None:
    decoding = Decoding([5, 6], [17, 3], [[1, 2], [0]])

    heard = read_order(tuple(pass_words(decoding)))

    assert heard == Pass((Chunk((5,), 17, (1, 2), 1), Chunk((6,), 3, (0,), 1)))


def test_head_and_stop() -> None:
    assert read_order(tuple(head_words((3, 32)))) == Head((3, 32))
    assert read_order(tuple(stop_words())) == Stop()


def test_other_words_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown kind: 9"):
        read_order((9,))
