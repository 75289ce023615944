"""Log events of the control state: tier, stop of admission, telemetry, signal."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

from autoglm_throttle.journal.line import Line
from autoglm_throttle.model import (
    GpuView,
    Regime,
    Signal,
    Telemetry,
    Why,
)

MOST_SOURCES: Final = 3
"""Sources named in an event; a view may have many."""


def changes(
    before: Regime, after: Regime, view: GpuView | None = None, now: float | None = None
) -> Iterator[Line]:
    """Yield the log events of a changed control state: tier, stop of admission, telemetry, signal.

    Args:
        before: the previous control state.
        after: the new control state.
        view: the newest view of the devices; None: nothing yet.
        now: monotonic seconds; None: the age of the view is left out.
    """
    shut, was_shut = not after.factor, not before.factor
    if after.tier != before.tier or shut is not was_shut:
        falls = after.factor < before.factor
        yield Line(
            "tier_changed",
            logging.WARNING if falls else logging.INFO,
            f"rates at {after.factor:.0%} of nominal ({after.why})",
            {
                "factor": after.factor,
                "factor_before": before.factor,
                "why": after.why.value,
                "gpu_utilization_ratio": after.load,
            },
        )
    if after.signal is not before.signal and before.telemetry is not Telemetry.STARTING:
        yield _changed_over(before, after, view)
    if after.telemetry is not before.telemetry:
        yield _telemetry(before, after, view, now)


def _changed_over(before: Regime, after: Regime, view: GpuView | None) -> Line:
    provider, _ = _heard(after.signal, view, None)
    whose = f" ({provider})" if provider else ""
    return Line(
        "signal_changed",
        logging.WARNING if after.signal is Signal.UTILIZATION else logging.INFO,
        f"the load is told by the {after.signal} now{whose}, no longer by the {before.signal}",
        {"signal": after.signal.value, "signal_before": before.signal.value, "provider": provider or None},
    )


def _telemetry(before: Regime, after: Regime, view: GpuView | None, now: float | None) -> Line:
    nothing = after.why is Why.NO_DEVICE
    worse = nothing or after.telemetry in {Telemetry.STALE, Telemetry.BLIND}
    provider, age_s = _heard(after.signal, view, now)
    said = [provider] if provider else []
    said += [] if age_s is None else [f"{age_s:.1f} s old"]
    if _none_left(after.signal, view):
        said, age_s = [*said[:1], "every GPU is lost, so none tells a load"], None
    whose = f" ({', '.join(said)})" if said else ""
    return Line(
        "telemetry_changed",
        logging.WARNING if worse else logging.INFO,
        "no GPU to look at: the rates stay nominal"
        if nothing
        else f"GPU telemetry is {after.telemetry}{whose}",
        {
            "state": after.telemetry.value,
            "state_before": before.telemetry.value,
            "factor": after.factor,
            "provider": provider or None,
            "age_s": age_s,
        },
    )


def _none_left(signal: Signal, view: GpuView | None) -> bool:
    """Return whether the devices are the signal's source and all are lost: their samples carry no load."""
    if view is None or (signal is Signal.PRESSURE and view.engines_at_s is not None):
        return False
    cards = [row for row in view.devices if row.kind != "engine"]
    return bool(cards) and all(row.health == "lost" for row in cards)


def _heard(signal: Signal, view: GpuView | None, now: float | None) -> tuple[str, float | None]:
    """Return the sources of the signal in force, and the age of its newest measurement."""
    if view is None or not view.devices:
        return "", None
    engines = signal is Signal.PRESSURE and view.engines_at_s is not None
    at_s = view.engines_at_s if engines else view.taken_at_s
    names = sorted({row.source for row in view.devices if (row.kind == "engine") is engines})
    more = f" and {len(names) - MOST_SOURCES} more" if len(names) > MOST_SOURCES else ""
    age_s = None if now is None or at_s is None else max(0.0, now - at_s)
    return ", ".join(names[:MOST_SOURCES]) + more, age_s
