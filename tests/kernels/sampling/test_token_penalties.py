"""Penalties against their definition and against numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.kernels.sampling.token_penalties import Occurrences, Penalties, penalise, reference

VOCAB_SIZE = 6


def apply(
    logits: torch.Tensor,
    penalties: list[tuple[float, float, float]],
    prompts: list[list[int]],
    outputs: list[list[int]],
) -> torch.Tensor:
    seen = [
        (row, token, output.count(token))
        for row, (prompt, output) in enumerate(zip(prompts, outputs, strict=True))
        for token in {*prompt, *output}
    ]
    occurrences = Occurrences(*torch.tensor(seen, dtype=torch.int64).view(-1, 3).unbind(1))
    return penalise(logits, Penalties(*torch.tensor(penalties).unbind(1)), occurrences)


def test_penalties_worked_out_by_hand() -> None:
    logits = torch.tensor([[2.0, -2.0, 1.0, 4.0, 0.0, 1.0]])

    penalised = apply(logits, [(2.0, 0.5, 0.25)], [[0, 1]], [[3, 3, 2]])

    #  prompt only: 2 / 2 and -2 * 2; output: 1 / 2 - 0.5 - 0.25 and 4 / 2 - 0.5 - 2 * 0.25
    assert penalised.tolist() == [[1.0, -4.0, -0.25, 1.0, 0.0, 1.0]]


tokens = st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=8)
logit = st.floats(-5, 5, width=32)
penalty = st.tuples(
    st.floats(0.5, 2, width=32), st.floats(-2, 2, width=32), st.floats(-2, 2, width=32)
)
row = st.tuples(st.lists(logit, min_size=VOCAB_SIZE, max_size=VOCAB_SIZE), penalty, tokens, tokens)


@given(st.lists(row, min_size=1, max_size=3))
@settings(deadline=None)
def test_each_row_is_penalised_as_defined_whatever_the_others(
    rows: list[tuple[list[float], tuple[float, float, float], list[int], list[int]]],
) -> None:
    logits = torch.tensor([row[0] for row in rows])

    penalised = apply(logits, [r[1] for r in rows], [r[2] for r in rows], [r[3] for r in rows])

    for got, one in zip(penalised.tolist(), rows, strict=True):
        assert got == pytest.approx(reference(*one), abs=1e-4)


def test_the_logits_are_left_as_they_are() -> None:
    logits = torch.ones(1, VOCAB_SIZE)

    apply(logits, [(2.0, 1.0, 1.0)], [[0]], [[1]])

    assert torch.equal(logits, torch.ones(1, VOCAB_SIZE))
