from __future__ import annotations

import pytest
from tests.grammar_compilers import LETTERS
from tests.one_of_grammar import OneOf

from baton.core.sampling import FinishReason, SamplingParams
from baton.engine.request.request import Request, finish_reason

EOS = 2


@pytest.mark.parametrize(
    ("output", "sampling", "reason"),
    [
        ([5, EOS], SamplingParams(max_tokens=9), FinishReason.STOP),
        ([5, EOS], SamplingParams(max_tokens=2), FinishReason.STOP),
        ([EOS, 5], SamplingParams(max_tokens=9), None),
        ([5, EOS], SamplingParams(max_tokens=9, ignore_eos=True), None),
        ([5, EOS], SamplingParams(max_tokens=9, min_tokens=3), None),
        ([5, EOS], SamplingParams(max_tokens=9, min_tokens=2), FinishReason.STOP),
        ([5, 7], SamplingParams(max_tokens=9, stop_token_ids=(7,)), FinishReason.STOP),
        (
            [5, 7],
            SamplingParams(max_tokens=9, stop_token_ids=(7,), ignore_eos=True),
            FinishReason.STOP,
        ),
        ([5, 7], SamplingParams(max_tokens=9, stop_token_ids=(7,), min_tokens=3), None),
        ([5, 6], SamplingParams(max_tokens=2), FinishReason.LENGTH),
        ([5, 6], SamplingParams(max_tokens=3), None),
        ([], SamplingParams(max_tokens=3), None),
        ([EOS], SamplingParams(grammar=LETTERS, ignore_eos=True), FinishReason.STOP),
        ([EOS], SamplingParams(grammar=LETTERS, min_tokens=3), FinishReason.STOP),
    ],
)
def test_why_an_output_is_over(
    output: list[int], sampling: SamplingParams, reason: FinishReason | None
) -> None:
    known = 10 + len(output)

    assert finish_reason(output, known, sampling, eos_token_ids=(EOS,), max_model_len=64) is reason


def test_a_full_context_ends_an_output() -> None:
    sampling = SamplingParams(max_tokens=100)

    reasons = [
        finish_reason([5], known, sampling, eos_token_ids=(EOS,), max_model_len=64)
        for known in (63, 64)
    ]

    assert reasons == [None, FinishReason.LENGTH]


def test_pending_tokens_are_those_known_but_not_computed() -> None:
    request = Request("r", [1, 2, 3], output=[4], sampling=SamplingParams(), max_new_tokens=1)
    assert (request.num_pending, request.num_sampled) == (4, 0)

    request.num_computed = 4
    request.append(5)

    assert (request.num_pending, request.num_sampled) == (1, 1)
    assert (request.output, request.tokens) == ([4, 5], [1, 2, 3, 4, 5])
    assert request.has_reached_own_limit


def test_a_grammar_that_is_known_only_later_is_still_in_what_the_sampler_sees() -> None:
    request = Request("r", [1], sampling=SamplingParams(temperature=0.0))
    grammar = OneOf(3)

    request.matcher = grammar

    assert request.row.matcher is grammar
    assert not request.row.is_plain
