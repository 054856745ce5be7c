from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.covering_rows import FEW, covering

sizes = st.lists(st.integers(1, 5), min_size=1, max_size=4)


def rows_of(sizes: list[int]) -> list[tuple[str, ...]]:
    return list(product(*([str(value) for value in range(size)] for size in sizes)))


@given(sizes, st.integers(2, 30))
def test_each_value_of_each_parameter_is_run(sizes: list[int], step: int) -> None:
    """Also of a product with holes."""
    rows = [row for number, row in enumerate(rows_of(sizes)) if number % step != 1]

    chosen = [row for row, is_chosen in zip(rows, covering(rows), strict=True) if is_chosen]

    for axis in range(len(sizes)):
        assert {row[axis] for row in chosen} == {row[axis] for row in rows}


def test_each_pair_of_values_of_three_parameters_meets_in_far_fewer_rows() -> None:
    rows = rows_of([4, 5, 3, 4])

    chosen = [row for row, is_chosen in zip(rows, covering(rows), strict=True) if is_chosen]

    for one, other in product(range(4), repeat=2):
        meet = {(row[one], row[other]) for row in rows}
        assert {(row[one], row[other]) for row in chosen} == meet
    assert len(chosen) < len(rows) / 6


def test_all_values_of_one_parameter_and_all_of_a_few_rows_are_run() -> None:
    assert all(covering([(str(number),) for number in range(50)]))
    assert all(covering(rows_of([2, 3])[:FEW]))


@pytest.mark.parametrize("one", range(4))
@pytest.mark.parametrize("other", range(4))
def test_rows_that_add_little_are_wide(
    request: pytest.FixtureRequest, one: int, other: int
) -> None:
    is_wide = request.node.get_closest_marker("wide") is not None

    assert is_wide == (one != other)
