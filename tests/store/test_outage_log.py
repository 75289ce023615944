"""Log lines about the outages of a store."""

from __future__ import annotations

import pytest

from autoglm_throttle.events.rate_limited_logger import LOG_INTERVAL_S
from autoglm_throttle.store.outage_log import OutageLog


def test_loss_and_recovery_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    log = OutageLog("the store")
    log.record_recovery(0.0)
    for now in (1.0, 2.0):
        log.record_loss(0.5, now, "effect (cause\nand more)")
    known_since = [log.since_s]
    for now in (3.0, 4.0):
        log.record_recovery(now, ": 2 members")
        known_since.append(log.since_s)
    assert known_since == [0.5, None, None]
    assert caplog.messages == [
        "the store is unavailable: effect (cause and more)",
        "the store is available again after 2.5 s: 2 members",
    ]


def test_lines_come_in_pairs_at_most_once_in_the_interval(caplog: pytest.LogCaptureFixture) -> None:
    log = OutageLog("the store")
    for begin_s in (0.0, 1.0, LOG_INTERVAL_S - 0.1, LOG_INTERVAL_S):
        log.record_loss(begin_s, begin_s, f"at {begin_s:g}")
        log.record_recovery(begin_s + 0.05)
    assert [line.split(": ")[-1] for line in caplog.messages[::2]] == ["at 0", f"at {LOG_INTERVAL_S:g}"]
    assert len(caplog.messages) == 4
