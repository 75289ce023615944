"""The log says once that the objective was learned, if it is far from the one at the start."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from autoglm_throttle import Demand, Permit, Priority, Settings, Throttle
from autoglm_throttle.testing import ManualClock, throttle_for_tests


def answered(throttle: Throttle, clock: ManualClock, lasts_s: float, number: int = 40) -> None:
    """Requests one after the other; each looks at the control state if that is due."""
    for _ in range(number):
        permit = throttle.try_admit(Demand(Priority.HIGH))
        assert isinstance(permit, Permit)
        clock.advance(lasts_s)
        permit.settle()


def events(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [row for row in caplog.records if getattr(row, "event", "") == "objective_learned"]


def check_event(caplog: pytest.LogCaptureFixture, throttle: Throttle, clock: ManualClock) -> None:
    answered(throttle, clock, 1.0)
    answered(throttle, clock, 3.0, 400)
    (event,) = events(caplog)
    assert event.levelno == logging.WARNING
    assert "set SLO_S" in event.getMessage()
    assert event.slo_before_s == 2.0  # type: ignore[attr-defined]
    assert event.slo_s == pytest.approx(4.0)  # type: ignore[attr-defined]
    view = throttle.snapshot().concurrency
    assert view is not None
    assert view.slo_learned
    assert view.slo_s == pytest.approx(12.0)


def test_learned_objective_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    throttle = throttle_for_tests(policy="concurrency")
    check_event(caplog, throttle, throttle.clock)


def test_learned_objective_is_logged_without_a_gpu(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    throttle = Throttle(Settings(policy="concurrency", gpu="none"), clock=clock)
    throttle.start()
    check_event(caplog, throttle, clock)
    throttle.stop()


@pytest.mark.parametrize(
    ("settings", "lasts_s"),
    [({"slo_s": 2.0}, 1.0), ({}, 0.25), ({}, 0.74), ({"policy": "tiers", "inflight_max": 8}, 1.0)],
)
def test_objective_that_is_set_or_hardly_changes_is_not_logged(
    caplog: pytest.LogCaptureFixture, settings: dict[str, Any], lasts_s: float
) -> None:
    throttle = throttle_for_tests(**({"policy": "concurrency"} | settings))
    answered(throttle, throttle.clock, lasts_s)
    assert events(caplog) == []
