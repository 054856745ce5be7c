"""What may be drawn at all: grammars, allowed tokens, bad words, minimum length, and who yields."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.one_of_grammar import OneOf

from baton.core.sampling import SamplingParams
from baton.engine.sampling.allowed_tokens import bad_tokens, forbid_tokens
from baton.engine.sampling.sampling_row import SamplingRow

VOCAB_SIZE, EOS = 40, 2
EVERY = set(range(VOCAB_SIZE))


def make_row(
    output: Sequence[int] = (), *, grammar: OneOf | None = None, **params: Any
) -> SamplingRow:
    return SamplingRow(SamplingParams(**params), (1, 1), output, grammar)


def may_draw(row: SamplingRow, eos: Collection[int] = (EOS,)) -> set[int]:
    scores = forbid_tokens(torch.zeros(1, VOCAB_SIZE), [row], eos)
    return set((scores[0] > -math.inf).nonzero().flatten().tolist())


def test_a_bad_word_is_forbidden_where_the_output_would_complete_it() -> None:
    word: dict[str, Any] = {"bad_words": ((5, 6, 7), (9,))}

    assert may_draw(make_row([5], **word)) == EVERY - {9}
    assert may_draw(make_row([5, 6], **word)) == EVERY - {9, 7}
    assert may_draw(make_row([5, 6, 6], **word)) == EVERY - {9}
    assert may_draw(make_row([1, 5, 6], **word)) == EVERY - {9, 7}


def test_the_prompt_is_no_part_of_a_bad_word() -> None:
    assert may_draw(make_row(bad_words=((1, 1, 3),))) == EVERY


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), max_size=4),
    st.lists(st.integers(0, 2), max_size=6),
)
def test_an_output_never_comes_to_end_with_a_bad_word(
    bad_words: list[list[int]], output: list[int]
) -> None:
    forbidden = bad_tokens(bad_words, output)

    for token in range(3):
        longer = [*output, token]
        is_bad = any(longer[-len(word) :] == word for word in bad_words)
        assert is_bad == (token in forbidden)


def test_allowed_tokens_leave_nothing_else() -> None:
    assert may_draw(make_row(allowed_token_ids=(4, 39, 0))) == {0, 4, 39}


def test_a_grammar_leaves_what_it_allows() -> None:
    assert may_draw(make_row(grammar=OneOf(0, 31, 32, 39))) == {0, 31, 32, 39}


@pytest.mark.parametrize(
    ("rules", "left"),
    [
        ({"grammar": OneOf(3, 4), "allowed_token_ids": (4, 5)}, {4}),
        ({"grammar": OneOf(3, 4), "allowed_token_ids": (5, 6)}, {3, 4}),
        ({"grammar": OneOf(3, 4), "bad_words": ((3,),)}, {4}),
        ({"grammar": OneOf(3), "bad_words": ((3,),)}, {3}),
        ({"grammar": OneOf(EOS), "min_tokens": 9}, {EOS}),
        ({"grammar": OneOf(EOS, 3), "min_tokens": 9}, {3}),
        ({"grammar": OneOf(EOS, 3), "min_tokens": 9, "ignore_eos": True}, {3}),
        ({"allowed_token_ids": (3, 4), "bad_words": ((3,),)}, {4}),
        ({"allowed_token_ids": (3,), "bad_words": ((3,),)}, {3}),
        ({"allowed_token_ids": (EOS,), "min_tokens": 9}, {EOS}),
        ({"allowed_token_ids": (EOS, 3), "bad_words": ((3,),), "min_tokens": 9}, {EOS}),
        ({"allowed_token_ids": (VOCAB_SIZE, 10**12)}, EVERY),
        ({"bad_words": ((VOCAB_SIZE,), (-1,))}, EVERY),
        ({"stop_token_ids": tuple(EVERY), "min_tokens": 1}, EVERY),
    ],
)
def test_a_weaker_rule_that_would_leave_nothing_is_set_aside(
    rules: dict[str, Any], left: set[int]
) -> None:
    assert may_draw(make_row(**rules)) == left


row = st.builds(
    make_row,
    st.lists(st.integers(0, 5), max_size=3),
    grammar=st.none() | st.sets(st.integers(0, 5), min_size=1).map(lambda tokens: OneOf(*tokens)),
    allowed_token_ids=st.lists(st.integers(0, 45), max_size=3).map(tuple),
    bad_words=st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=2).map(tuple)).map(tuple),
    min_tokens=st.integers(0, 3),
    ignore_eos=st.booleans(),
)


@given(st.lists(row, min_size=1, max_size=5))
@settings(deadline=None)
def test_each_row_is_left_what_it_would_be_left_alone_and_never_nothing(
    rows: list[SamplingRow],
) -> None:
    scores = torch.randn(len(rows), VOCAB_SIZE)

    together = forbid_tokens(scores, rows, (EOS,))

    for i, one in enumerate(rows):
        (alone,) = forbid_tokens(scores[i : i + 1], [one], (EOS,))
        assert torch.equal(together[i], alone)
        assert alone.isfinite().any()
        assert torch.equal(alone[alone.isfinite()], scores[i][alone.isfinite()])


def test_rows_without_rules_cost_no_copy() -> None:
    scores = torch.zeros(2, VOCAB_SIZE)

    assert forbid_tokens(scores, [make_row(), make_row([5, 6])], (EOS,)) is scores
