"""What stood behind the same tokens in a text, compiled and by the definition."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from random import Random

import pytest

from baton.kernels.cpu.library import library
from baton.kernels.drafting.look_up import LookUp
from baton.kernels.drafting.token_text import (
    GAP,
    TAIL,
    ReferenceText,
    TokenText,
    common_suffix,
)
from baton.kernels.drafting.token_text_cpu import CompiledText

found = library()
TEXTS: Sequence[Callable[[], TokenText]] = (
    (ReferenceText,) if found is None else (ReferenceText, partial(CompiledText, found))
)


@pytest.mark.skipif(found is None, reason="nothing is compiled here")
@pytest.mark.parametrize("vocab_size", [2, 12])
def test_both_texts_find_the_same_as_they_grow(vocab_size: int) -> None:
    draw = Random(vocab_size)
    texts, others = [make() for make in TEXTS], [make() for make in TEXTS]
    known: list[int] = []
    how = LookUp(max_match=6, max_places=4, min_share=0.3, sure_length=8)

    def some(most: int) -> list[int]:
        return [draw.randrange(vocab_size) for _ in range(draw.randrange(most))]

    for _ in range(300):
        known += (new := some(12))
        ended = [*some(20), GAP]
        for text, other in zip(texts, others, strict=True):
            text.extend(new)
            other.extend(ended)
        for tokens in (known, [*known, *some(4)]):
            max_tokens = draw.randrange(1, 9)
            assert _all_alike(text.longest(tokens, how) for text in texts)
            assert _all_alike(
                text.agreed(tokens, how, max_tokens, other if draw_other else None)
                for draw_other in [draw.random() < 0.7]
                for text, other in zip(texts, others, strict=True)
            )
    assert _all_alike(other.last(100) for other in others)
    assert _all_alike(len(other) for other in others)


@pytest.mark.parametrize("make", TEXTS)
def test_what_disagrees_has_no_say_in_what_follows(make: Callable[[], TokenText]) -> None:
    text, how = make(), LookUp(max_match=8, max_places=4, min_share=0.3, sure_length=4)
    text.extend(tokens := [1, 2, 5, 6, 1, 2, 5, 7, 1, 2, 8, 7, 1, 2])

    assert text.longest(tokens, how) == (10, 3)
    assert text.agreed(tokens, how, 3, None) == ([5, 7, 1], [4 / 7 * 0.75, 1 / 2 * 0.75, 0.75])
    assert make().agreed([5, 7, 1, 2], how, 3, text)[0] == [8, 7, 1]


def test_an_index_finds_what_looking_through_the_text_finds() -> None:
    random, text, index = Random(0), [0], ReferenceText()
    index.extend(text)
    while len(text) < 3 * TAIL:
        more = [random.randrange(30) for _ in range(random.choice([1, 3, 200, TAIL + 1]))]
        text += more
        index.extend(more)
        for _ in range(4):
            pair = random.randrange(30), random.randrange(30)
            places = [at for at in range(len(text) - 1, 1, -1) if (*text[at - 2 : at],) == pair]
            assert index.places_after(pair, 8) == places[:8]


def test_what_two_texts_end_with_is_no_longer_than_either_or_the_limit() -> None:
    text = [1, 2, 3, 1, 2, 3]

    assert common_suffix(text, 3, text, 9) == 3
    assert common_suffix(text, 6, (1, 2, 3), 9) == 3
    assert common_suffix(text, 6, text, 2) == 2
    assert common_suffix(text, 6, [9, 2, 3], 9) == 2
    assert common_suffix(text, 6, [4], 9) == 0


def _all_alike(found: Iterable[object]) -> bool:
    first, *others = found
    return all(other == first for other in others)
