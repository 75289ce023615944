"""Linear regression from moments: against least squares, and with inputs that stand still or are equal."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence

import pytest

from autoglm_throttle.observe.regression import Moments, error_inflation, inverted


def moments_of(rows: Sequence[tuple[float, ...]], forgetting: float = 1.0) -> Moments:
    moments = Moments(len(rows[0]) - 1, forgetting)
    for row in rows:
        moments.add(row)
    return moments


def drawn(seed: int, observations: int = 400) -> list[tuple[float, ...]]:
    rng = random.Random(seed)
    rows: list[tuple[float, ...]] = []
    for _ in range(observations):
        one, other = rng.gauss(5, 2), rng.gauss(0, 0.1)
        rows.append((one, other, 7 + 3 * one - 20 * other + rng.gauss(0, 0.5)))
    return rows


def test_one_input_agrees_with_least_squares() -> None:
    rows = [(one, output) for one, _, output in drawn(1)]
    slope, _ = statistics.linear_regression(*zip(*rows, strict=True))
    assert moments_of(rows).regress().coefficients[0] == pytest.approx(slope, rel=2e-3)


def test_two_inputs_have_their_planted_coefficients() -> None:
    fit = moments_of(drawn(2)).regress()
    assert fit.coefficients == pytest.approx((3.0, -20.0), rel=0.03)
    assert fit.explained == pytest.approx(1 - 0.25 / (36 + 4 + 0.25), abs=0.01)
    assert fit.inflations == pytest.approx((1.0, 1.0), abs=0.02)


def test_errors_are_the_spread_of_the_coefficients() -> None:
    fits = [moments_of(drawn(seed, 40)).regress() for seed in range(100)]
    for index in range(2):
        spread = statistics.stdev(fit.coefficients[index] for fit in fits)
        assert statistics.fmean(fit.errors[index] for fit in fits) == pytest.approx(spread, rel=0.2)


def test_forgetting_follows_a_change() -> None:
    rows: list[tuple[float, ...]] = [(x, sign * x) for sign in (1.0, -1.0) for x in [0.0, 1.0, 2.0] * 200]
    assert moments_of(rows, 0.98).regress().coefficients[0] == pytest.approx(-1.0, rel=2e-3)
    assert moments_of(rows).regress().coefficients[0] == pytest.approx(0.0, abs=1e-9)


def test_errors_with_forgetting_are_those_of_the_observations_that_count() -> None:
    forgetful = [moments_of(drawn(seed, 90), 0.95).regress() for seed in range(100)]
    spread = statistics.stdev(fit.coefficients[0] for fit in forgetful)
    assert statistics.fmean(fit.errors[0] for fit in forgetful) == pytest.approx(spread, rel=0.25)


def test_a_constant_input_has_no_coefficient() -> None:
    fit = moments_of([(0.98, x, 2 * x) for x in (1.0, 2.0, 3.0, 4.0)]).regress()
    assert fit.coefficients == pytest.approx((0.0, 2.0), rel=2e-3)
    assert fit.errors[0] == 0.0


def test_equal_inputs_share_the_coefficient() -> None:
    fit = moments_of([(x, x, 2 * x) for x in (1.0, 2.0, 3.0, 4.0)]).regress()
    assert fit.coefficients == pytest.approx((1.0, 1.0), rel=2e-3)
    assert min(fit.inflations) > 100.0


def test_nothing_was_observed() -> None:
    moments = Moments(1)
    assert (moments.deviation(0), moments.correlation(0, 1)) == (0.0, 0.0)


def test_an_inverse_times_its_matrix_is_one() -> None:
    matrix = [[2.0, 0.5, 0.0], [0.5, 1.0, 0.25], [0.0, 0.25, 3.0]]
    inverse = inverted(matrix)
    for row, one in enumerate(matrix):
        products = [
            sum(a * b for a, b in zip(one, column, strict=True)) for column in zip(*inverse, strict=True)
        ]
        assert products == pytest.approx([float(row == column) for column in range(3)])


def test_correlated_residuals_inflate_the_error() -> None:
    assert error_inflation(-0.5) == error_inflation(0.0) == 1.0
    assert error_inflation(0.5) == pytest.approx(math.sqrt(3.0))
    assert error_inflation(1.0) == error_inflation(0.98) == pytest.approx(math.sqrt(99.0))
