"""Diagnoses each source of GPU telemetry: its readings, missing quantities, and remedies."""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Final

from autoglm_throttle.cli.doctor_devices import device_results
from autoglm_throttle.cli.doctor_result import DoctorResult, Severity, within
from autoglm_throttle.gpu.select import providers
from autoglm_throttle.settings import Settings
from autoglm_throttle.settings.field_types import plain
from autoglm_throttle.types import GpuProvider, GpuSample, ThrottleError
from autoglm_throttle.types.errors import NoSourceError

ANSWER_TIMEOUT_S: Final = 10.0
"""Timeout of the first call. It opens the driver, which can take seconds if nothing keeps it loaded."""

PAUSE_S: Final = 0.25
"""Seconds between the two readings of a source; activity ratios exist from the second reading on."""

NO_NAME: Final = "has no metric of"
WEB_PAGE: Final = "answers with a web page"
NO_SERIES: Final = "knows no series of"

_CHECKS: Final = {
    "dcgm": "is dcgm-exporter up, and is its port (9400 by default) reachable from here?",
    "prometheus": "is this the address of the Prometheus server itself, and may this host query it?",
    "vllm": "is vLLM up, and is this the port of its API? It serves /metrics there by itself",
    "sglang": "is SGLang up, and was it started with --enable-metrics?",
    "fake": "the file is a recording or a live state: docs/gpu.md describes its contents",
}
"""Kind of a source -> checks if it does not respond."""

_OTHER_SERVER: Final = (
    "another server answers there: check its page with curl, and the kind of the source: dcgm:, vllm:, "
    "sglang: and prometheus: are different kinds"
)
_NO_SERIES: Final = (
    "does Prometheus scrape dcgm-exporter, and does GPU_SELECTOR match? Query it for DCGM_FI_DEV_GPU_UTIL"
)
_REQUIRED: Final = (
    "GPU_REQUIRED is set, so the service does not start: make the driver visible to this process (in a "
    "container with --gpus all), or unset GPU_REQUIRED"
)
_NOT_REQUIRED: Final = "the limits still apply; set GPU=none if no GPU is expected"
_PERIOD: Final = (
    "dcgm-exporter measures every 30 s by default, so samples read once a second may be old: "
    "start it with DCGM_EXPORTER_INTERVAL=1000 (ms)"
)


def diagnose(settings: Settings) -> list[DoctorResult]:
    """Read every source twice, and report its devices or the reason for their absence."""
    try:
        sources = providers(settings.gpu, manual=True)
    except ValueError as error:
        return [_result("source", Severity.FAIL, _named("GPU", str(error)))]
    if not sources:
        return [_result("source", Severity.OK, "GPU=none: no GPU is read", value="none")]
    return [result for source in sources for result in _diagnose_source(source, settings)]


def _diagnose_source(source: GpuProvider, settings: Settings) -> list[DoctorResult]:
    try:
        rows, library = within(ANSWER_TIMEOUT_S, lambda: _read(source))
    except NoSourceError as error:
        severity, hint = (
            (Severity.FAIL, _REQUIRED) if settings.gpu.gpu_required else (Severity.WARN, _NOT_REQUIRED)
        )
        return [_result("source", severity, str(error), hint)]
    except TimeoutError:
        text = f"{source.name} has not answered within {plain(ANSWER_TIMEOUT_S)} s"
        return [_result("sample", Severity.FAIL, text, "nvidia-smi will hang as well: check the kernel log")]
    except (ThrottleError, ValueError) as error:
        return [
            _result(
                "sample", Severity.FAIL, _named(source.name, str(error)), _remedy(source.name, str(error))
            )
        ]
    return list(_results(source.name, rows, library))


def _read(source: GpuProvider) -> tuple[Sequence[GpuSample], str]:
    try:
        rows = source.read()
        if rows:
            threading.Event().wait(PAUSE_S)
            rows = source.read()
        return rows, _library() if source.name == "nvml" else ""
    finally:
        source.close()


def _library() -> str:
    """Return the versions of NVIDIA's driver and of its NVML library."""
    nvml = importlib.import_module("pynvml")
    try:
        return f"driver {nvml.nvmlSystemGetDriverVersion()}, NVML {nvml.nvmlSystemGetNVMLVersion()}"
    except nvml.NVMLError as error:
        return f"driver of unknown version ({error})"


def _results(name: str, rows: Sequence[GpuSample], library: str) -> Iterator[DoctorResult]:
    engines = sum(row.kind == "engine" for row in rows)
    counts = [_count(len(rows) - engines, "device")] if engines < len(rows) or not rows else []
    counts += [_count(engines, "engine")] if engines else []
    text = f"{name} reads {' and '.join(counts)}{f', {library}' if library else ''}"
    yield _result("source", Severity.OK if rows else Severity.FAIL, text, value=name)
    now = time.monotonic()
    for row in sorted(rows, key=lambda row: (row.host, row.index)):
        yield from device_results(row, now)
    if name.startswith("dcgm:"):
        yield _result("period", Severity.OK, f"{name} may repeat old values", _PERIOD)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _named(name: str, text: str) -> str:
    return text if text.startswith(name) else f"{name}: {text}"


def _remedy(name: str, text: str) -> str:
    if NO_NAME in text or WEB_PAGE in text:
        return _OTHER_SERVER
    return _NO_SERIES if NO_SERIES in text else _CHECKS.get(name.partition(":")[0], "")


def _result(
    item: str, level: Severity, message: str, hint: str = "", *, value: str | None = None
) -> DoctorResult:
    return DoctorResult("gpu", item, level, message, hint, value)
