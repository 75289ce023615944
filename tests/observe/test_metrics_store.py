"""The metrics of a shared store of user limits."""

from __future__ import annotations

import dataclasses
from typing import Any

from autoglm_throttle.observe.metric import PREFIX
from autoglm_throttle.store.fleet import FleetView
from autoglm_throttle.store.health import HealthState
from autoglm_throttle.store.protocol import StoreErrorKind
from autoglm_throttle.types import GpuSample, GpuView
from tests.observe.scraping import STORE, loaded, scraped, states, value


def up(**changed: Any) -> float | None:
    return value(loaded(store=dataclasses.replace(STORE, **changed)), "redis_up")


def test_a_store_is_up_while_it_decides() -> None:
    assert up() == 1.0
    assert up(state=HealthState.DOWN) == up(state=HealthState.PROBING) == 0.0


def test_decisions_without_it_are_counted_by_cause() -> None:
    reported = states(loaded(store=STORE), "redis_fallback")
    assert reported.pop("timeout") == 3
    assert set(reported) == {error.value for error in StoreErrorKind} - {"timeout"}
    assert set(reported.values()) == {0.0}


def test_store_calls_and_deny_cache_hits_are_exported() -> None:
    throttle = loaded(store=STORE)
    assert value(throttle, "redis_decisions_total") == 500
    assert value(throttle, "redis_round_trips_total") == 10
    assert value(throttle, "redis_deny_cache_hits_total") == 40
    assert value(throttle, "redis_late_replies_total") == 2
    assert value(throttle, "redis_lost_refunds_total") == 3


FLEET = FleetView(members=4, up=False, calls=90, failures=3)


def test_fleet_is_exported() -> None:
    throttle = loaded(fleet=FLEET)
    assert value(throttle, "fleet_members") == 4
    assert value(throttle, "fleet_up") == 0
    assert value(loaded(fleet=dataclasses.replace(FLEET, up=True)), "fleet_up") == 1
    assert value(throttle, "fleet_round_trips_total") == 90
    assert value(throttle, "fleet_failures_total") == 3


def test_without_a_fleet_nothing_is_exported_of_it() -> None:
    families = scraped(loaded())
    for name in ("members", "up", "round_trips", "failures"):
        assert not families[f"{PREFIX}fleet_{name}"].samples


def test_gpus_of_other_hosts_are_distinct() -> None:
    here = sample(index=0, utilization_pct=10.0)
    there = sample(index=0, utilization_pct=90.0, host="b")
    view = GpuView(0.0, None, None, None, None, 1.0, (here, there))
    throttle = loaded(view=view)
    assert value(throttle, "gpu_utilization_ratio", gpu="0") == 0.1
    assert value(throttle, "gpu_utilization_ratio", gpu="b/0") == 0.9


def sample(**fields: Any) -> GpuSample:
    return GpuSample(device=f"GPU-{fields}", taken_at_s=1000.0, source="test", **fields)


def test_limits_in_memory_export_no_store() -> None:
    families = scraped(loaded())
    for name in ("up", "fallback", "decisions", "round_trips", "deny_cache_hits", "late_replies"):
        assert not families[f"{PREFIX}redis_{name}"].samples
