"""Drawing a token from each row: the operator and torch against each other and the definition."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.torch_threads import threads

from baton.kernels.sampling import gumbel, token_filter
from baton.kernels.sampling.best_token import best_token
from baton.kernels.sampling.draw_token import LEAST_P, Draws, draw_related, draw_token, relate
from baton.kernels.sampling.token_filter import Filters


def make_draws(
    num_rows: int,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    first_seed: int = 0,
) -> Draws:
    return Draws(
        rows=torch.arange(num_rows),
        temperature=torch.full((num_rows,), temperature),
        filters=Filters(
            top_k=torch.full((num_rows,), top_k),
            top_p=torch.full((num_rows,), top_p),
            min_p=torch.full((num_rows,), max(min_p, LEAST_P)),
        ),
        streams=torch.tensor([[first_seed + row, 7, 30 + row, 1] for row in range(num_rows)]),
    )


def drawn(scores: torch.Tensor, draws: Draws) -> list[int]:
    return draw_token(scores, best_token(scores), draws).tolist()


def drawn_by_torch(scores: torch.Tensor, draws: Draws) -> list[int]:
    related = relate(scores[draws.rows], draws.temperature)
    return draw_related(related, draws.filters, draws.streams).tolist()


def normal(num_rows: int, vocab_size: int, spread: float, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_rows, vocab_size, generator=generator) * spread


@pytest.mark.parametrize("vocab_size", [1, 5, 63, 64, 65, 1000, 40_001])
@pytest.mark.parametrize("spread", [0.0, 0.3, 3.0, 12.0])
@pytest.mark.parametrize(
    "limits",
    [
        {},
        {"top_k": 1},
        {"top_k": 40},
        {"top_k": 2000},
        {"top_p": 0.1},
        {"top_p": 0.9},
        {"top_p": 0.9999},
        {"min_p": 0.05},
        {"top_k": 300, "top_p": 0.8, "min_p": 0.001, "temperature": 0.6},
        {"temperature": 1e-30},
        {"temperature": 5.0},
    ],
    ids=str,
)
def test_every_row_draws_what_torch_draws(
    vocab_size: int, spread: float, limits: dict[str, float]
) -> None:
    scores = normal(16, vocab_size, spread, seed=vocab_size)
    draws = make_draws(16, **limits)  # type: ignore[arg-type]

    assert drawn(scores, draws) == drawn_by_torch(scores, draws)


@given(
    st.lists(st.integers(-40, 40).map(lambda n: n / 4), min_size=1, max_size=300),
    st.integers(0, 45),
    st.sampled_from([1e-6, 0.1, 0.333, 0.62, 0.9, 0.99, 1.0]),
    st.sampled_from([0.0, 1e-3, 0.07, 0.5, 1.0]),
    st.integers(0, 1000),
)
@settings(max_examples=200, deadline=None)
def test_the_winner_is_the_best_with_noise_of_the_tokens_that_may_be_drawn(
    scores: list[float], top_k: int, top_p: float, min_p: float, seed: int
) -> None:
    draws = make_draws(1, top_k=top_k, top_p=top_p, min_p=min_p, first_seed=seed)

    (token,) = drawn(torch.tensor([scores]), draws)

    kept = token_filter.reference(scores, top_k, top_p, max(min_p, LEAST_P))
    best = max(scores)
    noisy = {t: scores[t] - best + gumbel.reference(seed + (7 << 32), 1, 30, t) for t in kept}
    assert token == max(noisy, key=lambda t: (noisy[t], -t))


def test_torch_draws_alike_whether_it_makes_noise_for_few_tokens_or_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Peaked scores need the noise of few tokens only; an unlimited spread needs all of it."""
    scores, draws = normal(64, 5000, 12.0), make_draws(64, temperature=2.0)
    few = drawn_by_torch(scores, draws)

    monkeypatch.setattr("baton.kernels.sampling.draw_token.SPREAD", math.inf)

    assert drawn_by_torch(scores, draws) == few
    assert len(set(few)) > 3


def test_a_list_that_does_not_hold_the_mass_is_made_longer() -> None:
    """The mass lies far below the best score, in more tokens than are looked at first."""
    scores = torch.full((4, 30_000), -9.0)
    scores[:, 17] = 0.0

    for top_p in (0.05, 0.3, 0.99):
        draws = make_draws(4, top_p=top_p)
        assert drawn(scores, draws) == drawn_by_torch(scores, draws)


def test_scores_as_near_to_each_other_as_floats_can_be_are_told_apart() -> None:
    steps = torch.arange(500).flip(0) * 1e-45
    draws = make_draws(1, top_k=3)

    scores = torch.cat((steps, torch.tensor([-1.0] * 100))).unsqueeze(0)

    assert drawn(scores, draws)[0] in {0, 1, 2}


@pytest.mark.parametrize("vocab_size", [200, 5000])
def test_forbidden_tokens_are_never_drawn_and_all_others_may_be(vocab_size: int) -> None:
    scores = torch.full((32, vocab_size), -math.inf)
    scores[:, 150:153] = torch.tensor([1.0, 1.5, 1.0])

    for top_k, top_p in ((0, 1.0), (100, 1.0), (0, 0.999), (100, 0.999)):
        tokens = drawn(scores, make_draws(32, top_k=top_k, top_p=top_p, temperature=4.0))
        assert set(tokens) == {150, 151, 152}


def test_rows_are_drawn_from_where_they_lie_whatever_lies_between() -> None:
    scores = normal(6, 3000, 2.0)
    draws = make_draws(6, top_p=0.9)
    everybody = drawn(scores, draws)
    odd = torch.tensor([1, 3, 5])
    filters = Filters(draws.filters.top_k[odd], draws.filters.top_p[odd], draws.filters.min_p[odd])

    some = Draws(odd, draws.temperature[odd], filters, draws.streams[odd])

    assert drawn(scores, some) == everybody[1::2]
    wide = torch.cat((scores, normal(6, 100, 9.0)), dim=1)
    assert drawn(wide[:, :3000], some) == everybody[1::2]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_row_gone_bad_still_gives_a_token_and_disturbs_no_other(bad: float) -> None:
    scores = normal(3, 5000, 2.0)
    draws = make_draws(3, top_p=0.9, top_k=50)
    before = drawn(scores, draws)
    scores[1] = bad
    scores[1, 7] = 1.0

    after = drawn(scores, draws)

    assert 0 <= after[1] < 5000
    assert (after[0], after[2]) == (before[0], before[2])


@pytest.mark.parametrize("num_threads", [1, 2])
def test_a_row_draws_the_same_alone_and_beside_others(num_threads: int) -> None:
    scores, draws = normal(5, 9000, 3.0), make_draws(5, top_p=0.95, temperature=0.8)
    with threads(num_threads):
        together = drawn(scores, draws)
        for row in range(5):
            this = torch.tensor([row])
            filters = Filters(
                draws.filters.top_k[this], draws.filters.top_p[this], draws.filters.min_p[this]
            )
            alone = Draws(torch.tensor([0]), draws.temperature[this], filters, draws.streams[this])
            assert drawn(scores[row : row + 1], alone) == [together[row]]


def mixed_draws(rows: list[int]) -> Draws:
    """Of so many rows, no two of which are drawn alike; `rows` says where they lie."""
    count = len(rows)
    wanted = torch.tensor(rows)
    return Draws(
        rows=wanted,
        temperature=torch.tensor([0.3, 4.0, 1.0, 0.8, 2.5, 9.0])[wanted],
        filters=Filters(
            top_k=torch.tensor([0, 3, 0, 40, 7, 0])[wanted],
            top_p=torch.tensor([1.0, 1.0, 0.3, 0.97, 0.8, 1.0])[wanted],
            min_p=torch.tensor([LEAST_P, LEAST_P, LEAST_P, 0.02, LEAST_P, 0.4])[wanted],
        ),
        streams=torch.tensor([[row, row + 5, 90 - row, row % 3] for row in rows]).view(count, 4),
    )


@pytest.mark.parametrize("rows", [[0, 1, 2, 3, 4, 5], [5, 3, 1], [4, 0, 2, 5], [2]], ids=str)
def test_each_row_is_drawn_by_its_own_limits_from_its_own_scores(rows: list[int]) -> None:
    """Best tokens differ by far, so that no row could do with the best of another."""
    for seed in range(20):
        scores = normal(6, 700, 1.5, seed) + torch.arange(6).unsqueeze(1) * 3
        draws = mixed_draws(rows)

        tokens = drawn(scores, draws)

        assert tokens == drawn_by_torch(scores, draws)
        for row, token in zip(rows, tokens, strict=True):
            assert drawn(scores, mixed_draws([row])) == [token]


def test_scores_that_are_large_and_close_are_told_apart_before_they_are_divided() -> None:
    scores = normal(64, 500, 0.01) + 3000.0
    draws = make_draws(64, temperature=0.004)

    tokens = drawn(scores, draws)

    assert tokens == drawn_by_torch(scores, draws)
    assert len(set(tokens)) > 3


@pytest.mark.parametrize("limits", [{}, {"top_k": 5}, {"top_p": 0.5}, {"top_k": 5, "top_p": 0.5}])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_row_with_nothing_to_draw_from_gives_its_best_token(
    limits: dict[str, float], bad: float
) -> None:
    scores = normal(3, 300, 1.0)
    scores[1] = bad

    tokens = drawn(scores, make_draws(3, **limits))  # type: ignore[arg-type]

    assert tokens[1] == int(best_token(scores)[1])


def test_as_many_as_top_k_are_kept_where_a_limit_divides_them_from_the_others() -> None:
    """Half of the tokens lie above -1/2, which is among the limits that are tried."""
    scores = torch.cat((torch.linspace(0, -0.4, 1500), torch.full((1500,), -0.6)))
    draws = make_draws(64, top_k=1500)

    assert max(drawn(scores.expand(64, -1).contiguous(), draws)) < 1500


def test_tokens_tied_for_the_last_place_of_top_k_count_towards_top_p() -> None:
    """Two thousand of them hold nearly all of the mass."""
    scores = torch.tensor([[1.0] + [0.0] * 2000]).expand(16, -1).contiguous()
    draws = make_draws(16, top_k=5, top_p=0.5)

    tokens = drawn(scores, draws)

    assert tokens == drawn_by_torch(scores, draws)
    assert len(set(tokens)) > 8
