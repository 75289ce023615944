"""``gpus`` prints devices and engines, once and continuously."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from autoglm_throttle.cli import gpus as gpus_command
from autoglm_throttle.cli import main
from autoglm_throttle.cli.gpu_table import GpuReading, GpuSource, as_document, as_text
from autoglm_throttle.cli.gpus import GpuReader
from autoglm_throttle.gpu.sanity import MEASURED
from autoglm_throttle.gpu.select import providers
from autoglm_throttle.gpu.verdict.tracker import SPAN_S, VerdictTracker
from autoglm_throttle.settings import Settings
from autoglm_throttle.testing import FakeNvml
from autoglm_throttle.types import GpuCondition, GpuSample, GpuVerdict, GpuView, ProviderUnavailable
from tests.gpu.exporter_texts import text
from tests.gpu.metrics_server import BadServer, page, served

GOLDEN = Path(__file__).parent / "golden"
GIB = 1024**3
LOOK_S = gpus_command.MIN_SPAN_S

Show = Callable[..., tuple[int, str]]


@pytest.fixture
def show(
    clean_env: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    monkeypatch.setattr(gpus_command, "MIN_SPAN_S", 0.15)
    monkeypatch.setattr(gpus_command, "INTERVAL_S", 0.2)

    def run(*argv: str, **environ: str) -> tuple[int, str]:
        for name, value in environ.items():
            monkeypatch.setenv("AUTOGLM_THROTTLE_" + name, value)
        status = main(["gpus", *argv])
        out, err = capsys.readouterr()
        assert err == ""
        return status, out

    return run


@pytest.fixture
def server() -> Iterator[BadServer]:
    with served() as one:
        yield one


def serves(server: BadServer, name: str) -> None:
    server.answer = page(text(name).encode(), "Content-Type: text/plain; version=0.0.4")


def row(device: str, index: int = 0, **fields: Any) -> GpuSample:
    told: dict[str, Any] = {"taken_at_s": 100.0, "source": "nvml"} | fields
    return GpuSample(device=device, index=index, **told)


CARDS = (
    row(
        "GPU-a",
        name="NVIDIA H200",
        utilization_pct=97.0,
        sm_active_ratio=0.034,
        memory_used_bytes=30 * GIB,
        memory_total_bytes=140 * GIB,
        power_w=71.6,
        power_limit_w=700.0,
        sm_clock_mhz=1980.0,
        temperature_c=41.0,
    ),
    row("GPU-b", 1, name="NVIDIA H200", utilization_pct=3.0, power_w=70.0, source="nvml"),
    row("GPU-c", 2, health="lost", notes=("GPU is lost",)),
    row(
        "MIG-d",
        400,
        kind="mig",
        name="NVIDIA A100-SXM4-80GB MIG 3g.40gb",
        graphics_active_ratio=0.81,
        memory_total_bytes=40 * GIB,
    ),
    row(
        "GPU-e",
        0,
        host="node-7",
        name="NVIDIA H100 80GB HBM3",
        utilization_pct=99.0,
        power_limit_w=700.0,
        source="dcgm:node-7:9400",
        age_s=28.4,
    ),
)
ENGINES = (
    row(
        "10.0.0.7:8000",
        host="10.0.0.7:8000",
        kind="engine",
        name="meta-llama/Llama-3.1-8B-Instruct",
        running=59,
        queued=4,
        kv_used_ratio=0.876,
        tokens_per_s=2180.4,
        source="vllm:10.0.0.7:8000",
    ),
    row("10.0.0.8:8000", kind="engine", running=0, source="sglang:10.0.0.8:8000"),
)
VERDICTS = {
    ("", "GPU-a"): GpuVerdict(
        GpuCondition.STALLED, 60.0, 0.8, {"utilization_pct": 97.0, "power_share": 0.1023}
    ),
    ("", "GPU-b"): GpuVerdict(GpuCondition.IDLE, 90.0, 0.5, {"utilization_pct": 3.0}),
    ("", "GPU-c"): GpuVerdict(GpuCondition.LOST, 90.0, 1.0),
    ("node-7", "GPU-e"): GpuVerdict(GpuCondition.UNKNOWN, 90.0, 0.0),
}
SOURCES: tuple[GpuSource, ...] = (
    ("nvml", "reading", ""),
    ("dcgm:node-7:9400", "reading", ""),
    ("vllm:10.0.0.7:8000", "hanging", "it has not answered for 4 s"),
    ("sglang:10.0.0.8:8000", "failing", "sglang:10.0.0.8:8000 cannot be reached: Connection refused"),
)


def seen(*devices: GpuSample, sources: tuple[GpuSource, ...] = SOURCES) -> GpuReading:
    view = GpuView(100.0, None, None, None, None, 0.75, devices, verdicts=VERDICTS)
    return GpuReading(101.5, view, sources)


def as_json(seen: GpuReading) -> str:
    return json.dumps(as_document(seen), indent=2)


CASES: dict[str, GpuReading] = {
    "gpus_many": seen(*CARDS, *ENGINES),
    "gpus_engine": seen(ENGINES[0], sources=SOURCES[:1]),
    "gpus_nothing": GpuReading(101.5, None, (("auto", "no_source", "no GPU found (nvml: no driver)"),)),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("form", "ending"), [(as_text, "txt"), (as_json, "json")])
def test_output_is_as_agreed(name: str, form: Callable[[GpuReading], str], ending: str) -> None:
    """To agree to a change: UPDATE_GOLDEN=1 pytest tests/cli, then read the diff."""
    out = form(CASES[name]) + "\n"
    golden = GOLDEN / f"{name}.{ending}"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(out, "utf-8")
    assert out == golden.read_text("utf-8")


def test_the_table_fits_into_120_columns() -> None:
    table, *_ = as_text(CASES["gpus_many"]).split("\n\n")
    assert max(map(len, table.splitlines())) <= 120


def test_every_quantity_is_in_the_document() -> None:
    document = as_document(CASES["gpus_many"])
    for one in (*document["gpus"], *document["engines"]):
        assert set(MEASURED) <= one.keys()
    assert document["gpus"][2]["utilization_pct"] is None, "a lost card is not idle"


def test_missing_devices_are_named_by_kind() -> None:
    failing: list[GpuSource] = [(name, "failing", "away") for name in ("vllm:h:1", "dcgm:h:2")]
    assert as_text(GpuReading(1.0, None, tuple(failing[:1]))).startswith("no engine was found\n")
    assert as_text(GpuReading(1.0, None, tuple(failing))).startswith("no GPU and no engine was found\n")


def test_the_last_numbers_of_a_dead_source_are_marked() -> None:
    sources: tuple[GpuSource, ...] = (("nvml", "failing", "away"), *SOURCES[1:2])
    cards = seen(CARDS[0], CARDS[4], sources=sources)
    dead, alive = as_text(cards).splitlines()[1:3]
    assert re.search(r" 1\.5 stale  nvml$", dead)
    assert re.search(r" 29\.9  dcgm:node-7:9400$", alive)
    assert [card["stale"] for card in as_document(cards)["gpus"]] == [True, False]


def test_lost_device_and_missing_verdict_are_named() -> None:
    assert as_text(seen(row("GPU-c", 2, health="lost"))).splitlines()[3] == "2: lost"
    unjudged = as_text(seen(CARDS[4]))
    assert "node-7/0: no verdict yet" in unjudged
    assert "% sure" not in unjudged


def test_foreign_names_contain_no_control_characters() -> None:
    evil = "\x1b[2J\nall is well"
    lost = row(evil, health="lost", notes=(evil,), host=evil, source=evil)
    engine = row(evil, kind="engine", host=evil, name=evil)
    out = as_text(seen(lost, engine, sources=(("x", "failing", evil),)))
    assert all(line.isprintable() for line in out.splitlines())
    assert "\nall is well" not in out


def test_nvml_devices_are_printed(show: Show) -> None:
    library = FakeNvml(devices=2)
    library.set(0, gpu=92, power_mw=612_500, limit_mw=700_000, gpm_2=4_100)
    library.fail(1, "any", 15)
    with library.installed():
        status, out = show("--format", "json", GPU="nvml", SAMPLE_INTERVAL_S="0.2")
    assert library.references == 0, "the driver is closed again"
    document = json.loads(out)
    first, second = document["gpus"]
    assert (status, first["utilization_pct"], second["health"]) == (1, 92, "lost")
    assert first["sm_active_ratio"] == pytest.approx(0.41), "GPM needs two readings"
    assert first["power_mean_w"] is not None, "and so do rates"
    assert (second["verdict"]["condition"], second["verdict"]["confidence"]) == ("lost", 1.0)
    assert document["sources"] == [{"name": "nvml", "state": "reading", "error": ""}]


def test_verdict_is_available_after_one_reading(show: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    assert SPAN_S < LOOK_S
    monkeypatch.setattr(gpus_command, "VerdictTracker", partial(VerdictTracker, span_s=0.4))
    monkeypatch.setattr(gpus_command, "MIN_SPAN_S", 0.4 * LOOK_S / SPAN_S)
    library = FakeNvml()
    library.set(0, gpu=99, reasons=0x40, smclk=900, smclk_max=1980)
    with library.installed():
        _, out = show(GPU="nvml")
    assert re.search(r"^0: throttled, \d+% sure: utilization_pct 99, fault_bits 1", out, re.MULTILINE)


def test_an_exporter_and_an_engine(show: Show, server: BadServer) -> None:
    serves(server, "dcgm_all")
    with served() as other:
        serves(other, "vllm_1")
        status, out = show("--format", "json", GPU=f"dcgm:{server.url()},vllm:{other.url()}")
    document = json.loads(out)
    assert (status, len(document["gpus"]), len(document["engines"])) == (0, 2, 1)
    assert [one["label"] for one in document["gpus"]] == ["node-7/0", "node-7/1"]
    assert document["engines"][0]["label"] == f"127.0.0.1:{other.port}"


def test_missing_gpu_lists_the_sources_tried(show: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    status, out = show(GPU="auto")
    assert status == 0
    assert re.search(
        r"\Ano GPU was found\n\nauto: no GPU found \(nvml: the Python package .* pip install .*\)\n\Z", out
    )
    assert show(GPU="auto", GPU_REQUIRED="true")[0] == 1


def test_nothing_is_expected(show: Show) -> None:
    assert show(GPU="none") == (0, "GPU=none: no GPU is read\n")
    status, out = show("--format", "json", GPU="none")
    assert (status, json.loads(out)) == (0, {"gpus": [], "engines": [], "sources": []})


def test_a_source_that_cannot_be_reached(show: Show, server: BadServer) -> None:
    server.down()
    status, out = show(GPU=f"vllm:{server.url(login='me:hunter2@')}")
    assert status == 1
    said = f"vllm:127.0.0.1:{server.port} cannot be reached: Connection refused"
    assert out == f"no engine was found\n\n{said}\n"


def test_unknown_device_is_misconfigured(show: Show) -> None:
    with FakeNvml().installed():
        status, out = show("--format", "json", GPU="nvml", GPU_DEVICES="7")
    (source,) = json.loads(out)["sources"]
    assert (status, source["state"]) == (1, "misconfigured")
    assert "present are 0 = GPU-" in source["error"]


def test_a_package_that_is_missing(show: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name, package=None: None)
    status, out = show(GPU="nvml")
    assert status == 1
    assert "problem: AUTOGLM_THROTTLE_GPU: GPU=nvml needs the Python package nvidia-ml-py: pip install" in out


class Hung:
    """A driver whose call blocks until it is released."""

    name = "hung"
    min_interval_s = 0.0

    def __init__(self) -> None:
        self.over = threading.Event()

    def read(self) -> tuple[GpuSample, ...]:
        self.over.wait(60)
        return ()

    def close(self) -> None: ...

    def reset_after_fork(self) -> None: ...


class Crashes(Hung):
    """A binding that ends its thread."""

    name = "odd"

    def read(self) -> tuple[GpuSample, ...]:
        raise SystemExit(3)


def test_a_binding_that_ends_its_thread_is_shown(show: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autoglm_throttle.cli.gpus.providers", lambda *_, **__: (Crashes(),))
    status, out = show("--format", "json")
    assert (status, json.loads(out)["sources"]) == (
        1,
        [{"name": "odd", "state": "crashed", "error": "SystemExit: 3"}],
    )


class Recovers:
    """A source that works from its second reading on."""

    name = "late"
    min_interval_s = 0.0

    def __init__(self) -> None:
        self.reads = 0
        self.well = threading.Event()

    def read(self) -> tuple[GpuSample, ...]:
        self.reads += 1
        if self.reads == 1:
            raise ProviderUnavailable("not yet")
        if self.reads == 3:
            self.well.set()
        return (row("GPU-a", taken_at_s=time.monotonic()),)

    def close(self) -> None: ...

    def reset_after_fork(self) -> None: ...


def test_a_source_that_recovers_is_read_again(clean_env: None, monkeypatch: pytest.MonkeyPatch) -> None:
    late = Recovers()
    monkeypatch.setattr("autoglm_throttle.cli.gpus.providers", lambda *_, **__: (late,))
    with GpuReader(Settings(sample_interval_s=0.2)) as watch:
        watch.wait_until_ready()
        assert watch.snapshot().sources == (("late", "failing", "not yet"),)
        assert late.well.wait(60)
        seen = watch.snapshot()
    assert seen.sources == (("late", "reading", ""),)
    assert seen.view is not None


def test_source_without_devices_is_named(show: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = Hung()
    empty.over.set()
    monkeypatch.setattr("autoglm_throttle.cli.gpus.providers", lambda *_, **__: (empty,))
    assert show() == (0, "no GPU was found\n\nhung: it reports no device\n")


@pytest.mark.slow
def test_a_driver_that_hangs_hides_no_engine(
    show: Show, server: BadServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    serves(server, "vllm_0")
    hung = Hung()
    monkeypatch.setattr(
        "autoglm_throttle.cli.gpus.providers", lambda *args, **how: (hung, *providers(*args, **how))
    )
    monkeypatch.setattr(gpus_command, "FIRST_READ_TIMEOUT_S", 0.3)
    monkeypatch.setattr(gpus_command, "HANG_AFTER_S", 0.2)
    try:
        status, out = show("--format", "json", GPU=f"vllm:{server.url()}")
    finally:
        hung.over.set()
    document = json.loads(out)
    assert (status, len(document["engines"])) == (1, 1)
    hung_one, engine = document["sources"]
    assert (hung_one["name"], hung_one["state"], engine["state"]) == ("hung", "hanging", "reading")


class Interrupts:
    """An event whose second waiting is Ctrl-C."""

    def __init__(self) -> None:
        self.waited: list[float] = []

    def wait(self, seconds: float) -> None:
        self.waited.append(seconds)
        if len(self.waited) == 2:
            raise KeyboardInterrupt


@pytest.mark.parametrize("form", ["text", "json"])
def test_watching_shows_it_again_until_interrupted(
    show: Show, server: BadServer, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    serves(server, "vllm_0")
    pause = Interrupts()
    monkeypatch.setattr("autoglm_throttle.cli.gpus.Event", lambda: pause)
    status, out = show("--watch", "7", "--format", form, GPU=f"vllm:{server.url()}")
    assert (status, pause.waited) == (0, [7.0, 7.0])
    if form == "json":
        first, second = map(json.loads, out.splitlines())
        assert first["time"] <= second["time"]
        assert second["engines"][0]["running"] == 7
    else:
        assert len(re.findall(r"^\d\d:\d\d:\d\d$", out, re.MULTILINE)) == 2
        assert "\x1b" not in out, "only a terminal is cleared"


@pytest.mark.parametrize("seconds", ["0.1", "-1", "nan", "inf", "soon"])
def test_invalid_watch_intervals_are_rejected(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["gpus", f"--watch={seconds}"])
    assert caught.value.code == 2
    assert f"'{seconds}' is not a duration of 0.2 s or more" in capsys.readouterr().err


@pytest.mark.slow
def test_closed_pipe_ends_a_command_silently() -> None:
    """As ``| head -0`` does; standard output is flushed as late as at the exit."""
    read, write = os.pipe()
    os.close(read)
    environ = {name: value for name, value in os.environ.items() if "AUTOGLM" not in name}
    command = [sys.executable, "-m", "autoglm_throttle", "check"]
    with os.fdopen(write, "wb") as out:
        done = subprocess.run(command, env=environ, stdout=out, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.slow
def test_closed_pipe_ends_watching_silently() -> None:
    """As ``| head -1`` does."""
    environ = {name: value for name, value in os.environ.items() if "AUTOGLM" not in name}
    process = subprocess.Popen(
        [sys.executable, "-m", "autoglm_throttle", "gpus", "--watch", "0.2", "--format", "json"],
        env=environ | {"AUTOGLM_THROTTLE_GPU": "none"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    with process:
        assert json.loads(process.stdout.readline())["gpus"] == []
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(60) == 0
