"""The built-in alerts: their states, their receivers, their thread and their metrics."""

from __future__ import annotations

import json
import logging
import queue
import socket
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from autoglm_throttle import Settings, Throttle
from autoglm_throttle.observe import Alert, metrics_app, start_alerts
from autoglm_throttle.observe.alerts import Alerts
from autoglm_throttle.observe.evaluator import Evaluator
from autoglm_throttle.observe.notify import WAITING_MOST, AlertReceiver, as_alertmanager
from autoglm_throttle.observe.rules import RULES
from autoglm_throttle.observe.timer import history_timer, new_history
from autoglm_throttle.testing import ManualThrottle, throttle_for_tests
from tests.observe.scraping import value

STALLED = next(rule for rule in RULES if rule.name == "GpuStalled")


def states_of(values: Sequence[float | None], step_s: float = 15.0) -> tuple[list[str], list[Alert]]:
    """The state of the alert after each step, and the changes."""
    history, evaluator = new_history(), Evaluator(Settings(), [STALLED])
    states, changes = list[str](), list[Alert]()
    for step, stalled in enumerate(values):
        rows = [] if stalled is None else [("gpu_verdict", ("0", "stalled"), stalled)]
        history.record(step * step_s, 1000.0 + step * step_s, rows)
        changes += evaluator.step(history)
        states.append(evaluator.alerts[0].state if evaluator.alerts else "inactive")
    return states, changes


def test_an_alert_is_pending_fires_is_kept_and_ends() -> None:
    states, changes = states_of([0, 1, 1, 1, 1, 0, 0, 0, 0, 0])
    assert states == ["inactive", *["pending"] * 2, *["firing"] * 6, "inactive"]
    assert [(alert.state, alert.value) for alert in changes] == [("firing", 1.0), ("resolved", 0.0)]
    assert changes[0].labels == {"gpu": "0"}
    assert changes[0].summary == "GPU 0 is busy and nothing comes out."
    assert (changes[0].since_s, changes[0].fired_wall_s) == (15.0, 1045.0)


def test_a_pending_alert_ends_at_once() -> None:
    states, changes = states_of([1, 1, 0, 1, 1, None, 1, 1, 1])
    assert states == [*["pending"] * 2, "inactive", *["pending"] * 2, "inactive", *["pending"] * 2, "firing"]
    assert len(changes) == 1


def test_a_short_interruption_does_not_end_a_firing_alert() -> None:
    states, changes = states_of([1, 1, 1, 0, 0, 0, 1, 0, 0, 0, 1])
    assert set(states[2:]) == {"firing"}
    assert len(changes) == 1


def test_the_alert_of_a_vanished_device_has_no_value() -> None:
    _, changes = states_of([1, 1, 1, *[None] * 6])
    assert [(alert.state, alert.value) for alert in changes] == [("firing", 1.0), ("resolved", None)]


def test_each_device_has_an_alert_of_its_own() -> None:
    history, evaluator = new_history(), Evaluator(Settings(), [STALLED])
    for step in range(3):
        rows = [("gpu_verdict", (gpu, "stalled"), float(gpu != "1")) for gpu in ("0", "1", "2")]
        history.record(step * 15.0, 0.0, [*rows])
        changes = evaluator.step(history)
    assert [alert.labels["gpu"] for alert in changes] == ["0", "2"]


# The alerts of a throttle


def alerting(**settings: Any) -> tuple[ManualThrottle, Alerts]:
    throttle = throttle_for_tests(sample_interval_s=5, **settings)
    alerts = start_alerts(throttle)
    assert alerts is not None
    return throttle, alerts


def fill_memory(throttle: ManualThrottle, ratio: float = 0.95) -> None:
    throttle.gpu.memory_total_bytes = 80_000_000_000
    throttle.gpu.memory_used_bytes = int(80_000_000_000 * ratio)
    run(throttle, 5)


def run(throttle: ManualThrottle, seconds: int) -> None:
    for _ in range(seconds // 5):
        throttle.tick()
        history_timer(throttle).step()


def test_alerts_are_logged_counted_and_shown_as_metrics(caplog: pytest.LogCaptureFixture) -> None:
    throttle, _ = alerting()
    caplog.set_level(logging.INFO)
    run(throttle, 10)
    assert value(throttle, "alerts_up") == 1.0
    assert value(throttle, "alert_active", alert="GpuMemoryHigh") == 0.0
    fill_memory(throttle)
    assert value(throttle, "alert_active", alert="GpuMemoryHigh") == 1.0
    fill_memory(throttle, 0.5)
    run(throttle, 60)
    assert value(throttle, "alert_active", alert="GpuMemoryHigh") == 0.0
    lines = [record for record in caplog.records if vars(record).get("event") == "alert"]
    shown = [(vars(line)["alert"], vars(line)["state"], line.levelname) for line in lines]
    assert shown == [("GpuMemoryHigh", "firing", "WARNING"), ("GpuMemoryHigh", "resolved", "INFO")]


def test_callbacks_get_each_change_once() -> None:
    throttle = throttle_for_tests(sample_interval_s=5)
    got: queue.SimpleQueue[Alert] = queue.SimpleQueue()
    alerts = start_alerts(throttle, got.put)
    assert start_alerts(throttle) is alerts
    fill_memory(throttle)
    fill_memory(throttle)
    assert got.get(timeout=10.0).rule.name == "GpuMemoryHigh"
    assert got.empty()


def test_alerts_that_are_off_leave_no_trace() -> None:
    throttle = throttle_for_tests(alerts=False)
    metrics_app(throttle)
    assert start_alerts(throttle) is None
    assert value(throttle, "alerts_up") is None
    assert value(throttle, "alert_active", alert="GpuMemoryHigh") is None


def test_a_late_evaluation_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    throttle, _ = alerting()
    run(throttle, 10)
    throttle.clock.advance(30.0)
    history_timer(throttle).step()
    assert "the alerts were evaluated 25 s late" in caplog.text


def test_a_forked_child_has_no_alert_of_its_parent() -> None:
    throttle, alerts = alerting()
    fill_memory(throttle)
    assert alerts.evaluator.alerts
    alerts._begin()
    assert alerts.evaluator.alerts == ()


def test_dynamic_thresholds_are_metrics_only_where_they_are_on() -> None:
    throttle, alerts = alerting(alert_z_rules=True)
    throttle.gpu.utilization_pct = 50.0
    run(throttle, 36 * 60)
    series = "gpu_0_utilization"
    assert value(throttle, "anomaly_score", series=series) == 0.0
    assert value(throttle, "dynamic_threshold", series=series) == pytest.approx(0.56)
    throttle.gpu.utilization_pct = 80.0
    run(throttle, 7 * 60)
    assert value(throttle, "anomaly_active", series=series) == 1.0
    assert value(throttle, "alert_active", alert="Unusual") == 1.0
    throttle.gpu.utilization_pct = None
    run(throttle, 36 * 60)
    assert value(throttle, "anomaly_score", series=series) is None
    off = alerting()[0]
    run(off, 36 * 60)
    assert value(off, "anomaly_score", series=series) is None
    assert alerts.view().up


def test_alerts_start_the_timer() -> None:
    throttle, stepped = Throttle(Settings(gpu="none")), threading.Event()
    history_timer(throttle).add_consumer(lambda _: stepped.set())
    start_alerts(throttle)
    assert stepped.wait(10.0)
    history_timer(throttle).stop()


# Receivers

ALERT = states_of([1, 1, 1])[1][0]


def test_a_failing_receiver_is_counted_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    got: list[Sequence[Alert]] = []

    def deliver(alerts: Sequence[Alert]) -> None:
        got.append(alerts)
        if len(got) == 1:
            raise OSError("down")

    receiver = AlertReceiver("test", deliver, lambda: 0.0)
    receiver._waiting.extend([[ALERT], [ALERT]])
    receiver.flush()
    assert (len(got), receiver.errors) == (2, 1)
    assert "alerts: test: OSError('down')" in caplog.text


def test_a_slow_delivery_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    times = iter([0.0, 5.5, 5.5])
    receiver = AlertReceiver("test", lambda _: None, lambda: next(times))
    receiver._waiting.append([ALERT])
    receiver.flush()
    assert receiver.errors == 1
    assert "test: it took 5.5 s" in caplog.text


def test_a_hanging_receiver_delays_nothing_and_keeps_the_newest() -> None:
    started, released, got = threading.Event(), threading.Event(), list[Sequence[Alert]]()

    def deliver(alerts: Sequence[Alert]) -> None:
        started.set()
        assert released.wait(10.0)
        got.append(alerts)
        if len(got) == WAITING_MOST + 1:
            done.set()

    done = threading.Event()
    receiver = AlertReceiver("test", deliver)
    receiver.put([])
    assert started.wait(10.0)
    for _ in range(WAITING_MOST + 2):
        receiver.put([ALERT])
    assert receiver.errors == 2
    released.set()
    assert done.wait(10.0)


class Manager(BaseHTTPRequestHandler):
    posted: queue.SimpleQueue[tuple[str, Any]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.end_headers()
        self.posted.put((self.path, json.loads(body)))

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def manager() -> Iterator[HTTPServer]:
    Manager.posted = queue.SimpleQueue()
    server = HTTPServer(("127.0.0.1", 0), Manager)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_the_webhook_gets_alerts_in_the_form_of_alertmanager(manager: HTTPServer) -> None:
    url = f"http://127.0.0.1:{manager.server_port}/api/v2/alerts"
    throttle, alerts = alerting(alert_webhook_url=url, service="chat")
    fill_memory(throttle)
    path, (full,) = Manager.posted.get(timeout=10.0)
    assert path == "/api/v2/alerts"
    instance = {"job": "chat", "instance": socket.gethostname()}
    assert full["labels"] == instance | {
        "alertname": "AutoglmGpuMemoryHigh",
        "gpu": "0",
        "severity": "warning",
    }
    summary = "The memory of GPU 0 is nearly full."
    assert full["annotations"] == {"summary": summary, "runbook_url": "docs/operating.md#gpumemoryhigh"}
    assert full["startsAt"] < full["endsAt"]
    run(throttle, 60)  # nothing changes, and it is sent again
    assert Manager.posted.get(timeout=10.0)[1][0]["labels"] == full["labels"]
    assert Manager.posted.empty()
    assert alerts._poster is not None
    assert alerts._poster.errors == 0


def test_times_of_a_resolved_alert_are_in_the_past() -> None:
    fires = as_alertmanager(ALERT, {}, 2000.0)
    assert fires["startsAt"] == "1970-01-01T00:17:10.000+00:00"
    assert fires["endsAt"] == "1970-01-01T00:37:20.000+00:00"
    assert fires["labels"] == {"gpu": "0", "alertname": "AutoglmGpuStalled", "severity": "critical"}
    ended = states_of([1, 1, 1, *[0] * 6])[1][-1]
    assert as_alertmanager(ended, {}, 2000.0)["endsAt"] == "1970-01-01T00:33:20.000+00:00"


@pytest.mark.parametrize(
    "url", ["ftp://host/", "file:///etc/passwd", "alertmanager:9093", "http://", "http://a b/"]
)
def test_other_addresses_are_rejected(url: str) -> None:
    with pytest.raises(ValueError, match="must be a URL that begins with http:// or https://"):
        Settings(alert_webhook_url=url)
