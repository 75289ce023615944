"""``doctor`` on GPUs and their driver."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from autoglm_throttle.cli import doctor_gpu, main
from autoglm_throttle.gpu.none import NoSource
from autoglm_throttle.model import GpuSample, ProviderUnavailable
from tests.cli.findings import Doctor


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

    def forget(self) -> None: ...


def row(index: int, **values: Any) -> GpuSample:
    return GpuSample(
        device=f"GPU-{index}", index=index, taken_at_s=time.monotonic(), source="fake", name="H200", **values
    )


@pytest.fixture
def gpus(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, list[tuple[str, str, str]]]]:
    def run(source: object = None, **environ: str) -> tuple[int, list[tuple[str, str, str]]]:
        for name, value in environ.items():
            monkeypatch.setenv("AUTOGLM_THROTTLE_" + name, value)
        if source is not None:
            monkeypatch.setattr(doctor_gpu, "select", lambda *args, **more: source)
        status = main(["doctor", "--format", "json"])
        findings = json.loads(capsys.readouterr().out)["findings"]
        return status, [(f["item"], f["level"], f["message"]) for f in findings if f["part"] == "gpu"]

    return run


Gpus = Callable[..., tuple[int, list[tuple[str, str, str]]]]


def test_gpus_that_are_well(gpus: Gpus) -> None:
    gib = 1024**3
    source = Source(
        row(1, utilization_pct=7.0),
        row(0, utilization_pct=92.4, memory_used_bytes=30 * gib, memory_total_bytes=140 * gib),
    )
    status, ((_, level, text), (*_, first), (*_, second)) = gpus(source)
    assert (status, level, text) == (0, "ok", "fake reads 2 devices")
    assert re.fullmatch(r"0 H200: 92 % busy, 30\.0 of 140\.0 GiB, \d+\.\d ms old", first)
    assert re.fullmatch(r"1 H200: 7 % busy, \d+\.\d ms old", second)
    assert source.closed


def test_gpus_that_are_not(gpus: Gpus) -> None:
    assert gpus(Source(row(0, health="lost"), row(1)))[0] == 1
    _, (_, (_, lost, _), (_, dumb, text)) = gpus(Source(row(0, health="lost"), row(1)))
    assert (lost, dumb) == ("fail", "warn")
    assert "utilization unknown" in text
    assert gpus(Source())[1] == [("source", "fail", "fake reads 0 devices")]
    error = ProviderUnavailable("NVML 999 is broken")
    assert gpus(Source(error=error)) == (1, [("sample", "fail", "GPU=none: NVML 999 is broken")])


def test_no_gpu_at_all(gpus: Gpus) -> None:
    source = Source(error=NoSource("no GPU found (nvml: no driver)"))
    assert gpus(source) == (0, [("source", "warn", "no GPU found (nvml: no driver)")])
    assert gpus(source, GPU="auto", GPU_REQUIRED="true")[0] == 1


def test_a_driver_that_hangs(gpus: Gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_gpu, "ANSWER_S", 0.05)
    source = Source()
    source.end = Event()
    status, ((item, level, text),) = gpus(source)
    source.end.set()
    assert (status, item, level) == (1, "sample", "fail")
    assert "has not answered within 0.05 s" in text


@pytest.mark.parametrize("works", [True, False])
def test_the_driver_says_its_version(gpus: Gpus, monkeypatch: pytest.MonkeyPatch, works: bool) -> None:
    class NVMLError(Exception): ...

    def version() -> str:
        if not works:
            raise NVMLError("odd")
        return "570.1"

    fake: Any = SimpleNamespace(
        NVMLError=NVMLError, nvmlSystemGetDriverVersion=version, nvmlSystemGetNVMLVersion=lambda: "12.5"
    )
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    _, ((_, level, text), *_) = gpus(Source(row(0, utilization_pct=1.0), name="nvml"))
    said = "driver 570.1, NVML 12.5" if works else "driver of unknown version (odd)"
    assert (level, text) == ("ok", f"nvml reads 1 device, {said}")


def test_a_replayed_file(gpus: Gpus, tmp_path: Path) -> None:
    missing = tmp_path / "none.csv"
    status, ((item, level, text),) = gpus(GPU=f"fake:{missing}")
    assert (status, item, level) == (1, "sample", "fail")
    assert "none.csv" in text
