"""The metrics of the gate, the line, the table, the pressure and the dry run."""

from __future__ import annotations

import dataclasses
import math

import pytest

from autoglm_throttle.admission.counters import DurationHistogram
from autoglm_throttle.observe.metric import PREFIX
from autoglm_throttle.types import Priority, TelemetryState
from tests.observe.scraping import LIMITER, WAITED, loaded, scraped, states, value


def test_queue_is_exported_by_priority() -> None:
    throttle = loaded()
    assert states(throttle, "queued_requests") == {"high": 0, "mid": 3, "low": 250}
    samples = scraped(throttle)[PREFIX + "queue_time_seconds"].samples
    counts = {s.labels["le"]: s.value for s in samples if s.labels["priority"] == "mid" and "le" in s.labels}
    assert [counts[edge] for edge in ("0.005", "0.01", "0.025", "60.0", "+Inf")] == [4, 4, 6, 6, 7]
    assert value(throttle, "queue_time_seconds_sum", priority="low") == 77.5
    assert value(throttle, "queue_time_seconds_count", priority="low") == 7


def test_token_times_are_exported_where_a_stream_was_sent() -> None:
    first = {Priority.HIGH: WAITED, Priority.LOW: DurationHistogram()}
    throttle = loaded(first_token=first, inter_token={})
    assert value(throttle, "time_to_first_token_seconds_count", priority="high") == 7
    samples = scraped(throttle)[PREFIX + "time_to_first_token_seconds"].samples
    assert {sample.labels["priority"] for sample in samples} == {"high"}
    assert scraped(throttle)[PREFIX + "inter_token_latency_seconds"].samples == []


def test_limiter_measurements_are_exported() -> None:
    throttle = loaded()
    assert value(throttle, "inflight_requests") == 17
    assert value(throttle, "inflight_limit") == 20.5
    assert value(throttle, "service_rate") == 101.5
    assert states(throttle, "pressure_ratio") == {"demand": 2.0, "memory": 0.5}
    assert value(throttle, "would_reject_total", priority="low", reason="queue") == 7


@pytest.mark.parametrize(
    ("inflight_max", "limit", "memory_cap", "reported"),
    [
        (0, 20.5, math.inf, 20.5),
        (0, 20.5, 9.0, 9.0),
        (8, 20.5, 9.0, 8.0),
        (64, 20.5, math.inf, 20.5),
        (8, math.inf, math.inf, 8.0),
        (0, math.inf, math.inf, None),
    ],
)
def test_the_smallest_bound_is_the_limit(
    inflight_max: int, limit: float, memory_cap: float, reported: float | None
) -> None:
    view = dataclasses.replace(LIMITER, limit=limit, memory_cap=memory_cap)
    assert value(loaded({"inflight_max": inflight_max}, concurrency=view), "inflight_limit") == reported


GATED = ("queued_requests", "inflight_requests", "inflight_limit", "service_rate")


def test_without_a_limiter_nothing_is_exported_of_it() -> None:
    families = scraped(loaded(concurrency=None, queue_time={}, pressure={}, would_reject={}))
    for name in (*GATED, "queue_time_seconds", "pressure_ratio", "would_reject"):
        assert not families[PREFIX + name].samples


def test_a_rate_that_was_not_measured_yet_is_absent() -> None:
    throttle = loaded(concurrency=dataclasses.replace(LIMITER, service_rps=None))
    assert value(throttle, "service_rate") is None
    assert value(throttle, "inflight_limit") == 20.5


def test_table_factor_is_exported_whether_or_not_it_acts() -> None:
    throttle = loaded()
    assert value(throttle, "table_factor_ratio") is None, "there is no sample yet"
    throttle.tick()
    control = throttle.control_state()
    for factor, armed in ((0.4, False), (0.7, True)):
        throttle.shown = {"control": dataclasses.replace(control, table_factor=factor, armed=armed)}
        assert value(throttle, "table_factor_ratio") == factor
        assert value(throttle, "table_armed") == float(armed)
        assert value(throttle, "factor_ratio") == 1.0
    for telemetry, known in (
        (TelemetryState.STALE, True),
        (TelemetryState.BLIND, False),
        (TelemetryState.NONE, False),
    ):
        throttle.shown = {"control": dataclasses.replace(control, table_factor=0.4, telemetry=telemetry)}
        assert (value(throttle, "table_factor_ratio") is not None) is known
