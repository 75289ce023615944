"""Metrics of calls that leave the process. Absent if there is no guard."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from autoglm_throttle.observe.metric import MetricsInput, MetricSpec, ReadRows, Rows, counter, each, stateset
from autoglm_throttle.resilience.registry import GuardsView
from autoglm_throttle.types import BreakerState, BreakerView, DegradationLevel


def _from_guards(read: Callable[[GuardsView], Rows]) -> ReadRows:
    """Make the series of all guards, if there are any."""

    def rows(inputs: MetricsInput) -> Rows:
        guards = inputs.snapshot.guards
        return [] if guards is None else read(guards)

    return rows


def _breakers(inputs: MetricsInput) -> Iterable[tuple[str, BreakerView]]:
    guards = inputs.snapshot.guards
    return () if guards is None else ((breaker.name, breaker) for breaker in guards.breakers)


def _states(guards: GuardsView) -> Rows:
    for breaker in guards.breakers:
        for state in BreakerState:
            yield (breaker.name, state.value), float(breaker.state is state)


def _transitions(guards: GuardsView) -> Rows:
    return (((name, state.value), count) for (name, state), count in guards.transitions.items())


def _rejected(guards: GuardsView) -> Rows:
    for breaker in guards.breakers:
        for cause, count in breaker.rejected.items():
            yield (breaker.name, cause.value), count


def _degraded(guards: GuardsView) -> Rows:
    return (
        ((name, fallback.value, cause), count) for (name, fallback, cause), count in guards.degraded.items()
    )


def _levels(guards: GuardsView) -> Rows:
    return (((level.label,), float(level is guards.level)) for level in DegradationLevel)


GUARD_METRICS: Final[tuple[MetricSpec, ...]] = (  # In the order of the page
    stateset(
        "breaker_state",
        f"State of the breaker: {', '.join(BreakerState)}.",
        _from_guards(_states),
        "breaker state",
    ),
    counter(
        "breaker_transitions",
        "Changes of the state, by the new state.",
        _from_guards(_transitions),
        "breaker state",
    ),
    counter(
        "breaker_calls",
        "Calls permitted. Of two threads at once one may be lost.",
        each(_breakers, lambda breaker: breaker.calls),
        "breaker",
    ),
    counter(
        "breaker_rejected",
        "Calls rejected, whether or not a fallback has answered.",
        _from_guards(_rejected),
        "breaker cause",
    ),
    counter(
        "breaker_would_reject",
        "Calls permitted only because the breaker merely counts (BREAKER_MODE=metrics_only).",
        each(_breakers, lambda breaker: breaker.would_reject),
        "breaker",
    ),
    counter(
        "breaker_stale_results",
        "Results that came after the breaker had changed, or twice, and were dropped.",
        each(_breakers, lambda breaker: breaker.stale_results),
        "breaker",
    ),
    counter(
        "degraded",
        "Answers given without the dependency: stale, dynamic, static, or shed with none; by cause: "
        "that of a rejection, error, load, or refresh while a call is made.",
        _from_guards(_degraded),
        "guard fallback cause",
    ),
    stateset(
        "degradation_level",
        f"Degradation level in force: {', '.join(level.label for level in DegradationLevel)}.",
        _from_guards(_levels),
        "level",
    ),
)
