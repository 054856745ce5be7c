"""Low-rank updates against their definition in double precision."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.kernels.products.low_rank_cases import Rows, Shape, assert_updated, rows_of
from tests.torch_threads import threads
from torch import Tensor

from baton.kernels.cpu.library import library
from baton.kernels.cpu.operators import Pass
from baton.kernels.cpu.tape import NUM_OUTPUTS, NUM_TOKENS, Recorder
from baton.kernels.elementwise.add import add
from baton.kernels.products.low_rank import LowRank, add_low_rank_

DTYPES = (torch.float32, torch.bfloat16)

each_dtype = pytest.mark.parametrize("dtype", DTYPES)
compiled = pytest.mark.skipif(library() is None, reason="there is no C++ compiler")


def update(rows: Rows) -> Tensor:
    y = rows.y.clone()
    assert add_low_rank_(y, rows.x, rows.updates, rows.numbers) is y
    return y


@given(
    num_rows=st.integers(0, 70),
    shape=st.tuples(
        st.integers(1, 300),
        st.lists(st.integers(1, 700), min_size=1, max_size=3).map(tuple),
        st.integers(1, 70),
    ),
    dtype=st.sampled_from(DTYPES),
    num_adapters=st.integers(1, 5),
)
def test_each_row_gets_the_update_of_its_adapter(
    num_rows: int, shape: Shape, dtype: torch.dtype, num_adapters: int
) -> None:
    rows = rows_of(num_rows, shape, dtype, num_adapters=num_adapters)

    assert_updated(update(rows), rows)


@each_dtype
def test_ranks_may_be_high_and_rows_many(dtype: torch.dtype) -> None:
    rows = rows_of(200, (1030, (513, 36), 256), dtype)

    assert_updated(update(rows), rows)


def test_other_dtypes_are_computed_by_torch() -> None:
    rows = rows_of(5, (20, (7, 8), 4), torch.float16)
    wide = rows.to(torch.float32)

    torch.testing.assert_close(update(rows).float(), update(wide), rtol=1e-3, atol=1e-3)


def test_values_between_the_products_and_the_update_are_not_rounded() -> None:
    down = torch.tensor([1, 2**-9]).bfloat16().view(1, 1, 1, 2)
    rows = Rows(
        torch.tensor([[-256.0]]).bfloat16(),
        torch.ones(1, 2).bfloat16(),
        LowRank(down, torch.full((1, 1, 1), 256.0).bfloat16(), (1,)),
        torch.ones(1, dtype=torch.int64),
    )
    up = torch.tensor([1, 2**-9]).bfloat16().view(1, 2, 1)
    to_a_tie = Rows(
        torch.tensor([[256.0]]).bfloat16(),
        torch.ones(1, 1).bfloat16(),
        LowRank(torch.ones(1, 1, 2, 1).bfloat16(), up, (1,)),
        rows.numbers,
    )

    assert update(rows).item() == 0.5
    assert update(to_a_tie).item() == 258  # 256 if the update is rounded to 1 before it is added


@each_dtype
def test_rows_without_an_adapter_keep_every_bit(dtype: torch.dtype) -> None:
    rows = rows_of(40, (64, (100,), 8), dtype)
    is_bare = rows.numbers[:40] == 0
    rows.y[is_bare] = torch.tensor([-0.0, float("nan"), float("inf"), 1.0], dtype=dtype).repeat(25)
    rows.x[is_bare] = float("nan")

    found = update(rows)

    bits = torch.int32 if dtype is torch.float32 else torch.int16
    assert torch.equal(found[is_bare].view(bits), rows.y[is_bare].view(bits))
    assert found[~is_bare].isfinite().all()


@each_dtype
def test_a_row_has_the_same_bits_beside_any_other_rows(dtype: torch.dtype) -> None:
    rows = rows_of(75, (600, (530, 40), 37), dtype)
    rows.numbers[30:70] = 2  # blocks that are full

    def updated(some: slice) -> Tensor:
        return add_low_rank_(
            rows.y[some].clone(), rows.x[some], rows.updates, rows.numbers[some].contiguous()
        )

    with threads(1):
        alone = torch.cat([updated(slice(row, row + 1)) for row in range(75)])
    for num_threads in (1, 2, 5):
        with threads(num_threads):
            for some in (slice(0, 75), slice(3, 40), slice(29, 32), slice(31, 75)):
                assert torch.equal(updated(some), alone[some])


@compiled
@each_dtype
def test_passes_with_other_rows_and_adapters_are_played(dtype: torch.dtype) -> None:
    rows = rows_of(90, (48, (100, 30), 8), dtype)
    zero = torch.zeros_like(rows.y)

    def run(num_tokens: int) -> Tensor:
        y = add(rows.y[:num_tokens], zero[:num_tokens])
        add_low_rank_(y, rows.x[:num_tokens], rows.updates, rows.numbers)
        return add(y, zero[:num_tokens])

    rows.numbers.zero_()
    with Recorder() as recorder:
        result = run(NUM_TOKENS)
    tape = recorder.tape(result, max_tokens=90, max_outputs=NUM_OUTPUTS)

    for num_threads, numbers in ((2, (0, 1, 2, 3)), (1, (3, 1)), (2, (0,))):
        rows.numbers.copy_(torch.tensor(numbers).repeat(100)[: len(rows.numbers)])
        for num_tokens in (1, 90):
            with threads(num_threads):
                tape.play(Pass(num_tokens=num_tokens))
            assert torch.equal(tape.result[:num_tokens], run(num_tokens))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"y": torch.zeros(4, 9)}, r"y must be \[5, 9\]"),
        ({"y": torch.zeros(5, 9).bfloat16()}, "y must be .* as the updates are: .* torch.bfloat16"),
        ({"y": torch.zeros(9, 5).T}, "y must be contiguous"),
        ({"x": torch.zeros(5, 11)}, r"x must be \[5, 10\]"),
        ({"x": torch.zeros(10, 5).T}, "x have adjacent inputs"),
        ({"numbers": torch.zeros(4, dtype=torch.int64)}, "a number for each of 5 rows"),
        ({"numbers": torch.zeros(5, dtype=torch.int32)}, "numbers must be int64"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(changed: dict[str, Tensor], said: str) -> None:
    rows = rows_of(5, (10, (4, 5), 2), torch.float32)
    given = {"y": rows.y, "x": rows.x, "numbers": rows.numbers, **changed}

    with pytest.raises(ValueError, match=said):
        add_low_rank_(given["y"], given["x"], rows.updates, given["numbers"])


def test_matrices_that_do_not_fit_each_other_are_refused() -> None:
    down, up = torch.zeros(2, 2, 3, 10), torch.zeros(2, 3, 9)

    for parts in ((4, 4), (9,)):
        with pytest.raises(ValueError, match="shapes do not fit"):
            LowRank(down, up, parts)
    with pytest.raises(ValueError, match="one dtype"):
        LowRank(down, up.bfloat16(), (4, 5))
    with pytest.raises(ValueError, match="contiguous"):
        LowRank(down, up.mT.contiguous().mT, (4, 5))
