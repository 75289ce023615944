"""Log events of breakers and of degradation."""

from __future__ import annotations

import logging

from autoglm_throttle.journal.line import Line, plain
from autoglm_throttle.model import (
    Level,
    State,
    Transition,
)


def breaker_changed(change: Transition) -> Line:
    """Build the event of a breaker's state change."""
    after = f", next trial in {change.retry_after_s:.1f} s" if change.retry_after_s else ""
    guard = plain(change.name)
    return Line(
        "breaker_changed",
        logging.INFO if change.after is State.CLOSED else logging.WARNING,
        f"{guard} is {change.after} ({change.cause}), no longer {change.before}{after}",
        {
            "breaker": guard,
            "state": change.after.value,
            "state_before": change.before.value,
            "cause": change.cause.value,
            "retry_after_s": change.retry_after_s,
        },
    )


def degradation_changed(before: Level, after: Level, load: float | None) -> Line:
    """Build the event of a changed degradation level."""
    told = "unknown" if load is None else f"{load:.0%}"
    return Line(
        "degradation_changed",
        logging.WARNING if after > before else logging.INFO,
        f"degradation is {after.label}, no longer {before.label}: the load is {told}",
        {"level": after.label, "level_before": before.label, "load": load},
    )


def guards_full(most: int) -> Line:
    """Build the event, logged once, that the guard table is full."""
    text = f"{most} guards are at work; calls under further names are not guarded; raise breaker_max_names"
    return Line("guards_full", logging.WARNING, text, {"breaker_max_names": most})
