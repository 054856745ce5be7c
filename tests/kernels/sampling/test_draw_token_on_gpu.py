"""Tokens drawn on a GPU against those that torch draws."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from baton.kernels.sampling.best_token_gpu import best_finite_token
from baton.kernels.sampling.draw_token import LEAST_P, draw_related, relate
from baton.kernels.sampling.draw_token_gpu import draw_token
from baton.kernels.sampling.token_filter import Filters, shortlist
from baton.kernels.sampling.token_filter_gpu import depth_limits

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FILTERS = [
    (0, 1.0, LEAST_P),
    (1, 1.0, LEAST_P),
    (7, 1.0, LEAST_P),
    (0, 0.9, LEAST_P),
    (0, 0.3, LEAST_P),
    (20, 0.8, LEAST_P),
    (0, 1.0, 0.05),
    (50, 0.95, 0.02),
]


def filters_of(rows: list[tuple[int, float, float]]) -> Filters:
    top_k, top_p, min_p = zip(*rows, strict=True)
    return Filters(
        torch.tensor(top_k, device=DEVICE),
        torch.tensor(top_p, device=DEVICE),
        torch.tensor(min_p, device=DEVICE),
    )


def random_scores(num_rows: int, vocab_size: int, scale: float = 3.0) -> Tensor:
    generator = torch.Generator().manual_seed(vocab_size)
    return (torch.randn(num_rows, vocab_size, generator=generator) * scale).to(DEVICE)


def streams_of(num_rows: int, seed: int) -> Tensor:
    rows = [(seed, 1 + seed // 3, 100 + row, row % 2) for row in range(num_rows)]
    return torch.tensor(rows, device=DEVICE)


@pytest.mark.parametrize("vocab_size", [1003, 4200])
def test_the_same_tokens_are_drawn(vocab_size: int) -> None:
    """Of one chunk, and of two."""
    scores, filters = random_scores(len(FILTERS), vocab_size), filters_of(FILTERS)
    temperature = torch.linspace(0.3, 1.5, len(FILTERS), device=DEVICE)
    rows, best = torch.arange(len(FILTERS), device=DEVICE), scores.argmax(-1)

    streams = streams_of(len(FILTERS), vocab_size)
    found = draw_token(scores, rows, best, temperature, filters, streams)

    assert torch.equal(found, draw_related(relate(scores, temperature), filters, streams))


def test_peaked_flat_and_tied_rows_keep_what_is_defined() -> None:
    """Where a threshold is far out, near the best, and between equals; of two chunks."""
    noise = random_scores(1, 4096 + 5, scale=1.0)[0]
    capped = noise * 4
    capped[::3] = -torch.inf
    stepped, edged = torch.full_like(noise, 1.25), torch.full_like(noise, 0.7)
    stepped[:200], stepped[2000:2100] = 0.75, 0.25  # top-k leaves hardly any of 1.25
    edged[1500:3500], edged[[7, 4100]] = 0.5, 0.25
    stepped[0] = edged[0] = 0.0
    drawn_by = [
        (-stepped - noise.abs() / 50, (305, 0.9, LEAST_P)),
        (-edged - noise.abs() / 50 * (edged > 0.5), (2020, 1.0, LEAST_P)),
        (noise * 30, (0, 0.999, LEAST_P)),
        (noise * 1e-3, (4095, 0.5, LEAST_P)),
        ((noise * 2).round(), (300, 0.9, LEAST_P)),
        (noise * 0, (5, 0.5, LEAST_P)),
        (capped, (0, 1e-6, 0.01)),
        (capped, (4000, 0.99, LEAST_P)),
    ]
    scores = torch.stack([row for row, _ in drawn_by])
    filters, heat = (
        filters_of([rule for _, rule in drawn_by]),
        torch.ones(len(scores), device=DEVICE),
    )
    rows, best = torch.arange(len(scores), device=DEVICE), scores.argmax(-1)

    limits = depth_limits(scores, rows, best, heat, filters).view(torch.float32)

    relative = relate(scores, heat)
    kept = -relative <= limits.unsqueeze(-1)
    assert torch.equal(kept, relative >= shortlist(relative, filters).floor)


def test_tokens_of_equal_score_stay_together() -> None:
    scores = torch.full((12, 100), -5.0, device=DEVICE)
    scores[:, [3, 50, 70]] = 1.0  # top-1 leaves all three
    filters, ones = filters_of([(1, 1.0, LEAST_P)] * 12), torch.ones(12, device=DEVICE)
    rows = torch.arange(12, device=DEVICE)

    drawn = draw_token(scores, rows, scores.argmax(-1), ones, filters, streams_of(12, 5))

    assert set(drawn.tolist()) == {3, 50, 70}


def test_only_the_rows_that_draw_are_drawn() -> None:
    scores, filters = random_scores(4, 300), filters_of([(0, 0.9, LEAST_P)])
    rows, heat = torch.tensor([2], device=DEVICE), torch.ones(1, device=DEVICE)
    scores[0] = torch.nan

    best = scores.argmax(-1)
    found = draw_token(scores, rows, best, heat, filters, streams_of(1, 5))
    by_heat = filters._replace(top_p=heat)
    others = [
        draw_token(scores, rows, best, heat, by_heat, streams_of(1, 5), is_cut=is_cut)
        for is_cut in (True, False)
    ]

    assert torch.equal(*others)
    alone = draw_related(relate(scores[2:3], heat), filters, streams_of(1, 5))
    assert torch.equal(found, alone)


def test_the_best_token_is_the_first_of_the_largest_and_what_is_not_finite_is_seen() -> None:
    scores = random_scores(5, 9001)
    scores[1, [4, 8999]] = 100.0
    scores[2, 17], scores[3, 9000], scores[4, 0] = torch.nan, torch.inf, -torch.inf

    best, are_finite = best_finite_token(scores)

    assert best[:2].tolist() == [int(scores[0].argmax()), 4]
    assert are_finite.tolist() == [True, True, False, False, False]
