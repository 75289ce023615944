"""Log events of breakers and of degradation."""

from __future__ import annotations

import logging

from autoglm_throttle.events.log_event import LogEvent, plain
from autoglm_throttle.types import (
    BreakerState,
    BreakerTransition,
    DegradationLevel,
)


def breaker_changed(change: BreakerTransition) -> LogEvent:
    """Build the event of a breaker's state change."""
    after = f", next probe in {change.retry_after_s:.1f} s" if change.retry_after_s else ""
    guard = plain(change.name)
    return LogEvent(
        "breaker_changed",
        logging.INFO if change.after is BreakerState.CLOSED else logging.WARNING,
        f"{guard} is {change.after} ({change.cause}), no longer {change.before}{after}",
        {
            "breaker": guard,
            "state": change.after.value,
            "state_before": change.before.value,
            "cause": change.cause.value,
            "retry_after_s": change.retry_after_s,
        },
    )


def degradation_changed(before: DegradationLevel, after: DegradationLevel, load: float | None) -> LogEvent:
    """Build the event of a changed degradation level."""
    load_text = "unknown" if load is None else f"{load:.0%}"
    return LogEvent(
        "degradation_changed",
        logging.WARNING if after > before else logging.INFO,
        f"degradation is {after.label}, no longer {before.label}: the load is {load_text}",
        {"level": after.label, "level_before": before.label, "load": load},
    )


def guard_table_full(most: int) -> LogEvent:
    """Build the event, logged once, that the guard table is full."""
    text = f"{most} guards are in use; calls under further names are not guarded; raise breaker_max_names"
    return LogEvent("guard_table_full", logging.WARNING, text, {"breaker_max_names": most})
