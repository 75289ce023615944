"""The number to scale by: means of a minute, and the largest of them."""

from __future__ import annotations

import math

import pytest

from autoglm_throttle.control.scaling import MEAN_S, ReplicasRatio


def test_largest_mean_of_the_scaling_terms_counts() -> None:
    ratio = ReplicasRatio()
    terms = {"demand": 1.5, "queue": 0.5, "kv": 2.0, "memory": 0.1, "latency": 9.0, "compute": 9.0}
    assert ratio.update(terms, 0.0) == 2.0


@pytest.mark.parametrize("step_s", [1.0, 15.0, 60.0])
def test_mean_is_the_same_however_often_it_is_updated(step_s: float) -> None:
    ratio = ReplicasRatio()
    ratio.update({"demand": 1.0}, 0.0)
    for step in range(1, round(MEAN_S / step_s) + 1):
        value = ratio.update({"demand": 3.0}, step * step_s)
    assert value == pytest.approx(3.0 - 2.0 * math.exp(-1.0))


def test_second_of_load_moves_it_little() -> None:
    ratio = ReplicasRatio()
    ratio.update({"demand": 0.5}, 100.0)
    assert ratio.update({"demand": 10.0}, 101.0) == pytest.approx(0.5 + 9.5 * 0.016529, rel=1e-3)


def test_unknown_terms_leave_and_begin_anew() -> None:
    ratio = ReplicasRatio()
    assert ratio.update({}, 0.0) is None
    assert ratio.update({"kv": 4.0, "demand": 1.0}, 1.0) == 4.0
    assert ratio.update({"demand": 1.0, "kv": math.nan, "queue": math.inf}, 2.0) == 1.0
    assert ratio.update({"kv": 0.5}, 3.0) == 0.5
    assert ratio.update({}, 4.0) is None


def test_time_that_stands_still_changes_nothing() -> None:
    ratio = ReplicasRatio()
    ratio.update({"demand": 1.0}, 5.0)
    assert ratio.update({"demand": 9.0}, 5.0) == 1.0
    assert ratio.update({"demand": 9.0}, 4.0) == 1.0
