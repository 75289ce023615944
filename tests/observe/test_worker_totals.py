"""The history, ``/metrics`` and the live page of several workers show their totals."""

from __future__ import annotations

import gc
import json
import logging
import os
import tempfile
from pathlib import Path

import httpx
import pytest

from autoglm_throttle import Demand, Permit, Priority, Settings, Throttle
from autoglm_throttle.observe import metrics_app, status_app
from autoglm_throttle.observe.metric import PREFIX, HistogramSpec
from autoglm_throttle.observe.metrics import METRICS
from autoglm_throttle.observe.siblings import Siblings, folder_of
from autoglm_throttle.observe.timer import SUMMED, HistoryTimer, history_timer, shared_series
from autoglm_throttle.testing import ManualThrottle, throttle_for_tests
from tests.observe.page_states import send
from tests.observe.scraping import knowing_all, value

ADMITTED = {"priority": "mid", "decision": "admitted", "reason": "ok"}


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def worker(folder: Path, process: int) -> tuple[ManualThrottle, HistoryTimer]:
    """Make a worker of several, whose steps the test moves."""
    throttle = throttle_for_tests(workers=2, policy="adaptive")
    timer = history_timer(throttle)
    timer.siblings = Siblings(folder, {"requests", "request_duration_seconds", "outcomes"}, process)
    return throttle, timer


def requests(timer: HistoryTimer) -> dict[tuple[str, ...], float]:
    return {labels: count for labels, count in timer.history.increase("requests", 60.0).items() if count}


def two_workers(folder: Path) -> tuple[ManualThrottle, HistoryTimer]:
    """Return one of two workers, which have served 3 and 40 requests."""
    one, other = worker(folder, os.getpid()), worker(folder, os.getppid())
    for step, (served, elsewhere) in enumerate(((0, 0), (3, 40))):
        send(one[0], served)
        send(other[0], elsewhere)
        for throttle, timer in (other, one):
            throttle.clock.advance(5.0 * (step + 1) + 1.0 - throttle.clock() % 5.0)
            timer.step()
    return one


def test_history_has_the_totals(tmp_path: Path) -> None:
    _, timer = two_workers(tmp_path)
    assert requests(timer) == {("mid", "admitted", "ok"): 43.0}
    assert sum(timer.history.counts("request_duration_seconds", 60.0) or ()) == 43.0
    total_s = timer.history.increase("request_duration_seconds_sum", 60.0)
    assert total_s["mid", "admitted"] == pytest.approx(43 * 0.08)
    assert timer.siblings is not None
    limits = [one.series["inflight_limit"][()][0] for one in timer.siblings.workers]
    assert timer.history.last("inflight_limit") == {(): sum(limits)}
    assert timer.history.last("factor_ratio") == {(): 1.0}, "not added up"


async def test_metrics_app_has_the_totals_and_a_collector_its_own(tmp_path: Path) -> None:
    throttle, _ = two_workers(tmp_path)
    transport = httpx.ASGITransport(metrics_app(throttle))
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as scraper:
        text = (await scraper.get("/")).text
    labels = 'decision="admitted",priority="mid"'
    assert 'requests_total{decision="admitted",priority="mid",reason="ok"} 43.0' in text
    assert f'request_duration_seconds_bucket{{{labels[:19]},le="+Inf",{labels[20:]}}} 43.0' in text
    assert f"request_duration_seconds_count{{{labels}}} 43.0" in text
    assert f"{PREFIX}factor_ratio 1.0" in text
    assert value(throttle, "requests_total", **ADMITTED) == 3.0


async def test_before_the_first_step_totals_are_absent(tmp_path: Path) -> None:
    throttle, _ = worker(tmp_path, os.getpid())
    send(throttle, 3)
    transport = httpx.ASGITransport(metrics_app(throttle))
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as scraper:
        text = (await scraper.get("/")).text
    assert f"{PREFIX}requests_total{{" not in text
    assert f"{PREFIX}request_duration_seconds_count{{" not in text
    assert f"{PREFIX}factor_ratio 1.0" in text


async def test_the_page_has_the_totals_and_each_worker(tmp_path: Path) -> None:
    throttle, timer = worker(tmp_path, os.getpid())
    app = status_app(throttle)
    other, other_timer = worker(tmp_path, os.getppid())
    for served in (0, 50):
        send(other, served)
        for one, its in ((other, other_timer), (throttle, timer)):
            one.clock.advance(5.0 + 1.0 - one.clock() % 5.0)
            its.step()
    transport = httpx.ASGITransport(app, client=("127.0.0.1", 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as reader:
        document = (await reader.get("/data.json")).json()
    (workers,) = (one for one in document["sections"] if one["id"] == "workers")
    shown = {row[0]: row[1] for row in workers["tables"][0]["rows"]}
    assert shown.keys() == {str(os.getpid()), str(os.getppid())}
    assert shown[str(os.getpid())] == "0"
    assert float(shown[str(os.getppid())]) > 0.0
    (now,) = (one for one in document["sections"] if one["id"] == "now")
    assert dict(now["pairs"])["admitted"] != "0/s"


def test_workers_share_their_own_counts_and_not_those_of_devices() -> None:
    throttle = throttle_for_tests(gpu=knowing_all(throttle_for_tests().clock))
    throttle.tick()
    names = set(shared_series(history_timer(throttle).inputs(throttle)))
    assert names > SUMMED
    counters = {one.name.removeprefix(PREFIX) for one in METRICS if one.kind in {"counter", "histogram"}}
    devices = {name for name in counters if name.startswith(("gpu_", "engine_"))}
    assert counters - names == {*(name for name in devices if "source" not in name), "recorder_records"}
    assert all(isinstance(one, HistogramSpec) is (one.kind == "histogram") for one in METRICS)


@pytest.mark.parametrize(
    ("settings", "shares"),
    [({}, False), ({"workers": 4}, True), ({"fleet": True, "redis_url": "redis://x"}, True)],
)
def test_settings_with_several_workers_share(settings: dict[str, object], *, shares: bool) -> None:
    throttle = Throttle(Settings(gpu="none", service="chat", **settings))  # type: ignore[arg-type]
    timer = HistoryTimer(throttle)
    assert (timer.siblings is not None) is shares
    if timer.siblings is not None:
        timer.step()
        (path,) = folder_of("chat").iterdir()
        assert json.loads(path.read_bytes())["process"] == os.getpid()


def test_a_worker_that_stops_leaves_its_last_counts(temporary: Path) -> None:
    throttle = Throttle(Settings(gpu="none", workers=2))
    timer = history_timer(throttle)
    permit = throttle.try_admit(Demand(Priority.MID))
    assert isinstance(permit, Permit)
    permit.settle()
    throttle.stop()
    (path,) = temporary.glob("*/*/*-*.json")
    counts = dict(json.loads(path.read_bytes())["series"])["requests"]
    assert [["mid", "admitted", "ok"], [1.0]] in counts
    assert timer.siblings is not None


def test_a_timer_without_its_throttle_shares_nothing() -> None:
    timer = HistoryTimer(Throttle(Settings(gpu="none", workers=2)))
    gc.collect()
    timer._share()
    assert timer.siblings is not None
    assert timer.siblings.workers == ()


def test_a_forked_child_has_a_file_of_its_own() -> None:
    timer = HistoryTimer(throttle := Throttle(Settings(gpu="none", workers=2)))
    before = timer.siblings
    timer._rebuild()
    assert timer.siblings is not None
    assert timer.siblings is not before
    assert throttle.settings.rates.workers == 2


def test_without_a_folder_a_process_is_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    with caplog.at_level(logging.WARNING):
        timer = HistoryTimer(throttle := Throttle(Settings(gpu="none", workers=2)))
    assert timer.siblings is None
    assert "show this process alone" in caplog.text
    assert timer.step() is not None
    assert throttle.settings.rates.workers == 2


def test_a_full_disk_leaves_the_history(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    throttle, timer = two_workers(tmp_path)
    for path in tmp_path.glob(f"{os.getpid()}-*"):
        path.unlink()
        path.mkdir()
    send(throttle, 2)
    throttle.clock.advance(5.0)
    with caplog.at_level(logging.WARNING):
        timer.step()
    assert "other workers do not see the counts of this one" in caplog.text
    assert requests(timer) == {("mid", "admitted", "ok"): 45.0}
