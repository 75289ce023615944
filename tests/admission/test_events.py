"""Log events of state changes, and sampling of rejections."""

from __future__ import annotations

import dataclasses
import logging
import math
from typing import Any

import pytest

from autoglm_throttle import events
from autoglm_throttle.events import FAULTS, MAX_DEVICE_EVENTS, LogEvent, control_events
from autoglm_throttle.settings import Problem
from autoglm_throttle.store.health import HealthState
from autoglm_throttle.store.protocol import StoreErrorKind, StoreStats
from autoglm_throttle.store.shared_limits import StoreView, store_changed
from autoglm_throttle.types import (
    ControlCause,
    ControlState,
    Decision,
    Demand,
    DeviceKey,
    GpuCondition,
    GpuSample,
    GpuVerdict,
    GpuView,
    Priority,
    Reason,
    Signal,
    StoreFailureMode,
    TelemetryState,
)
from tests.admission.event_queues import event_queue, overdue, record


def control_state(
    factor: float = 1.0,
    tier: float = 1.0,
    why: ControlCause = ControlCause.CALM,
    telemetry: TelemetryState = TelemetryState.FRESH,
    load: float | None = 0.5,
) -> ControlState:
    return ControlState(factor, tier, load, 0.0, why, telemetry, math.inf)


def test_no_change_is_no_event() -> None:
    assert list(control_events(control_state(), control_state())) == []
    assert (
        list(control_events(control_state(load=0.2), control_state(why=ControlCause.STRIKE, load=0.9))) == []
    )


def test_a_tier_entered_warns_and_a_tier_left_informs() -> None:
    calm, cut = control_state(), control_state(0.7, 0.7, ControlCause.TIER, load=0.88)
    (entered,) = control_events(calm, cut)
    assert (entered.event, entered.level) == ("tier_changed", logging.WARNING)
    assert entered.text == "rates at 70% of nominal (tier)"
    assert entered.keys == {
        "factor": 0.7,
        "factor_before": 1.0,
        "cause": "tier",
        "gpu_utilization_ratio": 0.88,
    }
    (left,) = control_events(cut, calm)
    assert (left.event, left.level) == ("tier_changed", logging.INFO)


@pytest.mark.parametrize(
    "rejecting_all", [control_state(0.0, 0.0, ControlCause.TIER), control_state(0.0, 1.0, ControlCause.LOST)]
)
def test_factor_to_or_from_0_is_an_event(rejecting_all: ControlState) -> None:
    (line,) = control_events(control_state(), rejecting_all)
    assert (line.level, line.keys["factor"]) == (logging.WARNING, 0.0)
    (line,) = control_events(rejecting_all, control_state())
    assert (line.level, line.keys["factor"]) == (logging.INFO, 1.0)


def test_drifting_factor_is_no_event() -> None:
    assert list(control_events(control_state(0.5), control_state(0.51))) == []
    assert len(list(control_events(control_state(0.0), control_state(0.01)))) == 1, "but a door that opens is"


@pytest.mark.parametrize(
    ("state", "level"),
    [
        (TelemetryState.FRESH, logging.INFO),
        (TelemetryState.LATE, logging.INFO),
        (TelemetryState.STALE, logging.WARNING),
        (TelemetryState.BLIND, logging.WARNING),
        (TelemetryState.NONE, logging.INFO),
    ],
)
def test_changed_telemetry_is_an_event(state: TelemetryState, level: int) -> None:
    (line,) = control_events(control_state(telemetry=TelemetryState.STARTING), control_state(telemetry=state))
    assert (line.event, line.level) == ("telemetry_changed", level)
    assert line.text == f"GPU telemetry is {state}"
    assert line.keys == {
        "state": state.value,
        "state_before": "starting",
        "factor": 1.0,
        "provider": None,
        "age_s": None,
    }


def row(device: str = "GPU-a", **fields: Any) -> GpuSample:
    reported: dict[str, Any] = {"index": 0, "taken_at_s": 0.0, "source": "nvml"} | fields
    return GpuSample(device=device, **reported)


def seen(*devices: GpuSample, **fields: Any) -> GpuView:
    reported: dict[str, Any] = {"taken_at_s": 100.0, "utilization_pct": None, "utilization_max_pct": None}
    reported |= {"memory_ratio": None, "power_ratio": None, "capacity": 1.0}
    return GpuView(**(reported | fields), devices=devices)


DEVICES = (row(), row("GPU-b", source="dcgm:node-7:9400", host="node-7"))
ENGINE = row("llm:8000", kind="engine", source="vllm:llm:8000")


@pytest.mark.parametrize(
    ("signal", "view", "provider", "age_s"),
    [
        (Signal.UTILIZATION, seen(*DEVICES, ENGINE, engines_at_s=103.0), "dcgm:node-7:9400, nvml", 4.5),
        (Signal.PRESSURE, seen(*DEVICES, ENGINE, engines_at_s=103.0), "vllm:llm:8000", 1.5),
        (Signal.PRESSURE, seen(*DEVICES), "dcgm:node-7:9400, nvml", 4.5),
        (Signal.UTILIZATION, seen(row(), taken_at_s=200.0), "nvml", 0.0),
    ],
)
def test_telemetry_event_has_source_and_age(
    signal: Signal, view: GpuView, provider: str, age_s: float
) -> None:
    before = dataclasses.replace(control_state(), signal=signal)
    after = dataclasses.replace(before, telemetry=TelemetryState.STALE)
    (line,) = control_events(before, after, view, 104.5)
    assert (line.keys["provider"], line.keys["age_s"]) == (provider, age_s)
    assert line.text == f"GPU telemetry is stale ({provider}, {age_s:.1f} s old)"
    (line,) = control_events(before, after, view)
    assert (line.keys["age_s"], line.text) == (None, f"GPU telemetry is stale ({provider})")


def test_changed_signal_event_names_its_source() -> None:
    cards = control_state()
    engines = dataclasses.replace(cards, signal=Signal.PRESSURE)
    view = seen(*DEVICES, ENGINE, engines_at_s=103.0)
    (fell_back,) = control_events(engines, cards, view)
    assert (fell_back.event, fell_back.level) == ("signal_changed", logging.WARNING)
    assert fell_back.text == (
        "the load signal is utilization now (dcgm:node-7:9400, nvml), no longer pressure"
    )
    (back,) = control_events(cards, engines)
    assert (back.level, back.text) == (
        logging.INFO,
        "the load signal is pressure now, no longer utilization",
    )
    starting = control_state(telemetry=TelemetryState.STARTING)
    assert [line.event for line in control_events(starting, engines, view)] == ["telemetry_changed"]


@pytest.mark.parametrize(
    ("devices", "signal", "none_left"),
    [
        ((row(health="lost"),), Signal.UTILIZATION, True),
        ((row(health="lost"), ENGINE), Signal.UTILIZATION, True),
        ((row(health="lost"), ENGINE), Signal.PRESSURE, False),
        ((row(health="lost"), row("GPU-b")), Signal.UTILIZATION, False),
        ((ENGINE,), Signal.UTILIZATION, False),
    ],
)
def test_all_devices_lost_have_no_age(
    devices: tuple[GpuSample, ...], signal: Signal, none_left: bool
) -> None:
    before = dataclasses.replace(control_state(), signal=signal)
    after = dataclasses.replace(before, telemetry=TelemetryState.STALE)
    (line,) = control_events(before, after, seen(*devices, engines_at_s=100.0), 104.5)
    assert ("every GPU is lost, so the load is unknown" in line.text) is none_left
    assert (line.keys["age_s"] is None) is none_left


def test_of_many_sources_a_few_are_named() -> None:
    view = seen(*(row(f"GPU-{n}", source=f"dcgm:node-{n}:9400") for n in range(6)))
    (line,) = control_events(control_state(), control_state(telemetry=TelemetryState.BLIND), view, 101.0)
    assert line.keys["provider"] == "dcgm:node-0:9400, dcgm:node-1:9400, dcgm:node-2:9400 and 3 more"


def test_view_without_devices_names_no_source() -> None:
    (line,) = control_events(control_state(), control_state(telemetry=TelemetryState.BLIND), seen(), 101.0)
    assert (line.text, line.keys["provider"]) == ("GPU telemetry is blind", None)


def test_lost_and_recovered_device_events() -> None:
    here, there = row(), row(host="node-7")
    gone = row(host="node-7", health="lost")
    (line,) = events.device_events((here, there, ENGINE), (here, gone, ENGINE))
    assert (line.event, line.level) == ("gpu_lost", logging.ERROR)
    assert line.text == "GPU-a on node-7 is lost: 1 of 2 usable"
    assert line.keys == {"device": "GPU-a", "host": "node-7", "usable": 1, "known": 2}
    (line,) = events.device_events((here, gone), (here, there))
    assert (line.event, line.level, line.keys["usable"]) == ("gpu_recovered", logging.INFO, 2)
    assert list(events.device_events((here, gone), (here, gone))) == []


def with_verdict(
    finding: GpuCondition,
    since_s: float = 0.0,
    evidence: dict[str, float] | None = None,
    key: DeviceKey = ("", "GPU-a"),
) -> GpuView:
    return seen(row(), verdicts={key: GpuVerdict(finding, since_s, 0.8, evidence or {})})


@pytest.mark.parametrize(
    ("finding", "level"),
    [
        (GpuCondition.STALLED, logging.ERROR),
        (GpuCondition.DEGRADED, logging.WARNING),
        (GpuCondition.THROTTLED, logging.WARNING),
        (GpuCondition.STARVED, logging.WARNING),
    ],
)
@pytest.mark.parametrize("before", [None, GpuCondition.WORKING, GpuCondition.IDLE, GpuCondition.LOST])
def test_verdict_event_has_its_evidence(
    finding: GpuCondition, level: int, before: GpuCondition | None
) -> None:
    evidence = {"utilization_pct": 100.0, "power_share": 0.1234, "progress_per_s": 0.0}
    was = None if before is None else with_verdict(before)
    (line,) = events.verdict_events(was, with_verdict(finding, 5.0, evidence))
    assert (line.event, line.level) == ("gpu_verdict", level)
    reported = "utilization_pct 100, power_share 0.123, progress_per_s 0"
    assert line.text == f"GPU-a is {finding}, 80% sure: {reported}"
    assert line.keys == {
        "device": "GPU-a",
        "host": "",
        "verdict": finding.value,
        "verdict_before": None if before is None else before.value,
        "confidence": 0.8,
        "evidence": evidence,
    }


def test_verdict_without_evidence_is_an_event() -> None:
    (line,) = events.verdict_events(None, with_verdict(GpuCondition.STALLED))
    assert line.text == "GPU-a is stalled, 80% sure"


def test_ended_verdict_event_has_its_duration() -> None:
    (line,) = events.verdict_events(
        with_verdict(GpuCondition.STALLED, 10.0), with_verdict(GpuCondition.PRODUCTIVE, 22.4)
    )
    assert (line.event, line.level) == ("gpu_verdict", logging.INFO)
    assert line.text == "GPU-a is productive, no longer stalled after 12 s"
    assert line.keys["lasted_s"] == pytest.approx(12.4)
    (line,) = events.verdict_events(with_verdict(GpuCondition.THROTTLED), with_verdict(GpuCondition.STALLED))
    assert line.level == logging.ERROR, "a worse fault is not an end"


@pytest.mark.parametrize("finding", GpuCondition)
def test_unchanged_verdict_is_logged_once(finding: GpuCondition) -> None:
    assert (
        list(
            events.verdict_events(
                with_verdict(finding, 1.0), with_verdict(finding, 1.0, {"power_share": 0.5})
            )
        )
        == []
    )


QUIET = [finding for finding in GpuCondition if finding not in FAULTS]


@pytest.mark.parametrize("before", QUIET)
@pytest.mark.parametrize("after", QUIET)
def test_verdict_without_fault_is_no_event(before: GpuCondition, after: GpuCondition) -> None:
    assert list(events.verdict_events(with_verdict(before), with_verdict(after))) == []


def test_stalled_device_that_is_lost_has_the_loss_event_only() -> None:
    assert (
        list(events.verdict_events(with_verdict(GpuCondition.STALLED), with_verdict(GpuCondition.LOST))) == []
    )


def test_name_from_an_exporter_cannot_begin_a_log_line() -> None:
    evil = ("node\n7", "GPU\r\nCRITICAL all is lost\x1b[2J")
    (line,) = events.verdict_events(None, with_verdict(GpuCondition.STALLED, key=evil))
    (lost,) = events.device_events((), (row(evil[1], host=evil[0], health="lost"),))
    for text in (line.text, lost.text, *map(str, line.keys.values()), *map(str, lost.keys.values())):
        assert text.isprintable()


def test_event_reaches_the_logger_with_its_keys(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "autoglm_throttle"):
        LogEvent("tier_changed", logging.WARNING, "rates at 70%", {"factor": 0.7}).write()
        LogEvent("noise", logging.DEBUG, "not heard", {}).write()
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("autoglm_throttle", "WARNING")
    assert record.getMessage() == "rates at 70%", "a percent sign is no placeholder"
    assert (vars(record)["event"], vars(record)["factor"]) == ("tier_changed", 0.7)


def test_rejection_event_names_the_caller_by_hash_only() -> None:
    demand = Demand(Priority.LOW, "07f3a9c2d4e5b617", address="aaaa", group="bbbb")
    decision = Decision(False, Reason.USER, "user:user-60s", "user-60s", retry_after_s=12.5)
    queue = event_queue(10.0)
    for _ in range(2):
        record(queue, Reason.USER, 0.0)
    record(queue, Reason.USER, 1.0)
    queue.waiting.clear()
    assert queue.record_rejection(demand, decision, 10.0)
    (line,) = queue.waiting
    assert line.text == "3 limited (user:user-60s)"
    assert line.keys == {
        "priority": "low",
        "decision": "limited",
        "reason": "user",
        "detail": "user:user-60s",
        "client_hash": "07f3a9c2d4e5b617",
        "retry_after_s": 12.5,
        "count": 3,
    }


def test_first_rejection_is_logged_and_the_rest_counted() -> None:
    queue = event_queue(10.0)
    assert record(queue, Reason.USER, 100.0) == 1
    assert [record(queue, Reason.USER, 100.0 + n) for n in range(1, 10)] == [0] * 9
    assert record(queue, Reason.RATE, 105.0) == 1, "each reason for itself"
    assert record(queue, Reason.USER, 110.0) == 10, "with it the nine that were not written"
    assert record(queue, Reason.USER, 119.9) == 0
    assert record(queue, Reason.USER, 500.0) == 2


def test_every_rejection_is_counted_once() -> None:
    queue = event_queue(1.0)
    written = sum(record(queue, Reason.GPU, n * 0.13) for n in range(1000))
    assert written + int(queue.rejections[Reason.GPU][1]) == 1000


def test_last_rejections_are_logged_after_the_interval() -> None:
    queue = event_queue(10.0)
    assert overdue(queue, 0.0) == []
    for instant in (100.0, 101.0, 102.0):
        record(queue, Reason.USER, instant)
    record(queue, Reason.RATE, 100.0)
    assert overdue(queue, 109.9) == []
    assert overdue(queue, 110.0) == [("user", 2)], "of the rate nothing was left to tell"
    assert overdue(queue, 500.0) == []
    assert record(queue, Reason.USER, 505.0) == 1
    assert record(queue, Reason.USER, 506.0) == 0


def test_counted_rejections_are_logged_without_a_caller() -> None:
    queue = event_queue(10.0)
    for _ in range(13):
        record(queue, Reason.USER, 0.0)
    queue.summarize(10.0)
    (line,) = queue.waiting
    assert line.text == "12 limited (user)"
    assert line.keys == {"decision": "limited", "reason": "user", "count": 12}


def test_settings_in_force_are_one_event() -> None:
    values = {"policy": "tiers", "rate_low_rps": "100", "slo_s": "2", "tiers": "9" * 61, "redis_url": "****"}
    line = events.configured(values, ["tiers", "redis_url"])
    assert (line.event, line.level, line.keys) == ("config", logging.INFO, {"settings": values})
    shortened = "9" * 58 + ".."
    assert line.text == (
        f"the limits in force: policy=tiers, rate_low_rps=100, tiers={shortened}, redis_url=****"
    )


def store(on_error: StoreFailureMode, processes: int = 4) -> StoreView:
    return StoreView(
        "redis",
        HealthState.DOWN,
        StoreErrorKind.TIMEOUT,
        0.0,
        on_error,
        processes,
        dict.fromkeys(StoreErrorKind, 0),
        0,
        StoreStats(),
    )


@pytest.mark.parametrize(
    ("on_error", "meanwhile"),
    [
        (StoreFailureMode.LOCAL, "each process enforces 1/4 of the user limits until it recovers"),
        (StoreFailureMode.ALLOW, "user limits are not enforced until it recovers"),
        (StoreFailureMode.DENY, "requests under a user limit are rejected until it recovers"),
    ],
)
def test_store_lost_event_warns_and_names_the_fallback(on_error: StoreFailureMode, meanwhile: str) -> None:
    line = store_changed(store(on_error), 3.0, "too slow")
    assert (line.event, line.level) == ("store_lost", logging.WARNING)
    assert line.text == f"redis is unavailable: timeout (too slow); {meanwhile}"
    assert line.keys == {"store": "redis", "reason": "timeout", "on_error": on_error.value}


def test_store_recovered_event_has_the_outage_duration() -> None:
    view = dataclasses.replace(store(StoreFailureMode.LOCAL), state=HealthState.UP, cause=None)
    line = store_changed(view, 3.25, "")
    assert (line.event, line.level) == ("store_recovered", logging.INFO)
    assert line.text == "redis answers again after 3.2 s; user limits are shared again"
    assert line.keys == {"store": "redis", "down_s": 3.25}


def test_implausible_setting_warns() -> None:
    line = events.configuration_advice(
        Problem("X_REDIS_URL", "is set, but nothing uses it", "set USER_LIMIT")
    )
    assert (line.event, line.level, line.keys) == ("config", logging.WARNING, {"setting": "X_REDIS_URL"})
    assert "nothing uses it" in line.text


def named(number: int, *, health: str = "ok") -> tuple[GpuSample, ...]:
    return tuple(row(f"GPU-{index}", health=health) for index in range(number))


def test_up_to_16_devices_are_events_and_more_are_one() -> None:
    """An exporter with new device names at every reading would otherwise fill the disk."""
    host, devices_many = MAX_DEVICE_EVENTS, MAX_DEVICE_EVENTS + 1
    assert len(list(events.device_events(named(host), named(host, health="lost")))) == host
    (line,) = events.device_events(named(devices_many), named(devices_many, health="lost"))
    assert (line.event, line.level) == ("gpu_lost", logging.ERROR)
    assert line.text == "17 GPUs are lost: 0 of 17 usable"
    assert line.keys == {"devices": 17, "usable": 0, "known": 17}


def test_many_verdicts_at_once_are_one_event() -> None:
    def of(*findings: GpuCondition) -> GpuView:
        verdicts = {
            ("", f"GPU-{at:03}"): GpuVerdict(finding, 0.0, 0.8, {}) for at, finding in enumerate(findings)
        }
        return seen(row(), verdicts=verdicts)

    most = MAX_DEVICE_EVENTS
    assert len(list(events.verdict_events(None, of(*[GpuCondition.STALLED] * most)))) == most
    (line,) = events.verdict_events(
        None, of(*[GpuCondition.THROTTLED] * most, GpuCondition.STALLED, GpuCondition.IDLE)
    )
    assert (line.event, line.level) == ("gpu_verdict", logging.ERROR)
    assert line.text == "new verdicts on 17 GPUs: 1 stalled, 16 throttled"
