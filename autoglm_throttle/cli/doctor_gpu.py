"""Diagnoses each source of GPU telemetry: its readings, missing quantities, and remedies."""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from autoglm_throttle.cli.doctor_result import DoctorResult, Severity, within
from autoglm_throttle.cli.show import QUOTA_BASES
from autoglm_throttle.gpu.aggregate import load_pct
from autoglm_throttle.gpu.select import providers
from autoglm_throttle.settings import Settings
from autoglm_throttle.settings.field_types import plain
from autoglm_throttle.types import GpuProvider, GpuSample, ThrottleError
from autoglm_throttle.types.errors import NoSourceError

ANSWER_TIMEOUT_S: Final = 10.0  # of the first call: it opens the driver, which can take seconds
PAUSE_S: Final = 0.25  # between the two readings of a source: activity ratios exist from the second on

_CHECKS: Final = {  # Kind of a source -> checks if it does not respond
    "dcgm": "is dcgm-exporter up, and is its port (9400 by default) reachable from here?",
    "prometheus": "is this the address of the Prometheus server itself, and may this host query it?",
    "vllm": "is vLLM up, and is this the port of its API? It serves /metrics there by itself",
    "sglang": "is SGLang up, and was it started with --enable-metrics?",
    "trtllm": "is trtllm-serve up, with return_perf_metrics? Under Dynamo the path of the URL is /metrics",
    "tgi": "is TGI up, and is this the port of its API? It serves /metrics there by itself",
    "triton": "is Triton up, and is this its port for metrics, 8002 by default?",
    "fake": "the file is a recording or a live state: docs/gpu.md describes its contents",
}

_OTHER_SERVER: Final = (
    "another server answers there: check its page with curl, and the kind of the source: dcgm:, "
    "prometheus: and each engine, such as vllm:, are different kinds"
)
_REMEDIES: Final = {  # Part of an error -> its remedy
    "has no metric of": _OTHER_SERVER,
    "answers with a web page": _OTHER_SERVER,
    "knows no series of": "does Prometheus scrape dcgm-exporter, and does GPU_SELECTOR match? "
    "Query it for DCGM_FI_DEV_GPU_UTIL",
}
_REQUIRED: Final = (
    "GPU_REQUIRED is set, so the service does not start: make the driver visible to this process (in a "
    "container with --gpus all), or unset GPU_REQUIRED"
)
_NOT_REQUIRED: Final = "the limits still apply; set GPU=none if no GPU is expected"
_PERIOD: Final = (
    "dcgm-exporter measures every 30 s by default, so samples read once a second may be old: "
    "start it with DCGM_EXPORTER_INTERVAL=1000 (ms)"
)

QUANTITIES: Final = {  # Name of a quantity -> fields; one of them is enough
    "utilization": "utilization_pct graphics_active_ratio",
    "memory": "memory_used_bytes",
    "power": "power_w",
    "power limit": "power_limit_w",
    "energy": "energy_j",
    "temperature": "temperature_c",
    "clock": "sm_clock_mhz",
    "reasons of slowdown": "throttle",
    "time slowed down": "throttled_ns",
    "SM activity": "sm_active_ratio",
    "tensor activity": "tensor_active_ratio",
    "memory activity": "dram_active_ratio memory_busy_pct",
    "PCIe": "pcie_rx_bytes pcie_rx_bps",
    "NVLink": "nvlink_rx_bytes nvlink_rx_bps",
}

OF_ENGINES: Final = {
    "requests running": "running",
    "requests waiting": "queued",
    "cache fill": "kv_used_ratio",
    "tokens": "tokens_total",
    "preemptions": "preemptions_total",
}

_GIB: Final = 1024**3
_PERMISSION: Final = (
    "load the kernel module nvidia with NVreg_RestrictProfilingToAdminUsers=0, or give this process "
    "CAP_SYS_ADMIN; until then verdicts are based on power"
)
_OLDER: Final = (
    "Hopper and later report it through the driver, older devices through dcgm:URL; "
    "verdicts are based on power"
)
_COUNTERS: Final = (
    "add DCGM_FI_PROF_SM_ACTIVE and DCGM_FI_DEV_POWER_MGMT_LIMIT to the counters file of dcgm-exporter "
    "(option -f), where they are disabled by default: verdicts need one of them"
)
_MIG: Final = (
    "a MIG instance reports no utilization of its own, and this device has no GPM: TIERS cannot act on it. "
    "dcgm:URL reports it; POLICY=concurrency needs no telemetry"
)
_NO_UTILIZATION: Final = "TIERS cannot act on it; POLICY=concurrency needs no telemetry"
_LOST: Final = "the device is ignored; with no device left, POLICY=tiers rejects all requests"
_AMBIGUOUS: Final = (
    "a busy device gets the verdict 'unknown': only power or SM activity shows whether it computes or hangs"
)


_result = partial(DoctorResult, "gpu")


def diagnose(settings: Settings) -> list[DoctorResult]:
    """Read every source twice, and report its devices or the reason for their absence."""
    try:
        sources = providers(settings.gpu, manual=True)
    except ValueError as error:
        return [_result("source", "fail", _named("GPU", str(error)))]
    rows: list[GpuSample] = []
    results = [result for source in sources for result in _diagnose_source(source, settings, rows)]
    if not sources:
        results.append(_result("source", "ok", "GPU=none: no GPU is read", value="none"))
    if settings.quota.quotas:
        results.append(_quota_result(rows))
    return results


def _quota_result(rows: Sequence[GpuSample]) -> DoctorResult:
    basis = "device" if any(row.memory_used_bytes is not None for row in rows) else "unknown"
    if any(row.kind == "engine" and row.kv_used_ratio is not None for row in rows):
        basis = "cache"
    return _result("quotas", "warn" if basis == "unknown" else "ok", QUOTA_BASES[basis], value=basis)


def _diagnose_source(source: GpuProvider, settings: Settings, read: list[GpuSample]) -> list[DoctorResult]:
    try:
        rows, library = within(ANSWER_TIMEOUT_S, lambda: _read(source))
    except NoSourceError as error:
        if settings.gpu.gpu_required:
            return [_result("source", "fail", str(error), _REQUIRED)]
        return [_result("source", "warn", str(error), _NOT_REQUIRED)]
    except TimeoutError:
        text = f"{source.name} has not answered within {plain(ANSWER_TIMEOUT_S)} s"
        return [_result("sample", "fail", text, "nvidia-smi will hang as well: check the kernel log")]
    except (ThrottleError, ValueError) as error:
        of_kind = _CHECKS.get(source.name.partition(":")[0], "")
        hint = next((remedy for part, remedy in _REMEDIES.items() if part in str(error)), of_kind)
        return [_result("sample", "fail", _named(source.name, str(error)), hint)]
    read += rows
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
    counts = {"device": len(rows) - engines, "engine": engines} if rows else {"device": 0}
    texts = [
        f"{number} {noun}{'' if number == 1 else 's'}"
        for noun, number in counts.items()
        if number or not rows
    ]
    text = f"{name} reads {' and '.join(texts)}{f', {library}' if library else ''}"
    yield _result("source", "ok" if rows else "fail", text, value=name)
    now = time.monotonic()
    for row in sorted(rows, key=lambda row: (row.host, row.index)):
        yield from device_results(row, now)
    if name.startswith("dcgm:"):
        yield _result("period", "ok", f"{name} may repeat old values", _PERIOD)


def _named(name: str, text: str) -> str:
    return text if text.startswith(name) else f"{name}: {text}"


def device_results(row: GpuSample, now: float) -> Iterator[DoctorResult]:
    """Report on one row: the device's state, and its known quantities."""
    name = _name(row)
    if row.health == "lost":
        text = f"{name}: lost" + (f" ({'; '.join(row.notes)})" if row.notes else "")
        yield _result("device", "fail", text, _LOST, row.device)
        return
    engine = row.kind == "engine"
    age_ms = (max(0.0, now - row.taken_at_s) + row.age_s) * 1e3
    text = f"{name}: {_work(row) if engine else _load(row)}, {age_ms:.1f} ms old"
    if engine or load_pct(row) is not None:
        yield _result("device", "ok", text, value=row.device)
    else:
        hint = _MIG if row.kind == "mig" else _NO_UTILIZATION
        yield _result("device", "warn", text, hint, row.device)
    yield _fields_result(name, row)


def _name(row: GpuSample) -> str:
    if row.kind == "engine":
        return " ".join(filter(None, (row.device, row.name)))
    label = f"{row.host}/{row.index}" if row.host else str(row.index)
    return f"{label} {row.name}".rstrip()


def _fields_result(name: str, row: GpuSample) -> DoctorResult:
    quantities = OF_ENGINES if row.kind == "engine" else QUANTITIES
    missing = [
        quantity
        for quantity, fields in quantities.items()
        if all(getattr(row, field) is None for field in fields.split())
    ]
    known = ", ".join(quantity for quantity in quantities if quantity not in missing)
    text = f"{name} reports {known or 'nothing'}; not {', '.join(missing)}"
    if not missing:
        text = f"{name} reports every quantity checked"
    level, hint = _fields_severity(row, missing)
    return _result("quantities", level, text, hint, missing)


def _fields_severity(row: GpuSample, missing: list[str]) -> tuple[Severity, str]:
    notes = " ".join(row.notes)
    if row.kind == "engine":
        has_no_load = {"requests waiting", "cache fill"} <= set(missing)
        return ("warn", "SIGNAL=pressure has no input") if has_no_load else ("ok", "")
    if "SM activity" not in missing:
        return "ok", "; ".join(row.notes)
    if "keeps GPM for root" in notes:
        return "warn", _PERMISSION
    is_ambiguous = row.kind == "gpu" and bool({"power", "power limit"} & set(missing))
    level: Severity = "warn" if is_ambiguous else "ok"
    if row.source.startswith(("dcgm:", "prometheus:")):
        return level, _COUNTERS
    if is_ambiguous:
        return level, _AMBIGUOUS
    return level, _OLDER if "only Hopper devices and later" in notes else "; ".join(row.notes)


def _load(row: GpuSample) -> str:
    percent = load_pct(row)
    parts = ["utilization unknown" if percent is None else f"{percent:.0f} % busy"]
    if row.memory_used_bytes is not None and row.memory_total_bytes is not None:
        parts.append(f"{row.memory_used_bytes / _GIB:.1f} of {row.memory_total_bytes / _GIB:.1f} GiB")
    if row.power_w is not None and row.power_limit_w is not None:
        parts.append(f"{row.power_w:.0f} of {row.power_limit_w:.0f} W")
    if row.temperature_c is not None:
        parts.append(f"{row.temperature_c:.0f} C")
    if row.throttle:
        parts.append(f"slowed down by {', '.join(sorted(row.throttle))}")
    return ", ".join(parts)


def _work(row: GpuSample) -> str:
    values = (row.running, "{} running"), (row.queued, "{} waiting"), (row.kv_used_ratio, "cache {:.0%} full")
    return ", ".join(text.format(value) for value, text in values if value is not None) or "reports no load"
