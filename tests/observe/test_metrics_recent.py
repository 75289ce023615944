"""Metrics of the last minute and of the models, and the models fed from the history of a throttle."""

from __future__ import annotations

import random
import sys

import pytest

from autoglm_throttle import Demand, Outcome, Permit, Priority
from autoglm_throttle.observe import models
from autoglm_throttle.observe.latency_model import HeatCell, Silence
from autoglm_throttle.observe.leak import LeakView
from autoglm_throttle.observe.models import Models
from autoglm_throttle.observe.series import Row
from autoglm_throttle.observe.timer import history_timer, new_history
from autoglm_throttle.testing import throttle_for_tests
from tests.observe.scraping import scraped, value, with_recent

GB = 1e9


def test_quantiles_are_those_of_the_last_minute() -> None:
    throttle = throttle_for_tests()
    with_recent(throttle)
    found = [value(throttle, "latency_seconds", priority="high", percentile=p) for p in ("50", "95", "99")]
    # 120 requests of 5 to 10 ms and 60 of 10 to 25 ms.
    assert found == pytest.approx(
        [0.005 + 0.005 * 90 / 120, 0.01 + 0.015 * 51 / 60, 0.01 + 0.015 * 58.2 / 60]
    )


def test_errors_are_failures_of_measured_requests() -> None:
    throttle = throttle_for_tests()
    with_recent(throttle)
    assert value(throttle, "error_ratio", priority="high") == pytest.approx(0.1)
    assert value(throttle, "error_ratio", priority="low") is None


def test_tokens_are_those_of_engines_and_streams() -> None:
    throttle = throttle_for_tests()
    with_recent(throttle)
    assert value(throttle, "tokens_per_second", source="engines") == pytest.approx(100.0)
    assert value(throttle, "tokens_per_second", source="streams") == pytest.approx(3.0)


def test_an_unknown_effect_is_absent() -> None:
    throttle = throttle_for_tests()
    with_recent(throttle)
    assert value(throttle, "latency_effect_seconds", resource="gpu") == 0.018
    assert value(throttle, "latency_effect_seconds", resource="cpu") is None
    assert value(throttle, "latency_effect_known", resource="gpu") == 1.0
    assert value(throttle, "latency_effect_known", resource="cpu") == 0.0


def test_a_leak_is_absent_until_it_is_tested() -> None:
    throttle = throttle_for_tests()
    with_recent(throttle)
    assert value(throttle, "leak_bytes_per_hour", what="gpu:0") == 3 * GB
    assert value(throttle, "leak_bytes_per_hour", what="process") is None


def test_a_history_that_stopped_has_no_last_minute() -> None:
    throttle = throttle_for_tests()
    with_recent(throttle)
    throttle.clock.advance(15.0)
    assert value(throttle, "error_ratio", priority="high") == pytest.approx(0.1)
    throttle.clock.advance(1.0)
    names = ("latency_seconds", "error_ratio", "tokens_per_second")
    families = scraped(throttle)
    assert [families[f"autoglm_throttle_{name}"].samples for name in names] == [[], [], []]


def test_requests_of_a_throttle_reach_the_gauges() -> None:
    throttle = throttle_for_tests()
    timer = history_timer(throttle)
    timer.step()
    for outcome in (Outcome.SUCCESS, Outcome.SUCCESS, Outcome.FAILURE, Outcome.NEUTRAL):
        permit = throttle.try_admit(Demand(Priority.MID))
        assert isinstance(permit, Permit)
        throttle.clock.advance(0.6)
        permit.settle(outcome)
    throttle.clock.advance(5.0)
    timer.step()
    assert value(throttle, "error_ratio", priority="mid") == pytest.approx(1 / 3)
    assert value(throttle, "latency_seconds", priority="mid", percentile="50") == pytest.approx(0.625)
    total_s = timer.history.increase("request_duration_seconds_sum", 5.0, priority="mid")
    assert total_s == {("mid", "admitted"): pytest.approx(1.8)}


def fed(steps: int, *, gpus: int = 1, requests: int = 10, leak_bytes: float = 0.0) -> Models:
    """Feed models with a service whose latency is half of the GPU's utilization."""
    found, history, rng = Models(), new_history(), random.Random(1)
    count, total_s = 0, 0.0
    for step in range(steps):
        used, cpu = rng.random(), rng.random()
        count, total_s = count + requests, total_s + requests * 0.5 * used
        rows: list[Row] = [
            ("request_duration_seconds", ("high", "admitted"), [count, *[0] * 18]),
            ("request_duration_seconds_sum", ("high", "admitted"), total_s),
            ("active_requests", ("high",), 3.0),
            ("queued_requests", ("low",), 1.0),
            ("host_cpu_ratio", (), cpu),
            ("host_memory_used_bytes", (), 60 * GB),
            ("host_memory_total_bytes", (), 64 * GB),
        ]
        for gpu in map(str, range(gpus)):
            rows.append(("gpu_utilization_ratio", (gpu,), used))
            rows.append(("gpu_memory_used_bytes", (gpu,), 40 * GB + step * leak_bytes + rng.random() * 1e8))
            rows += [("gpu_memory_total_bytes", (gpu,), 80 * GB)] if gpu == "0" else []
        history.record(5.0 * step, 0.0, rows)
        found.step(history)
    return found


@pytest.fixture(autouse=True)
def _steady_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "_own_bytes", lambda: 0.5 * GB)


def test_the_model_reads_the_mean_latency_of_each_step() -> None:
    effects = {effect.resource: effect for effect in fed(180).view.latency.effects}
    assert effects["gpu"].seconds == pytest.approx(0.05, rel=0.01)
    silences = {name: effect.silence for name, effect in effects.items()}
    assert silences == {
        "gpu": None,
        "gpu_memory": Silence.DID_NOT_MOVE,
        "cpu": Silence.WIDE_INTERVAL,
        "iowait": Silence.NOT_MEASURED,
    }


def test_few_requests_are_no_step() -> None:
    assert fed(180, requests=4).view.latency.steps == 0


def test_maps_have_all_requests_in_their_cells() -> None:
    view = fed(24).view
    assert sum(cell.requests for cell in view.maps["gpu", "cpu"]) == 230.0
    queue: tuple[HeatCell, ...] = view.maps["gpu", "queue"]
    assert {cell.y for cell in queue} == {2}  # one of four waits
    assert {cell.median_s for cell in queue} == {0.0025}


def test_without_gpu_and_requests_nothing_is_known() -> None:
    found, history = Models(), new_history()
    for step in range(12):
        history.record(5.0 * step, 0.0, [("host_iowait_ratio", (), 0.5)])
        found.step(history)
    assert [cells for cells in found.view.maps.values() if cells] == []
    assert {effect.resource for effect in found.view.latency.effects if effect.silence is None} == set()
    assert found.view.leaks == (LeakView("process", None, None),)


def test_a_leak_has_a_time_until_the_memory_is_full() -> None:
    view = fed(600, gpus=2, leak_bytes=10e6).view
    first, second, process = view.leaks
    assert (first.what, second.what) == ("gpu:0", "gpu:1")
    assert first.bytes_per_hour == pytest.approx(7.2 * GB, rel=0.02)
    assert first.full_in_h == pytest.approx((40 - 6) / 7.2, rel=0.02)
    assert second.bytes_per_hour == pytest.approx(7.2 * GB, rel=0.02)
    assert second.full_in_h is None  # its total is not known
    assert process == LeakView("process", 0.0, None)


def test_a_card_that_vanished_has_no_leak() -> None:
    found, history = Models(), new_history()
    for step in range(24):
        rows: list[Row] = [("gpu_memory_used_bytes", ("0",), GB)] if step < 12 else []
        history.record(5.0 * step, 0.0, rows)
        found.step(history)
    assert [leak.what for leak in found.view.leaks] == ["process"]


def test_results_change_once_a_minute() -> None:
    assert fed(11).view is not None
    found, history = Models(), new_history()
    first = found.view
    for step in range(12):
        history.record(5.0 * step, 0.0, [])
        assert found.view is first
        found.step(history)
    assert found.view is not first


def test_memory_of_the_process_needs_psutil(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    own = models._own_bytes()
    assert own is not None
    assert own > 1e6
    monkeypatch.setitem(sys.modules, "psutil", None)
    assert models._own_bytes() is None
    found, history = Models(), new_history()
    for step in range(12):
        history.record(5.0 * step, 0.0, [])
        found.step(history)
    assert found.view.leaks == ()
