"""Metrics of calls that leave the process. Absent if there is no guard."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from autoglm_throttle.model import BreakerView, Level, State
from autoglm_throttle.observe.metric import PREFIX, MetricSpec, Picture, Rows
from autoglm_throttle.snapshot import GuardsView


def _of(read: Callable[[GuardsView], Rows]) -> Callable[[Picture], Rows]:
    """Make the series of all guards, if there are any."""

    def rows(picture: Picture) -> Rows:
        guards = picture.snapshot.guards
        return [] if guards is None else read(guards)

    return rows


def _each(read: Callable[[BreakerView], float]) -> Callable[[Picture], Rows]:
    """Make a series for each breaker."""
    return _of(lambda guards: [((breaker.name,), read(breaker)) for breaker in guards.breakers])


def _states(guards: GuardsView) -> Rows:
    for breaker in guards.breakers:
        for state in State:
            yield (breaker.name, state.value), float(breaker.state is state)


def _transitions(guards: GuardsView) -> Rows:
    return (((name, state.value), count) for (name, state), count in guards.transitions.items())


def _refused(guards: GuardsView) -> Rows:
    for breaker in guards.breakers:
        for cause, count in breaker.refused.items():
            yield (breaker.name, cause.value), count


def _degraded(guards: GuardsView) -> Rows:
    return (((name, rung.value, cause), count) for (name, rung, cause), count in guards.degraded.items())


def _levels(guards: GuardsView) -> Rows:
    return (((level.label,), float(level is guards.level)) for level in Level)


GUARD_METRICS: Final[tuple[MetricSpec, ...]] = (
    MetricSpec(
        PREFIX + "breaker_state",
        "stateset",
        ("breaker", "state"),
        f"What the breaker does with a call: {', '.join(State)}.",
        _of(_states),
    ),
    MetricSpec(
        PREFIX + "breaker_transitions",
        "counter",
        ("breaker", "state"),
        "Changes of what it does, by the new state.",
        _of(_transitions),
    ),
    MetricSpec(
        PREFIX + "breaker_calls",
        "counter",
        ("breaker",),
        "Calls let through. Of two threads at once one may be lost.",
        _each(lambda breaker: breaker.calls),
    ),
    MetricSpec(
        PREFIX + "breaker_refused",
        "counter",
        ("breaker", "cause"),
        "Calls not let through, whether or not a fallback has answered.",
        _of(_refused),
    ),
    MetricSpec(
        PREFIX + "breaker_would_refuse",
        "counter",
        ("breaker",),
        "Calls let through only because the breaker merely counts (BREAKER_MODE=metrics_only).",
        _each(lambda breaker: breaker.would_refuse),
    ),
    MetricSpec(
        PREFIX + "breaker_stale_results",
        "counter",
        ("breaker",),
        "Results that came after the breaker had changed, or twice, and were dropped.",
        _each(lambda breaker: breaker.stale_results),
    ),
    MetricSpec(
        PREFIX + "degraded",
        "counter",
        ("guard", "rung", "cause"),
        "Answers that the dependency has not given: stale, dynamic, static, or shed with none; by what "
        "kept it from giving one: the cause of a refusal, error, load, or refresh while a call is made.",
        _of(_degraded),
    ),
    MetricSpec(
        PREFIX + "degradation_level",
        "stateset",
        ("level",),
        f"Step of the ladder of degradation in force: {', '.join(level.label for level in Level)}.",
        _of(_levels),
    ),
)
"""In the order of the page."""
