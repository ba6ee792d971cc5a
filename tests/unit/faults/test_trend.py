from __future__ import annotations

import random

import pytest

from tests.faults.trend import blocks, student, trend


def test_a_straight_line_has_its_slope_and_no_doubt() -> None:
    found = trend([(hour / 10, 3.0 + 2.5 * hour / 10) for hour in range(20)])
    assert found.slope == pytest.approx(2.5)
    assert found.half == pytest.approx(0.0, abs=1e-9)


def test_a_known_example() -> None:
    """Heights and masses of the article "Simple linear regression" of Wikipedia: 61.272 ± 1.7762 · 2.1604."""
    heights = (1.47, 1.50, 1.52, 1.55, 1.57, 1.60, 1.63, 1.65, 1.68, 1.70, 1.73, 1.75, 1.78, 1.80, 1.83)
    masses = (52.21, 53.12, 54.48, 55.84, 57.20, 58.57, 59.93, 61.29, 63.11, 64.47, 66.28, 68.10, 69.92, 72.19, 74.46)
    found = trend(list(zip(heights, masses, strict=True)))
    assert found.slope == pytest.approx(61.272, abs=0.001)
    assert found.half == pytest.approx(1.7762 * 2.1604, abs=0.002)
    assert str(found) == "+61.27 ± 3.84"


@pytest.mark.parametrize("slope", [0.0, 4.0])
def test_the_interval_contains_the_slope_as_often_as_it_says(slope: float) -> None:
    dice, runs = random.Random(1), 400
    missed = 0
    for _ in range(runs):
        found = trend([(at / 60, 100 + slope * at / 60 + dice.gauss(0, 2)) for at in range(45)])
        missed += not found.least <= slope <= found.most
    assert 0.02 <= missed / runs <= 0.09


@pytest.mark.parametrize(("freedom", "quantile"), [(4, 2.776), (10, 2.228), (13, 2.160), (43, 2.017)])
def test_student(freedom: int, quantile: float) -> None:
    assert student(freedom) == pytest.approx(quantile, rel=0.01)


def test_blocks_are_means_of_stretches() -> None:
    points = [(float(at), float(at * 10)) for at in range(7)]
    assert blocks(points, 3) == [(1.5, 15.0), (3.5, 35.0), (5.5, 55.0)]
    assert blocks(points, 99) == points


def test_few_points_say_nothing() -> None:
    with pytest.raises(ValueError, match="3 points"):
        trend([(1.0, 1.0)] * 3)
