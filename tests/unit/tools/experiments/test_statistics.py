"""Statistics over seeds, against numbers worked out by hand."""

from __future__ import annotations

from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sacglam.tools.experiments.statistics import (
    area,
    band,
    crossing,
    estimate,
    ratio,
    t_975,
)

POSITIVE = st.floats(min_value=1e-3, max_value=1e3)


def test_estimate_of_three_values() -> None:
    found = estimate([1.0, 2.0, 6.0])
    # mean 3, squared deviations 4 + 1 + 9 = 14, variance 14 / 2 = 7; half width 4.303 * sqrt(7) / sqrt(3)
    assert found.mean == 3
    assert found.std == pytest.approx(sqrt(7))
    assert found.low == pytest.approx(3 - 6.5730, abs=1e-3)
    assert found.high == pytest.approx(3 + 6.5730, abs=1e-3)
    assert found.n == 3


def test_one_seed_has_neither_spread_nor_interval() -> None:
    found = estimate([0.9])
    assert (found.mean, found.std, found.low, found.high, found.n) == (0.9, None, None, None, 1)


@pytest.mark.parametrize(
    ("degrees", "expected"), [(1, 12.706), (2, 4.303), (4, 2.776), (10, 2.228), (30, 2.042), (35, 2.042), (999, 1.980)]
)
def test_students_t(degrees: int, expected: float) -> None:
    assert t_975(degrees) == expected


def test_students_t_falls_with_degrees_of_freedom() -> None:
    values = [t_975(degrees) for degrees in range(1, 200)]
    assert values == sorted(values, reverse=True)
    assert values[-1] > 1.96


def test_ratio_is_a_geometric_mean_over_the_seeds_that_have_both() -> None:
    found = ratio([200.0, 800.0, None, 50.0], [100.0, 100.0, 100.0, None])
    assert found is not None
    assert found.mean == pytest.approx(4.0)  # of 2 and 8
    assert found.n == 2
    # logs ln 2 and ln 8: mean ln 4, std ln(4) / sqrt(2); half width 12.706 * ln(4) / 2
    assert found.low == pytest.approx(4.0 * 4.0 ** (-12.706 / 2))
    assert found.high == pytest.approx(4.0 * 4.0 ** (12.706 / 2))


def test_no_ratio_without_a_seed_that_has_both() -> None:
    assert ratio([None, 3.0], [3.0, None]) is None
    assert ratio([0.0], [3.0]) is None


@given(st.lists(st.tuples(POSITIVE, POSITIVE), min_size=2, max_size=5))
def test_ratio_turned_round_is_its_inverse(pairs: list[tuple[float, float]]) -> None:
    ones, others = zip(*pairs, strict=True)
    there, back = ratio(ones, others), ratio(others, ones)
    assert there is not None
    assert back is not None
    assert there.mean * back.mean == pytest.approx(1)


def test_crossing_of_runs_that_all_reached_it() -> None:
    found = crossing([300.0, 100.0, 200.0])
    assert (found.reached, found.median) == (3, 200)


def test_a_run_that_never_reached_it_counts_as_the_longest() -> None:
    found = crossing([300.0, None, 100.0])
    assert (found.reached, found.median) == (2, 300)


@pytest.mark.parametrize("values", [[None, None, 100.0], [None, 100.0], [None]])
def test_a_median_of_never_is_unknown(values: list[float | None]) -> None:
    assert crossing(values).median is None


def test_area_by_trapezoids() -> None:
    # 0 to 100: mean 0.25; 100 to 200: mean 0.75
    assert area([0, 100, 200], [0.0, 0.5, 1.0], 200) == pytest.approx(0.5)
    # to 150: 100 at 0.25 and 50 at (0.5 + 0.75) / 2
    assert area([0, 100, 200], [0.0, 0.5, 1.0], 150) == pytest.approx((25 + 31.25) / 150)


def test_area_beyond_the_last_point_holds_its_value() -> None:
    assert area([0, 100], [1.0, 1.0], 400) == 1.0


def test_band_is_mean_and_deviation_between_curves() -> None:
    mean, std = band([([0, 10], [0.0, 1.0]), ([0, 20], [0.0, 1.0])], [0, 10])
    assert mean.tolist() == [0.0, 0.75]
    assert std.tolist() == pytest.approx([0.0, sqrt(2 * 0.25**2)])


def test_band_of_one_curve_has_no_width() -> None:
    mean, std = band([([0, 10], [0.0, 1.0])], [0, 5, 10])
    assert (mean.tolist(), std.tolist()) == ([0.0, 0.5, 1.0], [0.0, 0.0, 0.0])
