"""What is drawn follows the distribution that a plain reference computes from the same logits.

Every transform alone and many together. Draws differ by their seeds, which are fixed; a correct
sampler would fail one of these with other seeds less than once in a million times.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tests.one_of_grammar import OneOf
from tests.sampled_rows import sample

from baton.core.sampling import SamplingParams
from baton.engine.sampling.sampling_row import SamplingRow
from baton.kernels.sampling import token_filter, token_penalties, typical

VOCAB_SIZE, NUM_DRAWS, EOS = 40, 6000, 7
PROMPT, OUTPUT = (3, 3, 9, 20, 31), (9, 5, 5, 12)
LOGITS = torch.randn(VOCAB_SIZE, generator=torch.Generator().manual_seed(4)) * 2


def expected(params: SamplingParams, grammar: OneOf | None) -> dict[int, float]:
    """By token: its probability, one rule after the other."""
    penalties = (params.repetition_penalty, params.presence_penalty, params.frequency_penalty)
    scores = token_penalties.reference(LOGITS.double().tolist(), penalties, PROMPT, OUTPUT)
    for token, bias in params.logit_bias:
        scores[token] += bias
    alive = allowed(params, grammar)
    scores = [s / params.temperature if t in alive else -math.inf for t, s in enumerate(scores)]
    scores = only(scores, token_filter.reference(scores, params.top_k, 1.0, 0.0))
    if params.typical_p < 1:
        scores = only(scores, typical.reference(scores, params.typical_p))
    scores = only(scores, token_filter.reference(scores, 0, params.top_p, params.min_p))
    weights = {t: math.exp(s) for t, s in enumerate(scores) if s > -math.inf}
    return {token: weight / sum(weights.values()) for token, weight in weights.items()}


def only(scores: Sequence[float], tokens: set[int]) -> list[float]:
    return [score if token in tokens else -math.inf for token, score in enumerate(scores)]


def allowed(params: SamplingParams, grammar: OneOf | None) -> set[int]:
    tokens = set(range(VOCAB_SIZE)) if grammar is None else set(grammar.tokens)
    tokens = tokens & set(params.allowed_token_ids) or tokens
    ends = [
        (word[-1], OUTPUT[len(OUTPUT) + 1 - len(word) :] == word[:-1]) for word in params.bad_words
    ]
    tokens = tokens - {token for token, is_next in ends if is_next} or tokens
    stops = {*params.stop_token_ids, EOS} if len(OUTPUT) < params.min_tokens else set()
    return tokens - stops or tokens


def critical_value(degrees: int) -> float:
    """Chi-square exceeds it once in 3 million times (Wilson and Hilferty 1931)."""
    spread = 2 / (9 * degrees)
    return float(degrees * (1 - spread + 5 * math.sqrt(spread)) ** 3)


def chi_square(counts: Counter[int], probabilities: dict[int, float]) -> tuple[float, int]:
    """And its degrees of freedom. Tokens too rare to be judged alone are judged together."""
    num_draws = counts.total()
    rare = {token for token, p in probabilities.items() if p * num_draws < 5}
    cells = [(counts[t], p * num_draws) for t, p in probabilities.items() if t not in rare]
    if rare:
        mass = sum(probabilities[token] for token in rare) * num_draws
        cells.append((sum(counts[token] for token in rare), max(mass, 1.0)))
    return sum((seen - due) ** 2 / due for seen, due in cells), max(1, len(cells) - 1)


EVERYTHING: dict[str, Any] = {
    "temperature": 1.3,
    "top_k": 25,
    "top_p": 0.97,
    "min_p": 0.004,
    "typical_p": 0.93,
    "repetition_penalty": 1.2,
    "presence_penalty": 0.3,
    "frequency_penalty": -0.2,
    "logit_bias": ((3, 1.5), (17, -100.0), (5, 0.5)),
    "bad_words": ((5, 12, 8), (22,)),
    "min_tokens": 5,
}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.6},
        {"temperature": 2.5},
        {"top_k": 6},
        {"top_p": 0.7},
        {"min_p": 0.1},
        {"typical_p": 0.6},
        {"typical_p": 0.25, "top_k": 12, "top_p": 0.9},
        {"repetition_penalty": 1.8},
        {"presence_penalty": 1.1, "frequency_penalty": 0.6},
        {"logit_bias": ((0, 4.0), (9, -2.0), (39, 3.0))},
        {"bad_words": ((12, 2), (5, 5, 12, 3), (5, 12, 6), (30,))},
        {"allowed_token_ids": (1, 2, 5, 8, 13, 21, 34)},
        {"min_tokens": 5, "stop_token_ids": (2, 3)},
        {"min_tokens": 4},
        EVERYTHING,
        {**EVERYTHING, "allowed_token_ids": tuple(range(0, 40, 2)), "stop_token_ids": (4,)},
    ],
    ids=lambda options: ",".join(options) or "plain",
)
@pytest.mark.parametrize("grammar", [None, OneOf(*range(2, 32)), OneOf(3)])
def test_draws_follow_the_reference(options: dict[str, Any], grammar: OneOf | None) -> None:
    rows = [
        SamplingRow(SamplingParams(seed=seed, **options), PROMPT, OUTPUT, grammar)
        for seed in range(NUM_DRAWS)
    ]

    counts = Counter(s.token for s in sample(LOGITS.expand(NUM_DRAWS, -1), rows, (EOS,)))

    probabilities = expected(rows[0].params, grammar)
    assert set(counts) <= set(probabilities)
    distance, degrees = chi_square(counts, probabilities)
    assert distance < critical_value(degrees)


def test_a_wrong_distribution_would_be_noticed() -> None:
    """A temperature wrong by a fifth is far beyond the bound that the tests above use."""
    rows = [SamplingRow(SamplingParams(seed=seed), PROMPT, OUTPUT) for seed in range(NUM_DRAWS)]

    counts = Counter(s.token for s in sample(LOGITS.expand(NUM_DRAWS, -1), rows, ()))

    distance, degrees = chi_square(counts, expected(SamplingParams(temperature=1.2), None))
    assert distance > critical_value(degrees)


def test_temperature_zero_takes_the_best_of_what_may_be_drawn() -> None:
    for options in ({}, EVERYTHING, {"logit_bias": ((11, 50.0),)}, {"allowed_token_ids": (1, 2)}):
        for grammar in (None, OneOf(4, 5, 6)):
            params = SamplingParams(**{**options, "temperature": 0.0})
            row = SamplingRow(params, PROMPT, OUTPUT, grammar)
            plain = SamplingParams(
                **{**FILTERS_OFF, **{k: v for k, v in options.items() if k not in FILTERS_OFF}}
            )

            (sampled,) = sample(LOGITS.unsqueeze(0), [row], (EOS,))

            likely = expected(plain, grammar)
            assert sampled.token == max(likely, key=lambda token: likely[token])


FILTERS_OFF: dict[str, Any] = {
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "typical_p": 1.0,
}
