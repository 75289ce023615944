"""The timer of a history: its steps, its consumers, its thread, and a fork."""

from __future__ import annotations

import gc
import logging
import os
import queue
import threading
import weakref
from typing import Any

import pytest

from autoglm_throttle import Demand, Permit, Priority, Settings, Throttle
from autoglm_throttle.events import LOGGER
from autoglm_throttle.observe.metric import PREFIX, MetricsInput
from autoglm_throttle.observe.metrics import METRICS
from autoglm_throttle.observe.series import History
from autoglm_throttle.observe.timer import RECORDED, HistoryTimer, history_timer, rows_of
from autoglm_throttle.testing import ManualClock, throttle_for_tests
from tests.observe.scraping import knowing_all, loaded


def test_each_recorded_metric_exists() -> None:
    assert {spec.name.removeprefix(PREFIX) for spec in METRICS} >= RECORDED


def test_a_step_records_the_values_of_a_scrape() -> None:
    clock = ManualClock()
    throttle = loaded({"clock": clock, "gpu": knowing_all(clock)})
    throttle.tick()
    timer = HistoryTimer(throttle)
    timer.step()
    history = timer.history
    assert history.last("gpu_utilization_ratio") == {("0",): 0.91}
    assert sum(history.last("queued_requests").values()) == 253.0
    assert history.last("engine_kv_used_ratio") != {}
    names = {name for name, _, _ in rows_of(MetricsInput(throttle.snapshot(), throttle.settings))}
    # These need a store, a guard, alerts or 45 minutes; of the host a system may not know all.
    missing = {name for name in RECORDED - names if not name.startswith("host_")}
    assert missing == {"redis_up", "breaker_state", "anomaly_active", "leak_bytes_per_hour"}


def test_counts_between_two_steps_are_an_increase() -> None:
    throttle = throttle_for_tests()
    timer = history_timer(throttle)
    timer.step()
    for _ in range(3):
        permit = throttle.try_admit(Demand(Priority.HIGH))
        assert isinstance(permit, Permit)
        throttle.clock.advance(0.7)
        permit.settle()
    throttle.clock.advance(5.0)
    timer.step()
    admitted = timer.history.increase("requests", 60.0, decision="admitted", priority="high")
    assert admitted == {("high", "admitted", "ok"): 3.0}
    assert timer.history.quantile(1.0, "request_duration_seconds", 60.0) == 0.75


def test_there_is_one_timer_for_each_throttle() -> None:
    one, other = throttle_for_tests(), throttle_for_tests()
    assert history_timer(one) is history_timer(one)
    assert history_timer(one) is not history_timer(other)


def test_steps_are_at_multiples_of_their_length() -> None:
    throttle = throttle_for_tests()
    timer, due = history_timer(throttle), []
    for late_s in (0.0, 1.5, 4.0):
        throttle.clock.advance(late_s)
        pause_s = timer.step()
        assert pause_s is not None
        throttle.clock.advance(pause_s)
        due.append(throttle.clock() % 5.0)
    assert due == pytest.approx([0.0, 0.0, 0.0])


def test_a_failing_consumer_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    throttle = throttle_for_tests()
    timer, seen = history_timer(throttle), list[History]()

    def fail(history: History) -> None:
        raise ValueError("no")

    timer.add_consumer(fail)
    timer.add_consumer(seen.append)
    timer.step()
    timer.step()
    assert seen == [timer.history] * 2
    assert [record.getMessage()[-16:] for record in caplog.records] == ["ValueError('no')"]


def test_a_manual_throttle_has_no_thread() -> None:
    throttle = throttle_for_tests()
    before = threading.active_count()
    history_timer(throttle).start()
    assert threading.active_count() == before


def test_the_thread_records_and_ends_with_its_throttle() -> None:
    throttle = Throttle(Settings(gpu="none"))
    timer, stepped = history_timer(throttle), threading.Event()
    timer.add_consumer(lambda _: stepped.set())
    others = set(threading.enumerate())
    timer.start()
    (thread,) = set(threading.enumerate()) - others
    assert thread.name == "autoglm-throttle history"
    assert stepped.wait(10.0)
    assert timer.is_up
    assert timer.history.steps == 1
    gone = weakref.ref(throttle)
    del throttle
    gc.collect()
    assert gone() is None
    thread.join(10.0)
    assert not thread.is_alive()
    assert timer.step() is None


class Logged(logging.Handler):
    """Waits for a log line."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.put(record.getMessage())


def test_a_snapshot_that_raises_is_logged_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    throttle = Throttle(Settings(gpu="none"))
    timer, logged, stepped = history_timer(throttle), Logged(), threading.Event()
    timer.add_consumer(lambda _: stepped.set())

    def fail(self: Throttle) -> Any:
        raise RuntimeError("broken")

    monkeypatch.setattr(Throttle, "snapshot", fail)
    LOGGER.addHandler(logged)
    try:
        timer.start()
        line = logged.lines.get(timeout=10.0)
    finally:
        LOGGER.removeHandler(logged)
    assert line == "history: no step was recorded, alerts are not evaluated: RuntimeError('broken')"
    assert [timer.is_up] == [False]
    timer.stop()
    monkeypatch.undo()
    timer.start()
    assert stepped.wait(10.0)
    assert [timer.is_up] == [True]
    timer.stop()


def _exit_in_child(timer: HistoryTimer, stepped: threading.Event) -> None:
    fresh = timer.history.steps <= 1  # its own thread may have recorded already
    stepped.clear()
    os._exit(0 if fresh and (timer.history.steps or stepped.wait(10.0)) else 1)


def test_a_forked_child_begins_with_an_empty_history() -> None:
    throttle = Throttle(Settings(gpu="none"))
    timer, stepped = history_timer(throttle), threading.Event()
    timer.add_consumer(lambda _: stepped.set())
    timer.start()
    assert stepped.wait(10.0)
    child = os.fork()
    if child == 0:
        _exit_in_child(timer, stepped)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    timer.stop()


def test_a_timer_not_started_stays_so_in_a_fork() -> None:
    throttle = Throttle(Settings(gpu="none"))
    timer, others = history_timer(throttle), set(threading.enumerate())
    timer._rebuild()
    assert set(threading.enumerate()) <= others


def test_models_begin_anew_in_a_fork() -> None:
    throttle = throttle_for_tests()
    timer = history_timer(throttle)
    before = timer.models
    timer._rebuild()
    timer.step()
    assert timer.models is not before
    assert before._steps == 0
    assert timer.models._steps == 1


def test_a_timer_whose_throttle_is_gone_does_nothing_in_a_fork() -> None:
    timer = history_timer(Throttle(Settings(gpu="none")))
    gc.collect()
    timer._rebuild()
    assert timer.step() is None
