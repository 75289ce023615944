"""One-line summary of a breaker, for logs and bug reports."""

from __future__ import annotations

from collections.abc import Iterator

from autoglm_throttle.settings.groups.breaker import BreakerSettings
from autoglm_throttle.types import BreakerState, BreakerView


def summarize(view: BreakerView, settings: BreakerSettings, trip_ratio: str) -> str:
    """Return name, state and all figures that are not zero.

    Args:
        view: of the breaker at one moment.
        settings: of the breaker.
        trip_ratio: count and limit of the newest opening, such as ``5/5``; may be empty.
    """
    return f"{view.name!r} " + ", ".join(_parts(view, settings, trip_ratio))


def _parts(view: BreakerView, settings: BreakerSettings, trip_ratio: str) -> Iterator[str]:
    yield from _state_parts(view, settings, trip_ratio)
    if view.streak:
        yield f"streak {view.streak}/{settings.failures}"
    if view.window_calls:
        yield f"{view.window_failures} failed and {view.window_slow} slow of {view.window_calls}"
    yield f"gen {view.generation}"
    if view.rounds and view.machine is not BreakerState.CLOSED:
        yield f"round {view.rounds}"
    if view.stale_results:
        yield f"{view.stale_results} stale"


def _state_parts(view: BreakerView, settings: BreakerSettings, trip_ratio: str) -> Iterator[str]:
    machine = view.machine
    if machine is BreakerState.OPEN:
        yield f"{machine} by {view.cause} {trip_ratio}".rstrip()
        yield f"{view.retry_after_s:.1f} s left" if view.retry_after_s else "due for a probe"
    else:
        yield str(machine)
    if view.metrics_only:
        yield "metrics only"
    if machine is BreakerState.HALF_OPEN:
        yield f"{view.probes} in flight, {view.probe_successes}/{settings.successes_needed} succeeded"
    elif settings.max_in_flight:
        yield f"{view.in_flight}/{settings.max_in_flight} in flight"
