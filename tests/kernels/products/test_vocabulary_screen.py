"""The best tokens without all logits: exactly those that all logits give."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from baton.kernels.cpu.operators import runs
from baton.kernels.products import int8_rows
from baton.kernels.products import vocabulary_screen as screens
from baton.kernels.products import vocabulary_screen_cpu as cpu
from baton.kernels.products.packed_weight import PackedWeight, pack
from baton.kernels.products.vocabulary_screen import MAX_ROWS, VocabularyScreen, screen_of
from baton.kernels.sampling.best_token import best_token
from baton.kernels.sampling.draw_token import LEAST_P, Draws, draw_token
from baton.kernels.sampling.token_filter import Filters

pytestmark = pytest.mark.skipif(not runs(torch.zeros(1)), reason="there is no C++ compiler")
each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
SHAPES = [(4096, 64), (4065, 130), (9000, 34), (2048, 768)]


def made(num_tokens: int, width: int, dtype: torch.dtype, seed: int = 0) -> PackedWeight:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(num_tokens, width, generator=generator) * 0.05
    weight *= torch.rand(num_tokens, 1, generator=generator) + 0.5
    return pack(weight.to(dtype))


def rows_of(count: int, width: int, dtype: torch.dtype, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(count, width, generator=generator) * 3).to(dtype)


def expected(weight: PackedWeight, x: Tensor) -> list[int]:
    found: list[int] = best_token(weight.logits(x)).tolist()
    return found


def screened(screen: VocabularyScreen, x: Tensor, draws: Draws | None = None) -> list[int]:
    """What is found, whatever calls before it have failed."""
    for _ in range(screens.MAX_SKIPPED + 1):
        if (found := screen.tokens(x, draws)) is not None:
            return found.tokens
    raise AssertionError("never screened")


@each_dtype
@pytest.mark.parametrize(("num_tokens", "width"), SHAPES)
def test_the_best_tokens_are_those_of_all_logits(
    num_tokens: int, width: int, dtype: torch.dtype
) -> None:
    weight = made(num_tokens, width, dtype)
    screen = VocabularyScreen(weight)
    for count in (1, 2, 3, 9, 17, MAX_ROWS):
        x = rows_of(count, width, dtype, seed=count)

        assert screened(screen, x) == expected(weight, x)


@each_dtype
def test_bounds_hold_for_every_logit_and_are_not_idle(dtype: torch.dtype) -> None:
    """Also of rows of weights and of x that eight bits render badly, and of tiny and huge ones."""
    num_tokens, width = 1000, 96
    weight = made(num_tokens, width, dtype).to_dense().clone()
    weight[:200, 5] *= 300  # all other numbers of the row round to few
    weight[200:300] *= 1e-25
    weight[300:310] *= 1e12
    weight[310:320] = 0
    x = rows_of(6, width, dtype)
    x[1, 7] *= 1000
    x[2] *= 1e-20
    x[3] *= 1e10
    q, scales = int8_rows.reference(x)
    weight[320:326] = (x - scales * q).sign()  # meets all that 8 bits of x leave out
    packed = pack(weight)
    head = cpu.bounded(packed, 4)
    exact = of_panels(x.double() @ weight.double().T)
    computed = of_panels(packed.logits(x).double())
    widths = []
    for few in (x, x[:4]):
        highest, lowest = cpu.panel_bounds(cpu.rounded_rows(few), head)
        for logits in (exact[: len(few)], computed[: len(few)]):
            assert (highest.double() >= logits).all()
            assert (lowest.double() <= logits).all()
        widths.append((highest - lowest)[0, 352 // 32 : -1].max())
    spread = packed.logits(x[:1])[0, 320:].std()
    assert spread > widths[0] > 1.5 * widths[1]


def of_panels(logits: Tensor) -> Tensor:
    """The largest of each 32 tokens."""
    padding = -logits.shape[1] % 32
    padded = torch.nn.functional.pad(logits, (0, padding), value=-math.inf)
    return padded.view(len(logits), -1, 32).amax(-1)


@each_dtype
def test_equal_logits_give_the_lowest_token(dtype: torch.dtype) -> None:
    weight = made(4096, 64, dtype).to_dense().clone()
    weight[[3000, 77, 4095, 78]] = weight[1234].clone()
    packed = pack(weight)
    x = (weight[1234:1235] * 20).repeat(3, 1)

    assert screened(VocabularyScreen(packed), x) == [77] * 3 == expected(packed, x)


@each_dtype
def test_an_equal_logit_with_wider_bounds_is_not_missed(dtype: torch.dtype) -> None:
    weight = made(4096, 64, dtype).to_dense().clone()
    weight[3000, 5] = 0
    weight[77] = weight[3000]
    weight[77, 5] = 50  # where x is zero, so that only its bounds differ
    packed = pack(weight)
    x = weight[3000:3001] * 20

    assert screened(VocabularyScreen(packed), x) == [77] == expected(packed, x)


@given(seed=st.integers(0, 1 << 20), exponent=st.integers(-30, -6), count=st.integers(2, 900))
@settings(max_examples=40, deadline=None)
def test_tokens_closer_than_eight_bits_can_tell_are_told_apart(
    seed: int, exponent: int, count: int
) -> None:
    """Many rows of W are one row with differences far below the steps of its eight bits."""
    generator = torch.Generator().manual_seed(seed)
    for dtype in (torch.float32, torch.bfloat16):
        weight = torch.randn(4096, 32, generator=generator)
        near = weight[0] * (1 + torch.randn(count, 32, generator=generator) * 2.0**exponent)
        weight[torch.randperm(4096, generator=generator)[:count]] = near
        packed = pack(weight.to(dtype))
        x = torch.stack((weight[0], -weight[0], weight[0] * 1e-6)).to(dtype)

        assert screened(VocabularyScreen(packed), x) == expected(packed, x)


@each_dtype
@pytest.mark.parametrize("bad", [math.nan, math.inf, 3e38])
def test_rows_that_are_not_finite_are_told_and_disturb_no_other(
    bad: float, dtype: torch.dtype
) -> None:
    weight = made(4096, 64, dtype)
    x = rows_of(9, 64, dtype)
    x[4, 63] = bad

    best = VocabularyScreen(weight).tokens(x)

    finite = weight.logits(x).isfinite().all(dim=-1).tolist()
    assert best is not None
    assert best.are_finite == finite
    assert best.tokens[:4] + best.tokens[5:] == expected(weight, torch.cat((x[:4], x[5:])))


CUTS = [  # top-k, top-p, min-p
    (0, 1.0, 0.0), (0, 1.0, 0.2), (20, 0.95, 0.0), (50, 1.0, 0.01), (1, 1.0, 0.0), (2, 0.3, 0.0),
    (256, 0.999, 0.0), (257, 0.95, 0.0), (0, 0.9, 0.0), (4064, 0.9, 0.0), (9999, 1.0, 0.0),
    (9999, 0.5, 0.1), (64, 1e-6, 0.0),
]  # fmt: skip


def draws_of(
    rows: Sequence[int], temperature: float, cuts: Sequence[tuple[int, float, float]], seed: int = 0
) -> Draws:
    """Each row with its own limits."""
    top_k, top_p, min_p = zip(*cuts, strict=True)
    generator = torch.Generator().manual_seed(seed)
    return Draws(
        rows=torch.tensor(rows),
        temperature=torch.full((len(rows),), temperature),
        filters=Filters(
            top_k=torch.tensor(top_k),
            top_p=torch.tensor(top_p),
            min_p=torch.tensor([max(p, LEAST_P) for p in min_p]),
        ),
        streams=torch.randint(0, 1 << 31, (len(rows), 4), generator=generator),
    )


def drawn(weight: PackedWeight, x: Tensor, draws: Draws) -> list[int]:
    logits = weight.logits(x)
    tokens = best_token(logits)
    tokens[draws.rows] = draw_token(logits, tokens, draws)
    found: list[int] = tokens.tolist()
    return found


def found_alone(weight: PackedWeight, x: Tensor, draws: Draws) -> list[int]:
    """What is found of the rows of `draws`, which are all rows, without any row's logits."""
    filters = draws.filters
    settings = cpu.Settings(
        temperature=draws.temperature,
        top_k=filters.top_k,
        top_p=filters.top_p,
        least=filters.min_p.log(),
        streams=draws.streams,
    )
    head = cpu.bounded(weight, len(weight.packed) // 4)
    found: list[int] = cpu.found_tokens(x, head, settings)[0].tolist()
    return found


@each_dtype
@pytest.mark.parametrize("temperature", [0.05, 0.7, 1.0, 3.0, 50.0])
def test_drawn_tokens_are_those_drawn_from_all_logits(
    temperature: float, dtype: torch.dtype
) -> None:
    weight = made(4065, 64, dtype)
    screen = VocabularyScreen(weight)
    for first, count in ((0, 1), (2, 1), (2, 3), (0, 20), (5, 40)):
        x = rows_of(count, 64, dtype, seed=count)
        x[count // 2] *= 1e-3  # logits so close together that noise decides
        rows = range(0, count, 2)  # the others take their best token
        cuts = [CUTS[(first + row) % len(CUTS)] for row in rows]
        draws = draws_of(rows, temperature, cuts, seed=first)
        for _ in range(8):
            assert screened(screen, x, draws) == drawn(weight, x, draws)
            draws.streams[:, 2] += 1


@pytest.mark.parametrize("cut", [(1, 1.0, 0.0), (20, 0.95, 0.0), (9, 1.0, 0.01), (0, 0.9, 0.0)])
def test_rows_with_top_k_and_peaked_rows_with_top_p_need_no_logits(
    cut: tuple[int, float, float],
) -> None:
    weight = made(9000, 64, torch.float32)
    x = rows_of(8, 64, torch.float32)
    x[:4] *= 10  # the logits of these have a clear best
    draws = draws_of(range(8), 0.6, [cut] * 8)

    found = found_alone(weight, x, draws)

    assert found[:4] == drawn(weight, x, draws)[:4]
    if cut[0]:
        assert found == drawn(weight, x, draws)


def with_logits(logits: Tensor) -> tuple[PackedWeight, Tensor]:
    """A head, and a row that has exactly these logits [V]; the rest of the head hides them from the
    bounds."""
    weight = made(len(logits), 64, torch.float32).to_dense().clone()
    weight[:, 0] = logits
    x = torch.zeros(1, 64)
    x[0, 0] = 1
    return pack(weight), x


@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_tokens_tied_for_the_last_place_of_top_k_may_all_be_drawn(top_p: float) -> None:
    """Ties are equal logits, or such that the temperature makes equal."""
    logits = torch.randn(4096, generator=torch.Generator().manual_seed(3)) - 2
    tied = [4000, 17, 900, 333, 2048, 2049, 1100]
    logits[tied[:4]], logits[tied[4:]] = 6.0, 6.0 + 2.0**-21  # one step of float32 above
    logits[2222] = 6.5
    weight, x = with_logits(logits)
    x, draws = x.repeat(64, 1), draws_of(range(64), 1.9, [(3, top_p, 0.0)] * 64)
    seen: set[int] = set()
    for _ in range(8):
        tokens = found_alone(weight, x, draws)
        assert tokens == drawn(weight, x, draws)
        seen |= set(tokens)
        draws.streams[:, 2] += 1

    related = (logits - 6.5) / 1.9
    assert seen == set(
        (related >= related.sort(descending=True).values[2]).nonzero()[:, 0].tolist()
    )
    assert len(seen) > 3


def test_more_ties_than_can_be_listed_are_left_to_all_logits() -> None:
    logits = torch.zeros(9000)
    logits[::7] = 1.0
    logits[5] = 2.0
    weight, x = with_logits(logits)
    draws = draws_of([0], 1.0, [(20, 0.9, 0.0)])

    assert found_alone(weight, x, draws) == [screens.NOT_SCREENED]
    assert screened(VocabularyScreen(weight), x, draws) == drawn(weight, x, draws)


@given(
    seed=st.integers(0, 1 << 20),
    num_steps=st.integers(1, 30),
    top_k=st.integers(0, 60),
    top_p=st.sampled_from([1e-6, 0.3, 0.62, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.01, 0.5]),
    temperature=st.sampled_from([0.1, 0.6, 1.9, 1e-30]),
)
@settings(max_examples=60, deadline=None)
def test_few_levels_of_logits_are_cut_between_them_as_all_logits_are(
    seed: int, num_steps: int, top_k: int, top_p: float, min_p: float, temperature: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    best = torch.randn(4096, generator=generator)
    best[torch.randperm(4096, generator=generator)[:40]] += 5
    weight, x = with_logits((best * num_steps).round() / num_steps)
    draws = draws_of(range(8), temperature, [(top_k, top_p, min_p)] * 8, seed)

    x = x.repeat(8, 1)
    tokens, expected_tokens = found_alone(weight, x, draws), drawn(weight, x, draws)

    for token, one in zip(tokens, expected_tokens, strict=True):
        assert token in (one, screens.NOT_SCREENED)


def test_rows_that_cannot_be_screened_are_drawn_from_all_logits() -> None:
    weight = made(4096, 64, torch.float32)
    x = rows_of(9, 64, torch.float32)
    x[[2, 5]] = 0
    x[7, 0] = math.nan
    draws = draws_of([1, 2, 3, 7], 1.0, [(0, 1.0, 0.0), (0, 1.0, 0.0), (300, 0.9, 0.0), CUTS[2]])

    found = VocabularyScreen(weight).tokens(x, draws)

    assert found is not None
    assert found.are_finite == [row != 7 for row in range(9)]
    finite = [row for row in range(9) if row != 7]
    tokens = drawn(weight, x, draws)
    assert found.of_rows(finite).tokens == [tokens[row] for row in finite]


def test_rows_of_zeros_have_all_their_logits_computed() -> None:
    weight = made(4096, 64, torch.float32)
    x = rows_of(8, 64, torch.float32)
    x[2] = 0

    assert screened(VocabularyScreen(weight), x) == expected(weight, x)
    assert screened(VocabularyScreen(weight), x)[2] == 0


def test_after_failures_screening_is_tried_less_often_until_one_succeeds() -> None:
    weight = made(4096, 64, torch.float32)
    screen, same, good = VocabularyScreen(weight), torch.zeros(2, 64), rows_of(2, 64, torch.float32)

    tried = [screen.tokens(same) is not None for _ in range(2000)]
    gaps = [len(gap) for gap in "".join("x" if one else "." for one in tried).split("x")]

    assert gaps[:6] == [0, 1, 3, 7, 15, 31]
    assert max(gaps) == screens.MAX_SKIPPED
    screened(screen, good)
    assert all(screen.tokens(good) is not None for _ in range(10))


def test_calls_that_compute_more_than_they_spare_have_failed_although_no_row_is_left() -> None:
    weight = made(4096, 64, torch.float32).to_dense().clone()
    weight[::200] = weight[0].clone()  # a sixth of all panels has a best token
    packed = pack(weight)
    one, many = weight[:1] * 20, (weight[:1] * 20).repeat(8, 1)
    screen = VocabularyScreen(packed)

    assert [screen.tokens(one) is not None for _ in range(4)] == [True] * 4
    assert [screen.tokens(many) is not None for _ in range(4)] == [True, False, True, False]
    assert screened(screen, many) == [0] * 8 == expected(packed, many)


def test_a_head_is_screened_if_it_is_large_packed_and_finite() -> None:
    large = made(4096, 256, torch.float32)
    spoilt = large.to_dense().clone()
    spoilt[9, 9] = math.inf

    assert screen_of(large) is not None
    assert screen_of(pack(spoilt)) is None
    assert screen_of(made(900, 256, torch.float32)) is None
    assert screen_of(large.to_dense()) is None


def test_rows_that_lie_apart_or_are_too_many_are_left_to_the_caller() -> None:
    screen = VocabularyScreen(made(4096, 64, torch.float32))

    assert screen.tokens(rows_of(MAX_ROWS + 1, 64, torch.float32)) is None
    assert screen.tokens(rows_of(4, 66, torch.float32)[:, :64]) is None
    assert screen.tokens(rows_of(4, 64, torch.bfloat16)) is None
    assert screen.tokens(rows_of(0, 64, torch.float32)) is None


def test_its_size_is_known_from_its_shape() -> None:
    head = cpu.bounded(made(4065, 130, torch.bfloat16), 4)
    parts = (head.rounded, head.scales, head.errors, head.lengths)

    assert screens.num_bytes((4065, 130), torch.bfloat16) == sum(part.nbytes for part in parts)
    assert screens.num_bytes((4065, 130), torch.float16) == 0
    assert screens.num_bytes((1000, 130), torch.bfloat16) == 0
