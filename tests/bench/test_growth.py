import pytest
from bench.engine.growth import fit


def test_points_on_a_line_give_the_line() -> None:
    start, slope, straightness = fit([1, 2, 4, 8], [5.0, 7.0, 11.0, 19.0])

    assert (start, slope, straightness) == pytest.approx((3.0, 2.0, 1.0))


def test_points_off_a_line_say_so() -> None:
    _, _, straightness = fit([1, 2, 3, 4], [1.0, 4.0, 9.0, 16.0])

    assert straightness < 0.99
