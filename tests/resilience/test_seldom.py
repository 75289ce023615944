"""Faults that repeat: the first one is logged, then a count now and then."""

from __future__ import annotations

import logging

import pytest

from autoglm_throttle.resilience.rate_limited_logger import LOG_INTERVAL_S, GuardRateLimitedLogger


def test_the_first_is_logged_and_the_others_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    now = 1000.0
    log = GuardRateLimitedLogger("related", lambda: now)
    log.warn("key", "no key")
    log.warn("key", "no key")
    log.warn("copy", "no copy")
    now += LOG_INTERVAL_S / 2
    log.warn("key", "no key")
    now += LOG_INTERVAL_S / 2
    log.warn("key", "no key again")
    now += LOG_INTERVAL_S
    log.warn("key", "no key")
    assert caplog.messages == [
        "related: no key",
        "related: no copy",
        "related: no key again (2 more since the last line)",
        "related: no key",
    ]
    assert log.fault_count == 6
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


def test_a_fault_comes_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    error = KeyError("x")
    GuardRateLimitedLogger("related", lambda: 0.0).warn("dynamic", "it has raised", error)
    (record,) = caplog.records
    assert record.exc_info is not None
    assert record.exc_info[1] is error
