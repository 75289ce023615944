"""Metrics of shared state: a store of user limits, a fleet. Absent if there is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from autoglm_throttle.observe.metric import PREFIX, MetricsInput, MetricSpec, Rows
from autoglm_throttle.store.fleet import FleetView
from autoglm_throttle.store.health import HealthState
from autoglm_throttle.store.shared_limits import StoreView


def _one(read: Callable[[StoreView], float]) -> Callable[[MetricsInput], Rows]:
    """Make a single series, if there is a store."""

    def rows(inputs: MetricsInput) -> Rows:
        store = inputs.snapshot.store
        return [] if store is None else [((), read(store))]

    return rows


def _of_fleet(read: Callable[[FleetView], float]) -> Callable[[MetricsInput], Rows]:
    """Make a single series, if there is a fleet."""

    def rows(inputs: MetricsInput) -> Rows:
        fleet = inputs.snapshot.fleet
        return [] if fleet is None else [((), read(fleet))]

    return rows


def _fallbacks(inputs: MetricsInput) -> Rows:
    store = inputs.snapshot.store
    return [] if store is None else [((error_kind.value,), n) for error_kind, n in store.fallbacks.items()]


STORE_METRICS: Final[tuple[MetricSpec, ...]] = (
    MetricSpec(
        PREFIX + "redis_up",
        "gauge",
        (),
        "1 while the store of REDIS_URL decides, 0 while each process decides for itself.",
        _one(lambda store: float(store.state is HealthState.REMOTE)),
    ),
    MetricSpec(
        PREFIX + "redis_fallback",
        "counter",
        ("reason",),
        "Decisions on user limits taken without the store, by the error of the store.",
        _fallbacks,
    ),
    MetricSpec(
        PREFIX + "redis_decisions",
        "counter",
        (),
        "Decisions requested from the store.",
        _one(lambda store: store.stats.sent),
    ),
    MetricSpec(
        PREFIX + "redis_round_trips",
        "counter",
        (),
        "Calls that carried them; the quotient is the mean size of a batch.",
        _one(lambda store: store.stats.calls),
    ),
    MetricSpec(
        PREFIX + "redis_deny_cache_hits",
        "counter",
        (),
        "Rejections answered from the local deny cache, without a call of the store.",
        _one(lambda store: store.deny_cache_hits),
    ),
    MetricSpec(
        PREFIX + "redis_late_replies",
        "counter",
        (),
        "Replies that came after their decision had been taken without them, or after its caller had left.",
        _one(lambda store: store.stats.late),
    ),
    MetricSpec(
        PREFIX + "fleet_members",
        "gauge",
        (),
        "Live processes that share the priority rates, as known to this one.",
        _of_fleet(lambda fleet: fleet.members),
    ),
    MetricSpec(
        PREFIX + "fleet_up",
        "gauge",
        (),
        "1 while rates are leased, 0 while this process uses its own part of them.",
        _of_fleet(lambda fleet: float(fleet.up)),
    ),
    MetricSpec(
        PREFIX + "fleet_round_trips",
        "counter",
        (),
        "Calls for leases and signs of life.",
        _of_fleet(lambda fleet: fleet.calls),
    ),
    MetricSpec(
        PREFIX + "fleet_failures",
        "counter",
        (),
        "Those that were not answered.",
        _of_fleet(lambda fleet: fleet.failures),
    ),
)
"""In the order of the page."""
