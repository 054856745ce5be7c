"""From logits to tokens: each transform, the randomness, and rows that share a batch."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import pytest
import torch
from tests.one_of_grammar import OneOf
from tests.sampled_rows import SampledToken, sample

from baton.core.sampling import SamplingParams
from baton.engine.sampling import sampler
from baton.engine.sampling.sampler import draw_and_weigh, prompt_logprobs
from baton.engine.sampling.sampling_plan import SamplingPlan
from baton.engine.sampling.sampling_row import SamplingRow
from baton.kernels.sampling import gumbel, token_filter

EOS = 2
LOGITS = torch.tensor([1.0, 3.0, 2.0, -1.0, 0.0, 2.5])
GREEDY: dict[str, Any] = {"temperature": 0.0}


def make_row(prompt: Sequence[int] = (), output: Sequence[int] = (), **params: Any) -> SamplingRow:
    return SamplingRow(SamplingParams(**params), prompt, output)


def draw(
    row: SamplingRow, logits: torch.Tensor = LOGITS, eos: Collection[int] = (EOS,)
) -> SampledToken:
    (sampled,) = sample(logits.unsqueeze(0), [row], eos)
    return sampled


def draw_many(num_draws: int, logits: torch.Tensor = LOGITS, **params: Any) -> Counter[int]:
    """Tokens drawn at positions 0 .. num_draws - 1."""
    rows = [make_row(prompt=[0] * position, **params) for position in range(num_draws)]
    sampled = sample(logits.expand(num_draws, -1), rows, ())
    return Counter(s.token for s in sampled)


def chi_square(counts: Counter[int], probabilities: dict[int, float]) -> float:
    num_draws = sum(counts.values())
    assert set(counts) <= set(probabilities)
    return sum(
        (counts[token] - num_draws * p) ** 2 / (num_draws * p) for token, p in probabilities.items()
    )


def softmax_of(logits: torch.Tensor, tokens: Collection[int], temperature: float = 1.0) -> Any:
    weights = {t: math.exp(float(logits[t]) / temperature) for t in tokens}
    return {t: w / sum(weights.values()) for t, w in weights.items()}


def test_temperature_zero_takes_the_most_probable_token() -> None:
    assert draw(make_row(**GREEDY)).token == 1


def test_draws_follow_the_models_distribution() -> None:
    counts = draw_many(4000, seed=11)

    assert chi_square(counts, softmax_of(LOGITS, range(6))) < 20.5  # 5 degrees of freedom, 0.1 %


def test_draws_follow_temperature_and_filters_together() -> None:
    counts = draw_many(4000, seed=12, temperature=0.7, top_k=4, top_p=0.95, min_p=0.1)

    weights = softmax_of(LOGITS, [1, 5, 2, 0], 0.7)
    kept = [t for t in token_filter.reference([w / 0.7 for w in LOGITS.tolist()], 4, 0.95, 0.1)]
    assert set(kept) == {1, 5, 2} and sum(weights[t] for t in kept) > 0.95
    assert chi_square(counts, softmax_of(LOGITS, kept, 0.7)) < 13.8  # 2 degrees, 0.1 %


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"top_k": 2}, {1, 5}),
        ({"typical_p": 0.25}, {5}),
        ({"top_p": 0.6}, {1, 5}),
        ({"top_p": 1e-9}, {1}),
        ({"min_p": 0.3}, {1, 2, 5}),
        ({"temperature": 4.0, "min_p": 0.5}, {0, 1, 2, 5}),
        ({"temperature": 1e-40}, {1}),
    ],
)
def test_only_tokens_that_pass_the_filters_are_drawn(
    params: dict[str, Any], expected: set[int]
) -> None:
    assert set(draw_many(800, **params)) == expected


def test_a_draw_is_the_largest_of_score_and_noise() -> None:
    row = make_row(prompt=[0] * 40, output=[1] * 3, seed=2**63 + 5, choice=2)

    noisy = [float(logit) + gumbel.reference(2**63 + 5, 2, 43, t) for t, logit in enumerate(LOGITS)]
    assert draw(row).token == noisy.index(max(noisy))


MIXTURE = [
    make_row([1, 2], [3], seed=1),
    make_row([1, 2], [3], **GREEDY),
    make_row([5], [], seed=1, top_p=0.8, num_logprobs=2),
    make_row([5, 5, 5], [1, 1], seed=9, repetition_penalty=1.7, temperature=1.5),
    make_row([4], [4], temperature=0.0, frequency_penalty=3.0, num_logprobs=0),
    make_row([3], [], seed=4, min_tokens=1, top_k=3),
    make_row([3], [], seed=5, typical_p=0.5, top_k=40, num_logprobs=1),
    make_row([3], [7, 8], seed=6, logit_bias=((0, 5.0), (9, -3.0)), bad_words=((7, 8, 9), (4,))),
    make_row([3], [], seed=7, allowed_token_ids=(3, 20, 29), temperature=3.0),
    SamplingRow(SamplingParams(seed=8, top_p=0.9), (1,), (2,), OneOf(4, 17, 18, 25)),
    SamplingRow(SamplingParams(temperature=0.0, logit_bias=((1, 9.0),)), (1,), (), OneOf(0, 1)),
]


def test_a_row_draws_the_same_token_alone_and_in_any_batch() -> None:
    num_rows = len(MIXTURE)
    for vocab_size in (30, 300, 20_000):
        logits = torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(1)) * 3
        together = sample(logits, MIXTURE, (EOS,))
        order = torch.randperm(num_rows, generator=torch.Generator().manual_seed(2)).tolist()

        shuffled = sample(logits[order], [MIXTURE[i] for i in order], (EOS,))
        alone = [draw(row, logits[i]) for i, row in enumerate(MIXTURE)]

        assert [shuffled[order.index(i)] for i in range(num_rows)] == together == alone


@pytest.mark.gpu
def test_a_gpu_draws_what_a_cpu_draws() -> None:
    for vocab_size in (300, 150_000):
        logits = torch.randn(len(MIXTURE), vocab_size, generator=torch.Generator().manual_seed(1))

        on_gpu = sample(3 * logits.cuda(), MIXTURE, (EOS,))

        on_cpu = sample(3 * logits, MIXTURE, (EOS,))
        assert [one.token for one in on_gpu] == [one.token for one in on_cpu]


@pytest.mark.parametrize(
    "change", [{"seed": 8}, {"seed": 7 + (1 << 32)}, {"choice": 1}, {"prompt": [0] * 101}]
)
def test_seed_choice_and_position_each_change_the_draws(change: dict[str, Any]) -> None:
    flat = torch.zeros(10_000)
    base: dict[str, Any] = {"seed": 7, "prompt": [0] * 100}

    assert draw(make_row(**base), flat) == draw(make_row(**base), flat)
    assert draw(make_row(**{**base, **change}), flat) != draw(make_row(**base), flat)


def test_a_continuation_draws_what_the_first_attempt_would_have() -> None:
    """Output of an earlier attempt counts as output or prompt alike for the position."""
    flat = torch.zeros(10_000)

    first = draw(make_row([1, 2, 3], [4], seed=5), flat)

    assert draw(make_row([1], [2, 3, 4], seed=5), flat) == first


def test_repetition_lowers_what_occurred_anywhere() -> None:
    assert draw(make_row([1], [5], repetition_penalty=2.0, **GREEDY)).token == 2


def test_presence_and_frequency_lower_what_was_put_out() -> None:
    assert draw(make_row([1], [], presence_penalty=9.0, **GREEDY)).token == 1
    assert draw(make_row([], [1], presence_penalty=1.5, **GREEDY)).token == 5
    assert draw(make_row([], [1, 5], frequency_penalty=0.4, **GREEDY)).token == 1
    assert draw(make_row([], [1, 1, 1, 5], frequency_penalty=0.4, **GREEDY)).token == 5


def test_what_one_row_draws_is_not_held_against_another() -> None:
    plan = SamplingPlan([make_row(**GREEDY), make_row(frequency_penalty=2.0, **GREEDY)], "cpu")
    logits = torch.stack((LOGITS.roll(1), LOGITS))

    drawn = [sampler.draw(logits, plan, ()).tokens.tolist() for _ in range(3)]

    assert drawn == [[2, 1], [2, 5], [2, 2]]


def test_penalties_change_the_distribution_before_temperature() -> None:
    counts = draw_many(3000, seed=3, temperature=0.5, repetition_penalty=2.0, top_k=2)

    penalised = LOGITS.clone()  # token 0 is in every prompt but the first
    penalised[0] /= 2
    assert chi_square(counts, softmax_of(penalised, [1, 5], 0.5)) < 10.8  # 1 degree, 0.1 %


def test_an_output_cannot_end_before_its_minimum_length() -> None:
    logits = torch.tensor([0.0, 5.0, 9.0, 7.0])
    row: dict[str, Any] = {"min_tokens": 2, "stop_token_ids": (3,), **GREEDY}

    assert draw(make_row([], [0], **row), logits).token == 1
    assert draw(make_row([], [0, 0], **row), logits).token == EOS
    assert draw(make_row([], [], ignore_eos=True, **row), logits).token == EOS
    assert draw(make_row([], [0], **row), logits, eos=()).token == 2


def test_stop_tokens_beyond_the_vocabulary_do_no_harm() -> None:
    row = make_row(min_tokens=2, stop_token_ids=(1, 6, 10**12), **GREEDY)

    assert draw(row, eos=(99,)).token == 5


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "params",
    [
        {},
        GREEDY,
        {"top_p": 0.9},
        {"min_p": 0.1, "num_logprobs": 1},
        {"typical_p": 0.5, "top_k": 2},
        {"allowed_token_ids": (1, 2), "bad_words": ((1,),), "logit_bias": ((1, -100.0),)},
    ],
)
def test_a_row_gone_bad_disturbs_no_other_row(bad: float, params: dict[str, Any]) -> None:
    good = make_row(seed=1)
    logits = torch.stack((torch.full_like(LOGITS, bad), LOGITS))

    spoilt, sampled = sample(logits, [make_row(**params), good], (EOS,))

    assert sampled == draw(good)
    assert 0 <= spoilt.token < len(LOGITS)
    assert 0 <= draw(make_row(**params), logits[0]).token < len(LOGITS)


def test_a_bias_only_shifts() -> None:
    """-100 makes a token next to impossible; if it is the only one allowed, it is still drawn."""
    row = make_row(logit_bias=((1, -100.0), (0, 2.0), (99, 5.0)), **GREEDY)
    bound = make_row(logit_bias=((4, -100.0),), allowed_token_ids=(4,))

    assert draw(row).token == 0
    assert draw(bound).token == 4


def test_bias_comes_after_penalties() -> None:
    """Else the penalty would divide the bias as well: (1 + 3) / 4 is less than 3.1."""
    row = make_row([0], [], logit_bias=((0, 3.0),), repetition_penalty=4.0, **GREEDY)

    assert draw(row, torch.tensor([1.0, 3.1])).token == 0


def test_the_minimum_length_holds_for_drawn_tokens_too() -> None:
    peaked = torch.tensor([0.0, 0.0, 30.0, 0.0])
    rows = [make_row(prompt=[0] * i, min_tokens=1, seed=1) for i in range(200)]

    tokens = {s.token for s in sample(peaked.expand(200, -1), rows, (EOS,))}

    assert tokens == {0, 1, 3}


def test_logprobs_are_the_models_own() -> None:
    """Before penalties, temperature and filters."""
    row = make_row([1], [1], num_logprobs=3, temperature=0.1, top_k=1, presence_penalty=50.0)

    sampled = draw(row)

    expected = LOGITS.log_softmax(-1)
    assert sampled.token == 5 and sampled.logprob is not None
    assert sampled.logprob.token == 5
    assert sampled.logprob.logprob == pytest.approx(float(expected[5]))
    assert [token for token, _ in sampled.logprob.top] == [1, 5, 2]
    assert [p for _, p in sampled.logprob.top] == pytest.approx(expected[[1, 5, 2]].tolist())


def test_each_row_gets_as_many_logprobs_as_it_asked_for() -> None:
    rows = [make_row(num_logprobs=n, **GREEDY) for n in (None, 0, 2, 99)]

    sampled = sample(LOGITS.expand(4, -1), rows, ())

    assert [None if s.logprob is None else len(s.logprob.top) for s in sampled] == [None, 0, 2, 6]


def test_logprobs_do_not_know_of_masks_and_bias() -> None:
    row = make_row(num_logprobs=1, allowed_token_ids=(3,), logit_bias=((3, 8.0),))

    sampled = draw(row)

    expected = LOGITS.log_softmax(-1)
    assert sampled.token == 3 and sampled.logprob is not None
    assert sampled.logprob.logprob == pytest.approx(float(expected[3]))
    ((best, logprob),) = sampled.logprob.top
    assert best == 1
    assert logprob == pytest.approx(float(expected[1]))


def test_logprobs_of_a_prompt_are_those_of_the_tokens_that_follow() -> None:
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(5))
    expected = logits.log_softmax(-1)

    said = prompt_logprobs(logits, [4, 4, 49], 2)

    assert [one.token for one in said] == [4, 4, 49]
    for i, one in enumerate(said):
        assert one.logprob == pytest.approx(float(expected[i, one.token]))
        best = expected[i].topk(2)
        assert [token for token, _ in one.top] == best.indices.tolist()
        assert [logprob for _, logprob in one.top] == pytest.approx(best.values.tolist())
    assert prompt_logprobs(logits, [4, 4, 49], 0)[0].top == ()
    assert len(prompt_logprobs(logits, [4, 4, 49], 99)[0].top) == 50
    assert prompt_logprobs(logits[:0], [], 2) == []


def test_a_token_is_weighed_among_those_that_are_allowed() -> None:
    """A draft that a grammar filtered is as likely as the grammar makes it."""
    rows = [make_row(temperature=0.0), make_row(temperature=0.0, allowed_token_ids=(1, 2))]
    logits = torch.tensor([[3.0, 2.0, 1.0, 0.0]] * 2)

    drawn, shares = draw_and_weigh(logits, SamplingPlan(rows, logits.device), ())

    assert drawn.tokens.tolist() == [0, 1]
    assert shares[0] == pytest.approx(logits[0].softmax(-1)[0].item())
    assert shares[1] == pytest.approx(logits[0, 1:3].softmax(-1)[0].item())


def test_the_logits_are_left_as_they_are() -> None:
    logits = torch.randn(len(MIXTURE), 50)
    before = logits.clone()

    sample(logits, MIXTURE, (EOS,))

    assert torch.equal(logits, before)


def test_inference_tensors_can_be_sampled() -> None:
    with torch.inference_mode():
        logits = torch.randn(len(MIXTURE), 50)

    assert len(sample(logits, MIXTURE, (EOS,))) == len(MIXTURE)
