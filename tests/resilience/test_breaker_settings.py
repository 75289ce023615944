"""The figures that follow from the figures of a breaker."""

from __future__ import annotations

import math

import pytest

from autoglm_throttle.settings.groups.breaker import BreakerSettings


@pytest.mark.parametrize(
    ("timeout_s", "trial_lease_s", "lease_s"),
    [
        (None, None, 30.0),
        (5.0, None, 30.0),
        (10.0, None, 30.0),
        (11.0, None, 33.0),
        (11.0, 12.0, 12.0),
        (None, 4.0, 4.0),
    ],
)
def test_maximum_duration_of_a_probe(
    timeout_s: float | None, trial_lease_s: float | None, lease_s: float
) -> None:
    assert BreakerSettings(timeout_s=timeout_s, trial_lease_s=trial_lease_s).lease_s == lease_s


@pytest.mark.parametrize(("threshold", "need"), [(None, 2), (5, 5), (1, 1)])
def test_how_many_must_succeed(threshold: int | None, need: int) -> None:
    assert BreakerSettings(half_open_max=2, success_threshold=threshold).successes_needed == need


@pytest.mark.parametrize(
    ("backoff", "open_max_s", "rounds", "wait_s"),
    [
        (1.0, None, 7, 10.0),
        (2.0, None, 0, 10.0),
        (2.0, None, 1, 20.0),
        (2.0, None, 3, 80.0),
        (2.0, 50.0, 3, 50.0),
        (1.0, 10.0, 9, 10.0),
        (1.5, None, 2, 22.5),
        (2.0, 60.0, 5000, 60.0),
        (2.0, None, 5000, 2.0**40),
    ],
)
def test_how_long_it_stays_open(backoff: float, open_max_s: float | None, rounds: int, wait_s: float) -> None:
    assert BreakerSettings(backoff=backoff, open_max_s=open_max_s).wait_s(rounds) == wait_s


@pytest.mark.parametrize(("backoff", "rounds"), [(1.0, 7), (2.0, 0)])
def test_no_wait_is_longer_than_the_longest(backoff: float, rounds: int) -> None:
    assert BreakerSettings.model_construct(backoff=backoff, open_max_s=6.0).wait_s(rounds) == 6.0


def test_a_wait_is_always_a_time() -> None:
    assert all(math.isfinite(BreakerSettings(backoff=100.0).wait_s(rounds)) for rounds in range(200))
