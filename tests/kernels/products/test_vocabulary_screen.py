"""The best tokens without all logits: exactly those that all logits give."""

from __future__ import annotations

import math

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


@each_dtype
@pytest.mark.parametrize("temperature", [0.05, 0.7, 1.0, 3.0, 50.0])
@pytest.mark.parametrize("min_p", [0.0, 0.2])
def test_drawn_tokens_are_those_drawn_from_all_logits(
    temperature: float, min_p: float, dtype: torch.dtype
) -> None:
    weight = made(4065, 64, dtype)
    screen = VocabularyScreen(weight)
    for count in (1, 3, 20):
        x = rows_of(count, 64, dtype, seed=count)
        x[count // 2] *= 1e-3  # logits so close together that noise decides
        rows = torch.arange(0, count, 2)  # the others take their best token
        draws = Draws(
            rows=rows,
            temperature=torch.full((len(rows),), temperature),
            filters=Filters(
                top_k=torch.zeros(len(rows), dtype=torch.int64),
                top_p=torch.ones(len(rows)),
                min_p=torch.full((len(rows),), max(min_p, LEAST_P)),
            ),
            streams=torch.randint(0, 1 << 31, (len(rows), 4)),
            is_cut=False,
        )
        for _ in range(8):
            logits = weight.logits(x)
            tokens = best_token(logits)
            tokens[rows] = draw_token(logits, tokens, draws)

            assert screened(screen, x, draws) == tokens.tolist()
            draws.streams[:, 2] += 1


def test_rows_that_cannot_be_screened_are_drawn_from_all_logits() -> None:
    weight = made(4096, 64, torch.float32)
    x = rows_of(9, 64, torch.float32)
    x[[2, 5]] = 0
    x[7, 0] = math.nan
    streams = torch.randint(0, 1 << 31, (3, 4))
    filters = Filters(torch.zeros(3).long(), torch.ones(3), torch.full((3,), LEAST_P))
    rows = torch.tensor([1, 2, 7])
    draws = Draws(rows, torch.ones(3), filters, streams, is_cut=False)

    found = VocabularyScreen(weight).tokens(x, draws)

    logits = weight.logits(x)
    tokens = best_token(logits)
    tokens[rows] = draw_token(logits, tokens, draws)
    assert found is not None
    assert found.are_finite == [row != 7 for row in range(9)]
    finite = [row for row in range(9) if row != 7]
    assert found.of_rows(finite).tokens == tokens[finite].tolist()


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
