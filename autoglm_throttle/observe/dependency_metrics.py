"""The metrics of the dependencies: the store, the fleet, the guards with their breakers, and batchers."""

from __future__ import annotations

from functools import partial
from typing import Final

from autoglm_throttle.observe.metric import (
    MetricsInput,
    MetricSpec,
    Rows,
    by_key,
    counter,
    each_states,
    gauge,
    named,
    one,
    per,
    states,
    stateset,
)
from autoglm_throttle.store.health import HealthState
from autoglm_throttle.types import BreakerState, DegradationLevel


def _rejected_calls(inputs: MetricsInput) -> Rows:
    guards = inputs.snapshot.guards
    for breaker in () if guards is None else guards.breakers:
        for cause, count in breaker.rejected.items():
            yield (breaker.name, cause.value), count


_BREAKERS: Final = named("guards.breakers")
_batcher = per(named("batchers"), "batcher")
_breaker = partial(per(_BREAKERS, "breaker"), "counter")

STORE_METRICS: Final[tuple[MetricSpec, ...]] = (
    gauge(
        "redis_up",
        "1 while the store of REDIS_URL decides, 0 while each process decides for itself.",
        one("store.state", lambda state: state is HealthState.UP),
    ),
    counter(
        "redis_fallback",
        "Decisions on user limits taken without the store, by the error of the store.",
        by_key("store.fallbacks"),
        "reason",
    ),
    counter("redis_decisions", "Decisions requested from the store.", one("store.stats.sent")),
    counter(
        "redis_round_trips",
        "Calls that carried them; the quotient is the mean size of a batch.",
        one("store.stats.calls"),
    ),
    counter(
        "redis_deny_cache_hits",
        "Rejections answered from the local deny cache, without a call of the store.",
        one("store.deny_cache_hits"),
    ),
    counter(
        "redis_late_replies",
        "Replies that came after their decision had been taken without them, or after its caller had left.",
        one("store.stats.late"),
    ),
    counter(
        "redis_lost_refunds",
        "Refunds, and settlements of tokens, that were not delivered to the store.",
        one("store.stats.lost"),
    ),
    gauge(
        "fleet_members",
        "Live processes that share the priority rates, as known to this one.",
        one("fleet.members"),
    ),
    gauge(
        "fleet_up",
        "1 while rates are leased, 0 while this process uses its own part of them.",
        one("fleet.up"),
    ),
    counter("fleet_round_trips", "Calls for leases and signs of life.", one("fleet.calls")),
    counter("fleet_failures", "Those that were not answered.", one("fleet.failures")),
)

GUARD_METRICS: Final[tuple[MetricSpec, ...]] = (
    stateset(
        "breaker_state",
        f"State of the breaker: {', '.join(BreakerState)}.",
        each_states(_BREAKERS, "state", BreakerState),
        "breaker state",
    ),
    counter(
        "breaker_transitions",
        "Changes of the state, by the new state.",
        by_key("guards.transitions"),
        "breaker state",
    ),
    _breaker("breaker_calls", "Calls permitted. Of two threads at once one may be lost."),
    counter(
        "breaker_rejected",
        "Calls rejected, whether or not a fallback has answered.",
        _rejected_calls,
        "breaker cause",
    ),
    _breaker(
        "breaker_would_reject",
        "Calls permitted only because the breaker merely counts (BREAKER_MODE=metrics_only).",
    ),
    _breaker(
        "breaker_stale_results",
        "Results that came after the breaker had changed, or twice, and were dropped.",
    ),
    counter(
        "degraded",
        "Answers given without the dependency: stale, dynamic, static, or shed with none; by cause: "
        "that of a rejection, error, load, or refresh while a call is made.",
        by_key("guards.degraded"),
        "guard fallback cause",
    ),
    stateset(
        "degradation_level",
        f"Degradation level in force: {', '.join(level.label for level in DegradationLevel)}.",
        states("guards.level", DegradationLevel),
        "level",
    ),
)

BATCHER_METRICS: Final[tuple[MetricSpec, ...]] = (
    _batcher("gauge", "batcher_target", "Cost at which a batch of this micro-batcher is full."),
    _batcher("gauge", "batcher_waiting", "Items that wait for a batch."),
    _batcher("gauge", "batcher_running", "Batches that run."),
    _batcher(
        "gauge", "batcher_latency_seconds", "95th percentile of submission to result in one second.", "p95_s"
    ),
    _batcher("counter", "batcher_batches", "Batches that ended, with or without an exception."),
    _batcher("counter", "batcher_failed", "Batches that ended with an exception."),
    _batcher("counter", "batcher_items", "Items of the batches that ended without one."),
    _batcher("counter", "batcher_cost", "Their cost."),
    _batcher("counter", "batcher_run_seconds", "Time in the function of the batcher.", "run_s"),
    _batcher("counter", "batcher_wait_seconds", "Time in the queue, of all items that ran.", "wait_s"),
    _batcher("counter", "batcher_full", "Items rejected because the queue was full."),
    _batcher("counter", "batcher_late", "Items dropped because they would have ended after their deadline."),
)
