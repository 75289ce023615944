"""``doctor`` on GPUs, engines and their sources."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from autoglm_throttle.cli import doctor_gpu, main
from autoglm_throttle.testing import FakeNvml
from autoglm_throttle.types import GpuSample, ProviderUnavailable
from autoglm_throttle.types.errors import NoSourceError
from tests.cli.doctor_results import Doctor
from tests.gpu.exporter_texts import text
from tests.gpu.metrics_server import BadServer, page, served

GIB = 1024**3


class Source:
    name = "fake"
    min_interval_s = 0.0

    def __init__(self, *rows: GpuSample, error: Exception | None = None, name: str = "fake") -> None:
        self.rows = rows
        self.error = error
        self.name = name
        self.closed = False
        self.end: Event | None = None

    def read(self) -> tuple[GpuSample, ...]:
        if self.end is not None:
            self.end.wait()
        if self.error is not None:
            raise self.error
        return self.rows

    def close(self) -> None:
        self.closed = True

    def reset_after_fork(self) -> None: ...


def row(index: int, **values: Any) -> GpuSample:
    told: dict[str, Any] = {"source": "fake", "name": "H200"} | values
    return GpuSample(device=f"GPU-{index}", index=index, taken_at_s=time.monotonic(), **told)


Finding = dict[str, Any]
Gpus = Callable[..., tuple[int, list[Finding]]]


@pytest.fixture
def gpus(doctor: Doctor, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Gpus:
    monkeypatch.setattr(doctor_gpu, "PAUSE_S", 0.0)

    def run(*sources: object, **environ: str) -> tuple[int, list[Finding]]:
        for name, value in environ.items():
            monkeypatch.setenv("AUTOGLM_THROTTLE_" + name, value)
        if sources:
            monkeypatch.setattr(doctor_gpu, "providers", lambda *_, **__: sources)
        status = main(["doctor", "--format", "json"])
        findings = json.loads(capsys.readouterr().out)["findings"]
        return status, [finding for finding in findings if finding["part"] == "gpu"]

    return run


def short(findings: list[Finding]) -> list[tuple[str, str, str]]:
    return [(finding["item"], finding["level"], finding["message"]) for finding in findings]


@pytest.fixture
def server() -> Iterator[BadServer]:
    with served() as one:
        yield one


def serves(server: BadServer, name: str) -> None:
    server.answer = page(text(name).encode(), "Content-Type: text/plain; version=0.0.4")


WELL: dict[str, Any] = {
    "utilization_pct": 92.4,
    "memory_used_bytes": 30 * GIB,
    "memory_total_bytes": 140 * GIB,
    "power_w": 612.4,
    "power_limit_w": 700.0,
    "temperature_c": 61.0,
}


def test_gpus_that_are_well(gpus: Gpus) -> None:
    source = Source(row(1, utilization_pct=7.0), row(0, **WELL, throttle=frozenset({"sw_thermal"})))
    status, findings = gpus(source)
    (_, level, said), (*_, first), _, (*_, second), _ = short(findings)
    assert (status, level, said) == (0, "ok", "fake reads 2 devices")
    told = "0 H200: 92 % busy, 30.0 of 140.0 GiB, 612 of 700 W, 61 C, slowed down by sw_thermal, "
    assert re.fullmatch(re.escape(told) + r"\d+\.\d ms old", first)
    assert re.fullmatch(r"1 H200: 7 % busy, \d+\.\d ms old", second)
    assert source.closed


def test_known_and_missing_quantities_are_listed(gpus: Gpus) -> None:
    _, (_, _, full, _, bare) = gpus(Source(row(0, **WELL, sm_active_ratio=0.5), row(1, utilization_pct=5.0)))
    assert full["message"].startswith("0 H200 reports utilization, memory, power, power limit, temperature")
    assert full["message"].endswith(
        "; not energy, clock, reasons of slowdown, time slowed down, "
        "tensor activity, memory activity, PCIe, NVLink"
    )
    assert "energy" in full["value"]
    assert (full["level"], bare["level"]) == ("ok", "warn")
    assert "gets the verdict 'unknown'" in bare["hint"]


def test_gpus_that_are_not(gpus: Gpus) -> None:
    lost = row(0, health="lost", notes=("GPU is lost",))
    status, (_, first, second, _) = gpus(Source(lost, row(1)))
    assert (status, first["level"], second["level"]) == (1, "fail", "warn")
    assert first["message"] == "0 H200: lost (GPU is lost)"
    assert "utilization unknown" in second["message"]
    assert short(gpus(Source())[1]) == [("source", "fail", "fake reads 0 devices")]
    error = ProviderUnavailable("NVML 999 is broken")
    status, findings = gpus(Source(error=error))
    assert (status, short(findings)) == (1, [("sample", "fail", "fake: NVML 999 is broken")])


def test_no_gpu_at_all(gpus: Gpus) -> None:
    source = Source(error=NoSourceError("no GPU found (nvml: no driver)"))
    status, findings = gpus(source)
    assert (status, short(findings)) == (0, [("source", "warn", "no GPU found (nvml: no driver)")])
    assert "the limits still apply" in findings[0]["hint"]
    status, findings = gpus(source, GPU="auto", GPU_REQUIRED="true")
    assert (status, findings[0]["level"]) == (1, "fail")
    assert findings[0]["hint"].startswith("GPU_REQUIRED is set, so the service does not start")


def test_nothing_is_expected(gpus: Gpus) -> None:
    assert short(gpus()[1]) == [("source", "ok", "GPU=none: no GPU is read")]


def test_a_driver_that_hangs(gpus: Gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_gpu, "ANSWER_TIMEOUT_S", 0.05)
    source = Source()
    source.end = Event()
    status, (finding, other, _, _) = gpus(source, Source(row(0, **WELL), name="other"))
    source.end.set()
    assert (status, finding["item"], finding["level"]) == (1, "sample", "fail")
    assert finding["message"] == "fake has not answered within 0.05 s"
    assert other["message"] == "other reads 1 device", "the other source is looked at all the same"


@pytest.mark.parametrize("works", [True, False])
def test_driver_version_is_reported(gpus: Gpus, monkeypatch: pytest.MonkeyPatch, works: bool) -> None:
    class NVMLError(Exception): ...

    def version() -> str:
        if not works:
            raise NVMLError("odd")
        return "570.1"

    fake: Any = SimpleNamespace(
        NVMLError=NVMLError, nvmlSystemGetDriverVersion=version, nvmlSystemGetNVMLVersion=lambda: "12.5"
    )
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    _, (finding, *_) = gpus(Source(row(0, utilization_pct=1.0), name="nvml"))
    said = "driver 570.1, NVML 12.5" if works else "driver of unknown version (odd)"
    assert (finding["level"], finding["message"]) == ("ok", f"nvml reads 1 device, {said}")


def test_a_replayed_file(gpus: Gpus, tmp_path: Path) -> None:
    status, (finding,) = gpus(GPU=f"fake:{tmp_path / 'none.csv'}")
    assert (status, finding["item"], finding["level"]) == (1, "sample", "fail")
    assert "none.csv" in finding["message"]
    assert "docs/gpu.md" in finding["hint"]


def test_a_package_that_is_missing(gpus: Gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name, package=None: None)
    status, (finding,) = gpus(GPU="nvml")
    assert (status, finding["level"]) == (1, "fail")
    assert finding["message"].count("GPU=nvml") == 1
    assert "pip install" in finding["message"]


def test_nvml_device_reports_every_quantity(gpus: Gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_gpu, "PAUSE_S", 0.11)  # GPM needs 0.1 s between its samples
    library = FakeNvml()
    library.set(0, gpu=92, gpm=1, gpm_2=4100)
    with library.installed():
        status, (source, card, tells) = gpus(GPU="nvml")
    assert (status, source["value"], library.references) == (0, "nvml", 0)
    assert card["message"].startswith("0 Fake GPU 0: 92 % busy")
    assert (tells["level"], tells["value"]) == ("ok", [])
    assert tells["message"] == "0 Fake GPU 0 reports every quantity checked"


NOT_SUPPORTED, NO_PERMISSION, MISMATCH, UNKNOWN = 3, 4, 18, 999


def test_gpm_that_is_kept_for_root(gpus: Gpus) -> None:
    library = FakeNvml()
    library.fail(0, "gpm", NO_PERMISSION)
    with library.installed():
        status, (_, _, tells) = gpus(GPU="nvml")
    assert (status, tells["level"]) == (0, "warn")
    assert "SM activity" in tells["value"]
    assert "NVreg_RestrictProfilingToAdminUsers=0" in tells["hint"]


def test_device_without_gpm_names_the_alternative(gpus: Gpus) -> None:
    library = FakeNvml()
    library.set(0, gpm=0)
    with library.installed():
        status, (_, _, tells) = gpus(GPU="nvml")
    assert (status, tells["level"]) == (0, "ok")
    assert tells["hint"].startswith("Hopper and later report it through the driver")


def test_device_without_power_and_activity_is_a_warning(gpus: Gpus) -> None:
    library = FakeNvml()
    library.set(0, gpm=0)
    for call in ("power_mw", "limit_mw", "fields"):
        library.fail(0, call, NOT_SUPPORTED)
    with library.installed():
        _, (_, _, tells) = gpus(GPU="nvml")
    assert tells["level"] == "warn"
    assert "'unknown'" in tells["hint"]


def test_a_mig_instance_without_gpm(gpus: Gpus) -> None:
    library = FakeNvml()
    library.set(0, mig=1, mig_count=1, gpm=0)
    with library.installed():
        _, (_, card, _) = gpus(GPU="nvml")
    assert card["level"] == "warn"
    assert "MIG" in card["hint"]
    assert "dcgm:URL" in card["hint"]


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (MISMATCH, "reboot, or reload it and restart the container"),
        (NO_PERMISSION, "give it the driver capability 'utility'"),
        (UNKNOWN, "restart it"),
    ],
)
def test_a_driver_that_does_not_open(gpus: Gpus, code: int, remedy: str) -> None:
    library = FakeNvml()
    library.fail(-1, "init", code)
    with library.installed():
        status, (finding,) = gpus(GPU="auto")
    assert (status, finding["level"]) == (1, "fail")
    assert finding["message"].startswith(f"nvml: NVML {code} ") or finding["message"].startswith("auto: ")
    assert remedy in finding["message"]


def test_unknown_device_is_a_problem(gpus: Gpus) -> None:
    with FakeNvml().installed():
        status, (finding,) = gpus(GPU="nvml", GPU_DEVICES="7")
    assert status == 1
    assert "no such GPU: 7; present are 0 = GPU-" in finding["message"]


def test_exporter_devices_are_reported(gpus: Gpus, server: BadServer) -> None:
    serves(server, "dcgm_plain")
    status, (source, card, tells, _, _, period) = gpus(GPU=f"dcgm:{server.url()}")
    assert (status, source["message"]) == (0, f"dcgm:127.0.0.1:{server.port} reads 2 devices")
    assert card["message"].startswith("node-7/0 NVIDIA H100 80GB HBM3: 97 % busy")
    assert tells["level"] == "warn"
    assert "DCGM_FI_PROF_SM_ACTIVE" in tells["hint"]
    assert (period["level"], "DCGM_EXPORTER_INTERVAL=1000" in period["hint"]) == ("ok", True)


def test_an_engine(gpus: Gpus, server: BadServer) -> None:
    serves(server, "vllm_0")
    status, (source, engine, tells) = gpus(GPU=f"vllm:{server.url()}")
    assert (status, source["message"]) == (0, f"vllm:127.0.0.1:{server.port} reads 1 engine")
    name = f"127.0.0.1:{server.port} meta-llama/Llama-3.1-8B-Instruct"
    assert engine["message"].startswith(f"{name}: 7 running, 1 waiting, cache 12% full, ")
    assert (tells["level"], tells["value"]) == ("ok", [])


def test_engine_without_load_metrics_is_a_warning(gpus: Gpus, server: BadServer) -> None:
    server.answer = page(b"vllm:prompt_tokens_total 5\n")
    _, (_, engine, tells) = gpus(GPU=f"vllm:{server.url()}")
    assert "reports no load" in engine["message"]
    assert (tells["level"], tells["hint"]) == ("warn", "SIGNAL=pressure has no input")


def test_exporter_with_all_counters_is_ok(gpus: Gpus, server: BadServer) -> None:
    serves(server, "dcgm_all")
    _, (_, _, tells, _, _, _) = gpus(GPU=f"dcgm:{server.url()}")
    assert (tells["level"], tells["value"]) == ("ok", [])


@pytest.mark.parametrize(
    ("kind", "remedy"),
    [
        ("vllm", "the port of its API"),
        ("sglang", "--enable-metrics"),
        ("trtllm", "return_perf_metrics"),
        ("tgi", "the port of its API"),
        ("triton", "8002"),
        ("dcgm", "9400"),
        ("prometheus", "the Prometheus server itself"),
    ],
)
def test_a_source_that_is_not_there(gpus: Gpus, server: BadServer, kind: str, remedy: str) -> None:
    server.down()
    status, (finding,) = gpus(GPU=f"{kind}:{server.url()}")
    assert (status, finding["item"], finding["level"]) == (1, "sample", "fail")
    assert finding["message"].startswith(f"{kind}:127.0.0.1:{server.port} ")
    assert finding["message"].count(f"127.0.0.1:{server.port}") == 1
    assert remedy in finding["hint"]


def test_another_server_at_the_url(gpus: Gpus, server: BadServer) -> None:
    serves(server, "dcgm_plain")
    status, (finding,) = gpus(GPU=f"sglang:{server.url()}")
    assert status == 1
    assert "has no metric of sglang; it has DCGM_FI" in finding["message"]
    assert "another server answers there" in finding["hint"]


def test_a_web_page_at_the_url(gpus: Gpus, server: BadServer) -> None:
    server.answer = page(b"<html>Log in</html>", "Content-Type: text/html")
    _, (finding,) = gpus(GPU=f"vllm:{server.url()}")
    assert "answers with a web page" in finding["message"]
    assert finding["hint"].startswith("another server answers there")


def test_prometheus_without_gpu_series_is_a_problem(gpus: Gpus, server: BadServer) -> None:
    body = {"status": "success", "data": {"resultType": "vector", "result": []}}
    server.answer = page(json.dumps(body).encode(), "Content-Type: application/json")
    status, (finding,) = gpus(GPU=f"prometheus:{server.url()}", GPU_SELECTOR='cluster="a"')
    assert status == 1
    assert "knows no series of dcgm-exporter" in finding["message"]
    assert "GPU_SELECTOR" in finding["hint"]


def test_a_password_is_not_shown(gpus: Gpus, server: BadServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.down()
    _, findings = gpus(GPU=f"vllm:{server.url(login='me:hunter2@')}")
    assert "hunter2" not in str(findings)


def test_exporter_name_contains_no_control_characters(gpus: Gpus) -> None:
    _, findings = gpus(Source(row(0, name="\x1b[2Jall is well", **WELL)))
    assert all(finding["message"].isprintable() for finding in findings)


# FIELD 29
@pytest.mark.parametrize(
    ("rows", "level", "basis"),
    [
        ([row(0, memory_used_bytes=GIB)], "ok", "device"),
        ([row(0, memory_used_bytes=GIB), row(1, kind="engine", kv_used_ratio=0.5)], "ok", "cache"),
        ([row(0)], "warn", "unknown"),
    ],
)
def test_basis_of_quotas_is_that_of_the_rows(
    gpus: Gpus, monkeypatch: pytest.MonkeyPatch, rows: list[GpuSample], level: str, basis: str
) -> None:
    monkeypatch.setenv("AUTOGLM_THROTTLE_QUOTAS", "true")
    (found,) = [finding for finding in gpus(Source(*rows))[1] if finding["item"] == "quotas"]
    assert (found["level"], found["value"]) == (level, basis)
