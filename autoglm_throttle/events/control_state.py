"""Log events of the control state: tier, stop of admission, telemetry, signal."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

from autoglm_throttle.events.log_event import LogEvent
from autoglm_throttle.types import (
    ControlCause,
    ControlState,
    GpuView,
    Signal,
    TelemetryState,
)

MOST_SOURCES: Final = 3
"""Sources named in an event; a view may have many."""


def control_events(
    before: ControlState, after: ControlState, view: GpuView | None = None, now: float | None = None
) -> Iterator[LogEvent]:
    """Yield the log events of a changed control state: tier, stop of admission, telemetry, signal.

    Args:
        before: the previous control state.
        after: the new control state.
        view: the newest view of the devices; None: nothing yet.
        now: monotonic seconds; None: the age of the view is left out.
    """
    stopped, was_stopped = not after.factor, not before.factor
    if after.tier != before.tier or stopped is not was_stopped:
        falls = after.factor < before.factor
        yield LogEvent(
            "tier_changed",
            logging.WARNING if falls else logging.INFO,
            f"rates at {after.factor:.0%} of nominal ({after.cause})",
            {
                "factor": after.factor,
                "factor_before": before.factor,
                "cause": after.cause.value,
                "gpu_utilization_ratio": after.load,
            },
        )
    if after.signal is not before.signal and before.telemetry is not TelemetryState.STARTING:
        yield _signal_event(before, after, view)
    if after.telemetry is not before.telemetry:
        yield _telemetry_event(before, after, view, now)


def _signal_event(before: ControlState, after: ControlState, view: GpuView | None) -> LogEvent:
    provider, _ = _signal_source(after.signal, view, None)
    origin = f" ({provider})" if provider else ""
    return LogEvent(
        "signal_changed",
        logging.WARNING if after.signal is Signal.UTILIZATION else logging.INFO,
        f"the load signal is {after.signal} now{origin}, no longer {before.signal}",
        {"signal": after.signal.value, "signal_before": before.signal.value, "provider": provider or None},
    )


def _telemetry_event(
    before: ControlState, after: ControlState, view: GpuView | None, now: float | None
) -> LogEvent:
    nothing = after.cause is ControlCause.NO_DEVICE
    worse = nothing or after.telemetry in {TelemetryState.STALE, TelemetryState.BLIND}
    provider, age_s = _signal_source(after.signal, view, now)
    parts = [provider] if provider else []
    parts += [] if age_s is None else [f"{age_s:.1f} s old"]
    if _all_devices_lost(after.signal, view):
        parts, age_s = [*parts[:1], "every GPU is lost, so the load is unknown"], None
    origin = f" ({', '.join(parts)})" if parts else ""
    return LogEvent(
        "telemetry_changed",
        logging.WARNING if worse else logging.INFO,
        "no GPU telemetry: the rates stay nominal"
        if nothing
        else f"GPU telemetry is {after.telemetry}{origin}",
        {
            "state": after.telemetry.value,
            "state_before": before.telemetry.value,
            "factor": after.factor,
            "provider": provider or None,
            "age_s": age_s,
        },
    )


def _all_devices_lost(signal: Signal, view: GpuView | None) -> bool:
    """Return whether the devices are the signal's source and all are lost: their samples carry no load."""
    if view is None or (signal is Signal.PRESSURE and view.engines_at_s is not None):
        return False
    devices = [row for row in view.devices if row.kind != "engine"]
    return bool(devices) and all(row.health == "lost" for row in devices)


def _signal_source(signal: Signal, view: GpuView | None, now: float | None) -> tuple[str, float | None]:
    """Return the sources of the signal in force, and the age of its newest measurement."""
    if view is None or not view.devices:
        return "", None
    engines = signal is Signal.PRESSURE and view.engines_at_s is not None
    at_s = view.engines_at_s if engines else view.taken_at_s
    names = sorted({row.source for row in view.devices if (row.kind == "engine") is engines})
    more = f" and {len(names) - MOST_SOURCES} more" if len(names) > MOST_SOURCES else ""
    age_s = None if now is None or at_s is None else max(0.0, now - at_s)
    return ", ".join(names[:MOST_SOURCES]) + more, age_s
