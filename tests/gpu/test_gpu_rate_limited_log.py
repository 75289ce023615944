"""Lasting errors are logged at intervals, each kind by itself."""

from __future__ import annotations

import logging

import pytest

from autoglm_throttle.gpu.rate_limited_log import LOG_EVERY_S, GpuRateLimitedLogger


def test_each_kind_once_in_its_time(caplog: pytest.LogCaptureFixture) -> None:
    now = 5.0
    seldom = GpuRateLimitedLogger("GPU telemetry", lambda: now)
    for now in (5.0, 6.0, 5.0 + LOG_EVERY_S - 0.1, 5.0 + LOG_EVERY_S):
        seldom.warn("failed", f"away at {now:g}")
        seldom.warn("late", f"late at {now:g}", logging.ERROR)
    assert caplog.messages == [
        f"GPU telemetry: {word} at {at:g}" for at in (5.0, 5.0 + LOG_EVERY_S) for word in ("away", "late")
    ]
    assert [record.levelno for record in caplog.records[:2]] == [logging.WARNING, logging.ERROR]


def test_external_text_starts_no_new_line(caplog: pytest.LogCaptureFixture) -> None:
    GpuRateLimitedLogger("GPU telemetry", lambda: 0.0).warn("odd", "a\nGPU telemetry: all is well\r\x1b[2J")
    assert caplog.messages == ["GPU telemetry: a GPU telemetry: all is well  [2J"]
