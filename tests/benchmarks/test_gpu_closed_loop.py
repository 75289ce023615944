"""The benchmark on a real GPU, without one: its parts, and one short run with a stand-in."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from autoglm_throttle.gpu.host import HostLoad
from autoglm_throttle.testing import ManualClock
from autoglm_throttle.types import ProviderUnavailable, ServiceStats
from benchmarks import gpu_closed_loop, harness
from benchmarks.gpu import fit, served, simulated_device, table
from benchmarks.gpu.batcher import Batcher
from benchmarks.gpu.engine import Engine
from benchmarks.gpu.observer import SHOWN, Observer, summary
from benchmarks.gpu.torch_work import TorchWork
from benchmarks.gpu.work import KERNELS, MAX_BATCH, Job, Sleeper
from tests.traffic.asgi_driver import ask

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("load")]

ENOUGH_S = 60.0


def observer(path: Path, clock: ManualClock, record: dict[str, Callable[[], ServiceStats]]) -> Observer:
    return Observer((f"fake:{path}",), 1.0, record, clock)


def conditions_of(path: Path, kernel: str, *, steps: int = 14) -> dict[str, str]:
    """Return the verdicts of a device that runs one kernel, with and without responses."""
    path.write_text(json.dumps(simulated_device.state(kernel, 1.0)) + "\n")
    clock = ManualClock()
    inside, done = int(kernel != "idle"), 0
    works: dict[str, Callable[[], ServiceStats]] = {
        "moving": lambda: ServiceStats(in_flight=inside, completed_total=done),
        "silent": lambda: ServiceStats(in_flight=inside),
    }
    observer_of_row = observer(path, clock, works)
    for _ in range(steps):
        observer_of_row.step()
        clock.advance(1.0)
        done += 10
    return {name: found["finding"] for name, found in observer_of_row.series[-1]["verdicts"].items()}


@pytest.mark.parametrize(
    ("kernel", "moving", "silent"),
    [
        ("idle", "idle", "idle"),
        ("spin", "underfed", "stalled"),
        ("small", "underfed", "stalled"),
        ("decode", "productive", "unknown"),
        ("gemm", "productive", "unknown"),
    ],
)
def test_simulated_gpu_gets_the_verdicts_of_a_real_one(
    tmp_path: Path, kernel: str, moving: str, silent: str
) -> None:
    assert conditions_of(tmp_path / "card.jsonl", kernel) == {"moving": moving, "silent": silent}


def test_unreadable_device_is_recorded_and_sampling_continues(tmp_path: Path) -> None:
    clock = ManualClock()
    observer_of_row = observer(tmp_path / "none.jsonl", clock, {"witness": ServiceStats})
    observer_of_row.step()
    assert observer_of_row.series == []
    assert sum(observer_of_row.as_document()["failures"].values()) == 1
    (tmp_path / "none.jsonl").write_text('{"utilization_pct": 50}\n')
    observer_of_row.step()
    assert observer_of_row.series[0]["utilization_pct"] == 50.0
    assert observer_of_row.series[0]["power_share"] is None


def entry(at_s: float, utilization: float | None, finding: str) -> dict[str, Any]:
    numbers = dict.fromkeys(SHOWN) | {"utilization_pct": utilization}
    found = {"witness": {"finding": finding, "confidence": 1.0, "evidence": {}}}
    return {"at_s": at_s, **numbers, "throttle": None, "notes": [], "verdicts": found}


def test_a_summary_has_the_readings_of_the_window_alone() -> None:
    series = [
        entry(0.9, 1.0, "idle"),
        entry(1.0, 20.0, "working"),
        entry(2.0, None, "unknown"),
        entry(3.0, 90.0, "productive"),
        entry(4.0, 30.0, "working"),
        entry(4.1, 99.0, "idle"),
    ]
    record = summary(series, 1.0, 4.0)
    assert record["samples"] == 4
    assert record["utilization_pct"] == [20.0, 30.0, 90.0]
    assert record["power_w"] is None
    assert record["verdicts"] == {"witness": {"working": 0.5, "unknown": 0.25, "productive": 0.25}}
    assert record["last"]["witness"]["finding"] == "working"
    assert summary(series, 5.0, 6.0)["verdicts"] == {}


def kernels(**changed: float) -> list[dict[str, Any]]:
    """Build records of each kernel from the simulated device."""
    with_telemetry = []
    for name in KERNELS:
        row = simulated_device.state(name, 1.0)
        record = {
            signal: [value, value, value]
            for signal in ("utilization_pct", "sm_active_ratio", "tensor_active_ratio", "dram_active_ratio")
            if (value := row[signal]) is not None
        }
        share = changed.get(name, row["power_w"] / row["power_limit_w"])
        with_telemetry.append({"kernel": name, "power_share": [share - 0.01, share, share + 0.01], **record})
    return with_telemetry


def test_figures_between_the_bounds_fit() -> None:
    assert {one["rule"]: one["fits"] for one in fit.fit(kernels())} == dict.fromkeys(fit.BOUNDS, True)


def test_figure_outside_its_bound_or_unknown_is_named() -> None:
    found = {one["rule"]: one for one in fit.fit(kernels(spin=0.295))}
    assert found["power_stalled"]["fits"] is False
    assert found["power_stalled"]["highest_under"] == pytest.approx(0.305)
    assert found["power_underfed"]["fits"] is True
    assert {one["rule"]: one["fits"] for one in fit.fit(kernels(decode=0.405))}["power_underfed"] is False
    part: list[dict[str, Any]] = [record for record in kernels() if record["kernel"] != "gemm"]
    found = {one["rule"]: one for one in fit.fit([*part, {"kernel": "gemm", "error": "memory"}])}
    assert found["tensor_working"]["fits"] is None
    assert found["power_underfed"]["fits"] is None
    assert found["dram_working"]["fits"] is True
    assert "not known" in "\n".join(table.fitted(list(found.values())))


class Slow:
    """A work that computes when it is record to, and remembers its batches."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.go = threading.Event()

    def batch(self, count: int) -> None:
        self.batches.append(count)
        assert self.go.wait(ENOUGH_S)

    def kernel(self, name: str) -> Callable[[], None]:
        raise NotImplementedError

    def close(self) -> None:
        self.go.set()


async def test_waiting_requests_form_batches_of_limited_size() -> None:
    work = Slow()
    batcher = Batcher(work, 2.0, lambda: HostLoad(0.5))
    requests = [asyncio.create_task(ask(batcher, "POST", "/v1/predict", b"{}")) for _ in range(1 + 20)]
    while len(batcher.queue) + sum(work.batches) < 21 or not work.batches:  # noqa: ASYNC110 - until all stand
        await asyncio.sleep(0)
    record = batcher.stats()
    assert (record.in_flight, record.waiting, record.completed_total) == (21, 21 - work.batches[0], 0)
    assert record.p95_s is None
    work.go.set()
    assert {answer.status for answer in await asyncio.gather(*requests)} == {200}
    assert sum(work.batches) == 21
    assert max(work.batches) == MAX_BATCH
    record = batcher.stats()
    assert (record.in_flight, record.waiting, record.completed_total, record.host_load) == (0, 0, 21, 0.5)
    assert record.p95_s is not None
    assert record.p95_s > 0.0


async def test_failing_batch_returns_errors_and_the_next_one_runs() -> None:
    class Failing(Slow):
        def batch(self, count: int) -> None:
            if not self.go.is_set():
                self.go.set()
                raise RuntimeError("out of memory")

    batcher = Batcher(Failing(), 2.0, HostLoad)
    with pytest.raises(RuntimeError, match="out of memory"):
        await ask(batcher, "POST", "/v1/predict", b"{}")
    assert batcher.stats().in_flight == 0
    assert (await ask(batcher, "POST", "/v1/predict", b"{}")).status == 200


@pytest.mark.server
def test_engine_computes_in_another_process_and_raises_after_its_end() -> None:
    engine = Engine(Job("cpu", capacity_rps=200.0))
    begun_s = time.perf_counter()
    engine.batch(9)
    assert time.perf_counter() - begun_s >= 0.04
    engine.process.kill()
    engine.process.wait()
    with pytest.raises(RuntimeError, match="gone"):
        engine.batch(1)
    engine.close()


def test_stub_gpu_reports_its_duty_cycle(tmp_path: Path) -> None:
    path = tmp_path / "card.jsonl"
    made = simulated_device.SimulatedDevice(path)

    def until(reached: Callable[[float], bool]) -> None:
        give_up_s = time.monotonic() + ENOUGH_S
        while not reached(json.loads(path.read_text())["utilization_pct"]):
            assert time.monotonic() < give_up_s
            threading.Event().wait(0.005)

    with made.busy("batch"):
        until(lambda utilization: utilization > 99.0)
    until(lambda utilization: utilization == 0.0)
    give_up_s, pieces = time.monotonic() + ENOUGH_S, 0.0
    while pieces < 50.0 and time.monotonic() < give_up_s:
        with made.busy("batch"):
            threading.Event().wait(0.002)
        pieces = json.loads(path.read_text())["utilization_pct"]
    made.close()
    assert pieces >= 50.0
    assert json.loads(path.read_text())["name"] == simulated_device.NAME


@pytest.fixture
def requested(tmp_path: Path) -> Iterator[Callable[[str], served.Deployment]]:
    path = tmp_path / "card.jsonl"
    path.write_text(json.dumps(simulated_device.state("batch", 1.0)) + "\n")
    made: list[served.Deployment] = []

    def build(row: str) -> served.Deployment:
        given = served.ServiceOptions(row, Job("cpu"), slo_s=1.0, interval_s=0.2, capacity_rps=20.0)
        batcher = Batcher(Sleeper(5_000.0), 1.0, HostLoad)
        made.append(served.ROWS[row][1](batcher, (f"fake:{path}",), given))
        return made[-1]

    yield build
    for deployment in made:
        if deployment.throttle is not None:
            deployment.throttle.stop()


@pytest.mark.parametrize("row", served.ROWS)
async def test_every_row_serves_and_reports_observations(
    row: str, requested: Callable[[str], served.Deployment], tmp_path: Path
) -> None:
    deployment = requested(row)
    observer_of_row = observer(tmp_path / "card.jsonl", ManualClock(), {"witness": ServiceStats})
    observer_of_row.step()
    app = served.with_observations(deployment, observer_of_row)
    assert (await ask(app, "POST", "/v1/predict", b"{}")).status == 200
    record = (await ask(app, "GET", served.OBSERVATIONS_PATH)).json
    assert len(record["series"]) == 1
    assert (record["own"] is None) == (row in {"none", "full", "limits"})


async def test_the_peer_has_the_capacity_that_was_measured(
    requested: Callable[[str], served.Deployment],
) -> None:
    app = requested("limits").app
    answers = await asyncio.gather(*(ask(app, "POST", "/v1/predict", b"{}") for _ in range(70)))
    assert 20 <= sum(answer.status == 200 for answer in answers) <= 40


@pytest.mark.parametrize(
    "argv",
    [
        ["--write", "--quick"],
        ["--write", "--work", "cpu"],
        ["--write", "--work", "torch-cpu"],
        ["--work", "cpu", "--out", str(harness.RESULTS / "other.json")],
    ],
)
def test_implausible_gpu_measurement_is_not_kept(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        gpu_closed_loop.options_of(argv)
    assert "usage" in capsys.readouterr().err


def test_record_of_a_stand_in_has_no_gpu_figures(tmp_path: Path) -> None:
    record = {"rows": [1], "kernels": [2], "gpu": {"name": "x"}}
    path = tmp_path / "kept.json"
    gpu_closed_loop.record_writer(Job("cpu"), [path])(record)
    assert json.loads(path.read_text()) == {"stand_in": table.NO_GPU, "exercised": record}
    gpu_closed_loop.record_writer(Job("gpu"), [path])(record)
    assert json.loads(path.read_text()) == record
    assert list(tmp_path.iterdir()) == [path]


def test_skipped_row_is_named_and_a_failing_row_ends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    ran = []

    def run(_: object, row: str, load: float, seed: int) -> dict[str, Any]:
        nonlocal now
        now += 30.0
        ran.append((row, load))
        raise RuntimeError("out of memory")

    scale = gpu_closed_loop.Scale()
    monkeypatch.setattr(gpu_closed_loop.Bench, "run", run)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    kept: list[int] = []
    record: dict[str, Any] = {"rows": [], "left_out": []}
    bench = gpu_closed_loop.Bench(Job("cpu"), scale)
    gpu_closed_loop.run_rows(bench, record, 115.0, lambda record: kept.append(len(record["rows"])))
    assert ran == scale.cases()[:3]
    assert record["left_out"] == [list(case) for case in scale.cases()[3:]]
    assert [row["error"] for row in record["rows"]] == ["RuntimeError: out of memory"] * 3
    assert kept == [1, 2, 3]
    assert "left out: none at 2x" in "\n".join(table.whole(record))
    assert "out of memory" in table.row(record["rows"][0])


def test_run_without_gpu_ends_with_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_: Job) -> dict[str, Any]:
        raise ProviderUnavailable("no card")

    monkeypatch.setattr(gpu_closed_loop, "device_info", none)
    for name in ("CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.setenv(name, "0")  # what the program sets ends with this test
    monkeypatch.setattr(harness, "machine", lambda *_: {})
    with pytest.raises(SystemExit, match="no card; --work cpu"):
        gpu_closed_loop.main([])


def test_a_torch_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ModuleNotFoundError, match="torch"):
        TorchWork("cpu", 1)


TINY = gpu_closed_loop.Scale(
    target_rps=200.0,
    slo_s=0.5,
    warm_s=0.3,
    window_s=0.8,
    kernel_s=0.8,
    interval_s=0.2,
    inside=(2 * MAX_BATCH,),
    step_s=0.8,
    loads=(5.0,),
    rows=("none", "adaptive"),
    extras=(),
)


@pytest.mark.server
def test_a_short_run_of_the_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "kept.json"
    job = Job("cpu", capacity_rps=TINY.target_rps)
    record = gpu_closed_loop.measure(job, TINY, 1.0, gpu_closed_loop.record_writer(job, [path]))
    assert json.loads(path.read_text())["exercised"] == json.loads(json.dumps(record))
    assert record["complete"]
    assert [record["kernel"] for record in record["kernels"]] == list(KERNELS)
    assert all(record["samples"] for record in record["kernels"])
    assert 0.0 < record["capacity"]["rps"] <= 1.2 * 200.0 * 16 / 17
    rows = {row["row"]: row for row in record["rows"]}
    assert all(row["goodput"] >= 0.0 for row in rows.values())
    assert rows["none"]["refused"] == 0.0 <= rows["adaptive"]["refused"] < 1.0
    assert rows["adaptive"]["own"]["telemetry"] in {"fresh", "late"}
    assert rows["none"]["card"]["utilization_pct"][1] > 0.0
    shown = capsys.readouterr().out
    assert all(name in shown for name in (*KERNELS, "no middleware", "autoglm_throttle, adaptive"))
