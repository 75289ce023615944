"""Dynamic thresholds: the score of a minute, and when it is an event."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from autoglm_throttle.observe.anomalies import AnomalyDetector, Baseline
from tests.observe.anomaly_series import events, walk

CALM = [0.4, 0.6] * 15
GAP = [0.5] * 4
BASELINE = Baseline(floor=0.02)


def test_the_score_is_in_robust_deviations() -> None:
    score = BASELINE.score([*CALM, *GAP, 0.8])
    assert score is not None
    assert score.correlation == 0.0  # a negative one counts as none
    assert score.z == pytest.approx(0.3 / (1.4826 * 0.1))
    assert score.threshold == pytest.approx(0.5 + 3 * 1.4826 * 0.1)


def test_correlated_minutes_widen_the_threshold() -> None:
    score = BASELINE.score([*[0.4] * 15, *[0.6] * 15, *GAP, 0.8])
    assert score is not None
    assert score.correlation == pytest.approx(0.9, abs=0.05)
    assert score.z == pytest.approx(0.3 / (1.4826 * 0.1 / math.sqrt(1 - score.correlation**2)))


def test_a_flat_baseline_has_the_smallest_deviation() -> None:
    score = BASELINE.score([*[0.5] * 30, *GAP, 0.6])
    assert score is not None
    assert score.z == pytest.approx(5.0)
    assert score.correlation == 0.0


@pytest.mark.parametrize(
    "means",
    [[], [*CALM, *GAP, None], [*CALM[:9], *GAP, 0.8], [*[None] * 21, *CALM[:9], *GAP, 0.8]],
    ids=["nothing", "no newest minute", "short", "full of gaps"],
)
def test_too_few_values_have_no_score(means: list[float | None]) -> None:
    assert BASELINE.score(means) is None


def test_a_series_at_its_ceiling_has_no_score() -> None:
    baseline = Baseline(floor=0.02, ceiling=0.97)
    assert baseline.score([*[0.98] * 27, *[0.5] * 3, *GAP, 0.1]) is None
    assert baseline.score([*[0.98] * 26, *[0.5] * 4, *GAP, 0.1]) is not None


def test_the_plain_form_is_the_textbook_test() -> None:
    score = Baseline(floor=0.02, plain=True).score([*[0.4] * 15, *[0.6] * 15, *GAP, 0.8])
    assert score is not None
    assert score.z == pytest.approx(3.0)
    assert events([*CALM, *GAP, 0.9], Baseline(floor=0.02, plain=True)) == [34]


def test_an_event_begins_after_five_minutes_and_ends_below_half() -> None:
    detector, states = AnomalyDetector(BASELINE), list[bool]()
    means: list[float | None] = [*CALM, *GAP]
    for mean in [1.0] * 6 + [0.75] + [0.5]:
        means.append(mean)
        detector.update(means)
        states.append(detector.is_active)
    assert states == [False] * 4 + [True] * 3 + [False]


def test_there_is_one_event_an_hour() -> None:
    means: list[float | None] = [*CALM, *GAP, *([1.5] * 6 + CALM + [0.4, 0.6] * 5) * 6]  # every 46 minutes
    found = events(means, Baseline(floor=0.02))
    assert len(found) >= 2
    assert all(later - earlier >= 60 for earlier, later in pairwise(found))


@pytest.mark.parametrize(("both_sides", "found"), [(True, 1), (False, 0)])
def test_a_fall_is_unusual_only_where_both_sides_are(both_sides: bool, found: int) -> None:
    means: list[float | None] = [*CALM, *GAP, *[0.0] * 6]
    assert len(events(means, Baseline(floor=0.02, both_sides=both_sides))) == found


def test_steps_are_found_and_noise_is_not() -> None:
    """The same in twenty days and forty cases each stands in benchmarks/alerts.py."""
    baseline = Baseline(floor=0.02, both_sides=True)
    assert events(walk(0.0, 1440, seed=7), baseline) == []
    for seed in range(5):
        means = [mean + 0.25 * (minute >= 45) for minute, mean in enumerate(walk(0.0, 60, seed)) if mean]
        assert events([*means], baseline)[:1] in ([49], [50])
