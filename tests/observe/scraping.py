"""What a scrape sees, read back with the parser of prometheus-client."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.parser import text_string_to_metric_families

from autoglm_throttle import Priority, Throttle
from autoglm_throttle.admission.counters import DURATION_BUCKETS_S, DurationHistogram
from autoglm_throttle.admission.snapshot import Snapshot
from autoglm_throttle.control.memory import FillBasis
from autoglm_throttle.control.quota import QuotaView
from autoglm_throttle.observe import collector
from autoglm_throttle.observe.host import HostView
from autoglm_throttle.observe.latency_model import LatencyView, ResourceEffect, Silence
from autoglm_throttle.observe.leak import LeakView
from autoglm_throttle.observe.metric import PREFIX, AlertsView, RecorderProtocol
from autoglm_throttle.observe.models import ModelsView
from autoglm_throttle.observe.series import Row
from autoglm_throttle.observe.timer import history_timer
from autoglm_throttle.resilience.registry import GuardsView
from autoglm_throttle.store.health import HealthState
from autoglm_throttle.store.protocol import StoreErrorKind, StoreStats
from autoglm_throttle.store.shared_limits import StoreView
from autoglm_throttle.testing import FakeGpu, ManualClock, ManualThrottle, throttle_for_tests
from autoglm_throttle.types import (
    BatcherView,
    BreakerCause,
    BreakerState,
    BreakerView,
    ConcurrencyView,
    DegradationLevel,
    FallbackKind,
    Reason,
    StoreFailureMode,
    WorkClassView,
)


def scraped(throttle: Throttle, recorder: RecorderProtocol | None = None) -> dict[str, Metric]:
    registry = CollectorRegistry()
    registry.register(collector(throttle, recorder))
    text = generate_latest(registry).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    openmetrics_text = openmetrics.generate_latest(registry).decode()  # type: ignore[no-untyped-call]
    again = openmetrics_parser.text_string_to_metric_families(openmetrics_text)  # type: ignore[no-untyped-call]
    assert [family.name for family in again] == list(families)
    return families


def value(throttle: Throttle, name: str, **labels: str) -> float | None:
    for family in scraped(throttle).values():
        for sample in family.samples:
            if sample.name == PREFIX + name and sample.labels == labels:
                return sample.value
    return None


def states(throttle: Throttle, name: str) -> dict[str, float]:
    family = scraped(throttle)[PREFIX + name]
    return {"".join(sample.labels.values()): sample.value for sample in family.samples}


LIMITER = ConcurrencyView(
    limit=20.5,
    in_flight=17,
    paused=5,
    waiting=(0, 3, 250),
    service_rps=101.5,
    demand_rps=(10.0, 30.0, 163.0),
    latency_s=0.2,
    unloaded_s=0.05,
    budget_s=0.5,
    slo_s=6.5,
    slo_learned=True,
    memory_cap=math.inf,
    memory_blind=False,
    slo_unreachable=False,
    retry_backlog_s=12.5,
    work_classes=(
        WorkClassView("", 90.0, 0.001, 0.0005, negligible=True, in_flight=1),
        WorkClassView("chat", 11.5, 1.75, 0.625, negligible=False, in_flight=15),
    ),
    pressure=2.0,
)
STORE = StoreView(
    kind="redis",
    state=HealthState.UP,
    cause=None,
    since_s=1.0,
    on_error=StoreFailureMode.LOCAL,
    processes=4,
    fallbacks=dict.fromkeys(StoreErrorKind, 0) | {StoreErrorKind.TIMEOUT: 3},
    deny_cache_hits=40,
    stats=StoreStats(calls=10, sent=500, late=2, lost=3, waiting=0),
)
QUOTA = QuotaView(
    basis=FillBasis.DEVICE,
    fill=0.55,
    caps={Priority.HIGH: 0.92, Priority.MID: 0.7, Priority.LOW: 0.5},
    rejecting={Priority.HIGH: False, Priority.MID: False, Priority.LOW: True},
    slope=0.0125,
    usable_bytes=60_000_000_011,
    cost=3.0,
)
BREAKER = BreakerView(
    name="vector-db",
    state=BreakerState.HALF_OPEN,
    machine=BreakerState.OPEN,
    metrics_only=False,
    cause=BreakerCause.FAILURES,
    generation=4,
    streak=0,
    window_calls=0,
    window_failures=0,
    window_slow=0,
    probes=1,
    probe_successes=0,
    rounds=1,
    opened_s=12.0,
    retry_after_s=0.0,
    in_flight=1,
    calls=501,
    rejected={BreakerCause.FAILURES: 31, BreakerCause.TRIAL: 2},
    would_reject=6,
    stale_results=3,
)
BATCHER = BatcherView("embed", 8.0, 3, 3.5, 1, 40, 2, 300, 310.0, 4.5, 6.5, 7, 5, 0.4, 0.01, 0.02)
GUARDS = GuardsView(
    breakers=(BREAKER,),
    level=DegradationLevel.STALE,
    load=0.93,
    degraded={("vector-db", FallbackKind.STALE, "failures"): 9, ("vector-db", FallbackKind.SHED, "load"): 4},
    transitions={("vector-db", BreakerState.OPEN): 2},
    store_up=None,
)
WAITED = DurationHistogram([4, 0, 2, *[0] * (len(DURATION_BUCKETS_S) - 3), 1], 77.5)

EVERYTHING: dict[str, Any] = {
    "utilization_pct": 91.0,
    "graphics_active_ratio": 0.92,
    "sm_active_ratio": 0.41,
    "sm_occupancy_ratio": 0.22,
    "tensor_active_ratio": 0.33,
    "dram_active_ratio": 0.44,
    "memory_busy_pct": 55.0,
    "memory_used_bytes": 3_000_000_007,
    "memory_total_bytes": 8_000_000_009,
    "power_w": 312.5,
    "power_limit_w": 700.25,
    "power_limit_default_w": 750.75,
    "energy_j": 1234.5,
    "temperature_c": 61.5,
    "temperature_margin_c": -2.5,
    "sm_clock_mhz": 1755.0,
    "sm_clock_max_mhz": 1980.0,
    "throttle": frozenset({"sw_thermal"}),
    "throttled_ns": 4_500_000_000,
    "pcie_rx_bytes": 10_001,
    "pcie_tx_bytes": 10_002,
    "pcie_rx_bps": 10_003.5,
    "pcie_tx_bps": 10_004.5,
    "nvlink_rx_bytes": 10_005,
    "nvlink_tx_bytes": 10_006,
    "nvlink_rx_bps": 10_007.5,
    "nvlink_tx_bps": 10_008.5,
    "nvlink_errors": 17,
    "running": 23,
    "queued": 29,
    "kv_used_ratio": 0.77,
    "tokens_total": 31_000,
    "preemptions_total": 37,
}
"""A value of its own for each quantity that a card or an engine tells."""


HOST = HostView(
    cpu_ratio=0.5,
    cpu_busiest_ratio=1.0,
    cpu_throttled_ratio=0.25,
    iowait_ratio=0.125,
    memory_used_bytes=3e9,
    memory_total_bytes=4e9,
    pressure_ratio={"cpu": 0.75},
    swap_bytes_per_second={"in": 1.0},
    disk_bytes_per_second={"read": 2.0},
    network_bytes_per_second={"receive": 3.0},
)
"""A host that knows everything."""


def knowing_all(clock: ManualClock) -> FakeGpu:
    """A card and an engine that tell everything."""
    gpu = FakeGpu(engines=1, clock=clock)
    for name, reading in EVERYTHING.items():
        setattr(gpu, name, reading)
    return gpu


def with_recent(throttle: Throttle) -> None:
    """Record a minute in the history of a throttle, results of its models, and the state of its alerts."""
    timer, now = history_timer(throttle), throttle.snapshot().taken_at_s
    counts = [0.0, 10.0, 5.0, *[0.0] * (len(DURATION_BUCKETS_S) - 2)]
    for step in range(13):
        rows: list[Row] = [
            ("request_duration_seconds", ("high", "admitted"), [step * count for count in counts]),
            ("outcomes", ("high", "success"), 9.0 * step),
            ("outcomes", ("high", "failure"), 1.0 * step),
            ("outcomes", ("high", "neutral"), 2.0 * step),
            ("engine_tokens", ("engine-0:8000",), 500.0 * step),
            ("inter_token_latency_seconds", ("high",), [step * count for count in counts]),
        ]
        timer.history.record(now - 60.0 + 5 * step, 0.0, rows)
    effects = (
        ResourceEffect(resource="gpu", silence=None, seconds=0.018, low_s=0.017, high_s=0.019),
        ResourceEffect(resource="cpu", silence=Silence.DID_NOT_MOVE),
    )
    leaks = (LeakView("gpu:0", 3e9, 20.0), LeakView("process", None, None))
    timer.models.view = ModelsView(LatencyView(effects, 0.5, 360), {}, leaks)
    alerts = AlertsView((), True, {"GpuLost": False}, {"latency_p95": (1.5, 2.5, False)})
    timer.alerts_view = lambda: alerts  # type: ignore[method-assign]


class Loaded(ManualThrottle):
    """A throttle whose snapshot shows what it is told to."""

    shown: dict[str, Any]

    def snapshot(self) -> Snapshot:
        return dataclasses.replace(super().snapshot(), **self.shown)


def loaded(settings: dict[str, Any] | None = None, /, **shown: Any) -> Loaded:
    """A throttle with a gate that has work, unless told otherwise."""
    made = throttle_for_tests(**(settings or {}))
    throttle = Loaded(made.settings, made.clock, made.gpu)
    throttle.shown = {
        "concurrency": LIMITER,
        **dict.fromkeys(("queue_time", "first_token", "inter_token"), dict.fromkeys(Priority, WAITED)),
        "pressure": {"demand": 2.0, "memory": 0.5},
        "would_reject": {(Priority.LOW, Reason.QUEUE): 7},
        "rejections": {(None, "user-60s"): 5},
        "batchers": (BATCHER,),
        "replicas_ratio": 1.4,
    } | shown
    return throttle
