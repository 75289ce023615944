"""Events at bad moments that must not make a request fail or wait."""

from __future__ import annotations

import gc
import logging
import math
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from autoglm_throttle import ControlState, Demand, Outcome, Priority, Settings, TelemetryState, Throttle
from autoglm_throttle._runtime import backoff_s
from autoglm_throttle.testing import FakeGpu, ManualClock, throttle_for_tests
from autoglm_throttle.types import LimiterReport, Policy

DEADLINE_S = 60.0
"""Longest wait for a thread; only a fault takes this long."""


class Collecting(Demand):
    """A demand that runs the garbage collector while the throttle holds its lock."""

    __slots__ = ()

    @property
    def cost(self) -> float:
        gc.collect()
        return 1.0

    @cost.setter
    def cost(self, cost: float) -> None:
        pass


def test_abandoned_stream_is_settled_during_another_decision() -> None:
    throttle = Throttle(Settings(gpu="none"))

    def stream() -> Iterator[None]:
        permit = throttle.try_admit(Demand())
        assert permit.admitted
        with permit:
            yield

    gc.disable()
    try:
        started_check = stream()
        next(started_check)
        abandoned: list[object] = [started_check]
        del started_check
        abandoned.append(abandoned)
        del abandoned
        decided = threading.Event()

        def decide() -> None:
            throttle.try_admit(Collecting())
            decided.set()

        threading.Thread(target=decide, daemon=True).start()
        assert decided.wait(DEADLINE_S)
    finally:
        gc.enable()
    snapshot = throttle.snapshot()
    assert snapshot.outcomes[Priority.MID, Outcome.NEUTRAL] == 1
    assert snapshot.active[Priority.MID] == 1


def test_a_thread_that_could_not_start_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    throttle = Throttle(Settings(gpu_unknown="conservative"), gpu=FakeGpu(clock=clock), clock=clock)
    with monkeypatch.context() as exhausted:
        exhausted.setattr(threading.Thread, "start", _no_more_threads)
        for _ in range(10):
            assert throttle.try_admit(Demand()).admitted
            clock.advance(1.0)
        assert throttle.control_state().telemetry is TelemetryState.BLIND
    try:
        clock.advance(backoff_s(99))
        throttle.try_admit(Demand())
        deadline = time.monotonic() + DEADLINE_S
        while throttle.control_state().telemetry is not TelemetryState.FRESH and time.monotonic() < deadline:
            threading.Event().wait(0.01)
        assert throttle.control_state().telemetry is TelemetryState.FRESH
    finally:
        throttle.stop()


def _no_more_threads(thread: threading.Thread) -> None:
    raise RuntimeError(f"can't start new thread {thread.name}")


def test_a_long_import_is_no_silence() -> None:
    clock = ManualClock()
    throttle = throttle_for_tests(clock=clock, gpu_unknown="conservative")
    clock.advance(60.0)
    throttle.start()
    assert (throttle.control_state().telemetry, throttle.control_state().factor) == (
        TelemetryState.STARTING,
        1.0,
    )
    clock.advance(6.0)
    throttle.start()
    assert (throttle.control_state().telemetry, throttle.control_state().factor) == (
        TelemetryState.BLIND,
        0.7,
    )


def test_a_stop_in_the_midst_of_a_reading_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reading reports a control state while its validity is being read."""
    throttle = throttle_for_tests()
    throttle.start()
    stopping = threading.Thread(target=throttle.stop, daemon=True)
    original = throttle.control.controller.control_state

    class HeldState(ControlState):
        @property
        def valid_until_s(self) -> float:
            if not stopping.is_alive() and not throttle_stopped():
                stopping.start()
                stopping.join(0.2)
            return math.inf

        @valid_until_s.setter
        def valid_until_s(self, valid_until_s: float) -> None:
            pass

    def throttle_stopped() -> bool:
        return stopping.ident is not None

    def state(now: float, evidence: LimiterReport | None = None) -> ControlState:
        messages = original(now)
        held = object.__new__(HeldState)
        for name in ControlState.__dataclass_fields__:
            if name != "until_s":
                object.__setattr__(held, name, getattr(messages, name))
        return held

    monkeypatch.setattr(throttle.control.controller, "control_state", state)
    throttle.control_state()
    stopping.join(DEADLINE_S)
    assert throttle.admission.refresh_due_s == -math.inf


def test_a_log_filter_that_raises_breaks_no_request() -> None:
    throttle = throttle_for_tests(rate_mid_rps="1/s")
    logger = logging.getLogger("autoglm_throttle")
    level = logger.level

    def broken(record: logging.LogRecord) -> bool:
        raise ZeroDivisionError

    logger.addFilter(broken)
    logger.setLevel(logging.INFO)
    try:
        assert [throttle.try_admit(Demand()).admitted for _ in range(3)] == [True, False, False]
    finally:
        logger.removeFilter(broken)
        logger.setLevel(level)


def test_full_user_table_is_logged_once_with_a_rejection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    throttle = throttle_for_tests(user_limit="1/hour", max_users=100, rate_mid_rps="100000/s")
    for users, lines in ((100, 0), (130, 0), (130, 1), (130, 1)):
        throttle.clock.advance(60.0)
        for number in range(users):
            throttle.try_admit(Demand(user=f"u{number}", group="g"))
        full = [record for record in caplog.records if getattr(record, "event", "") == "user_table_full"]
        assert len(full) == lines


def test_lost_and_recovered_device_are_an_event_each(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    throttle = throttle_for_tests(clock=clock, gpu=FakeGpu(devices=2, clock=clock))
    caplog.set_level("INFO", logger="autoglm_throttle")
    throttle.tick(2)
    throttle.gpu.lose(1)
    throttle.tick(3)
    throttle.gpu.recover()
    throttle.tick(2)
    lines = [vars(record) for record in caplog.records if vars(record).get("event", "").startswith("gpu_")]
    assert [(line["event"], line["levelname"], line["usable"], line["known"]) for line in lines] == [
        ("gpu_lost", "ERROR", 1, 2),
        ("gpu_recovered", "INFO", 2, 2),
    ]


def test_no_gpu_under_the_tier_table_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    for policy, warnings in ((Policy.TIERS, 1), (Policy.FIXED, 0)):
        caplog.clear()
        throttle = Throttle(Settings(gpu="none", policy=policy))
        for _ in range(3):
            throttle.start()
            assert throttle.try_admit(Demand()).admitted
        assert [record.levelname for record in caplog.records] == ["WARNING"] * warnings


def test_sample_from_the_future_does_not_block_later_ones() -> None:
    throttle = throttle_for_tests()
    ahead = replace(throttle.gpu.read()[0], taken_at_s=throttle.clock() + 3600.0, utilization_pct=50.0)
    throttle.observe([ahead])
    throttle.gpu.utilization_pct = 97.0
    throttle.tick(3)
    assert throttle.control_state().factor == 0.0
