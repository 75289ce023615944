"""Rate-limited log of repeated faults: the first at once, then one line in each interval."""

from __future__ import annotations

import logging

import pytest

from autoglm_throttle.events import LOG_INTERVAL_S, RateLimitedLogger
from autoglm_throttle.testing import ManualClock


def test_first_of_each_kind_is_logged_and_later_ones_are_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock(5.0)
    logger = RateLimitedLogger("GPU telemetry", clock)
    for seconds in (0.0, 1.0, LOG_INTERVAL_S - 1.5, 0.5):
        clock.advance(seconds)
        for kind in ("away", "late"):
            logger.warn(kind, f"{kind} at {clock():g}", level=logging.ERROR)
    assert [record.getMessage() for record in caplog.records] == [
        "GPU telemetry: away at 5",
        "GPU telemetry: late at 5",
        f"GPU telemetry: away at {5.0 + LOG_INTERVAL_S:g} (2 more since the last line)",
        f"GPU telemetry: late at {5.0 + LOG_INTERVAL_S:g} (2 more since the last line)",
    ]
    assert {record.levelno for record in caplog.records} == {logging.ERROR}


def test_traceback_is_logged_and_line_breaks_are_removed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    error = ValueError("no")
    RateLimitedLogger("guard", ManualClock()).warn("kind", "one\nline", error=error)
    (record,) = caplog.records
    assert record.getMessage() == "guard: one line"
    assert record.exc_info is not None
    assert record.exc_info[1] is error
