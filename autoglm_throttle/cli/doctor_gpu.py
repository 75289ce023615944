"""What the source of GPU telemetry says now."""

from __future__ import annotations

import importlib
import time
from collections.abc import Sequence
from typing import Final

from autoglm_throttle.cli.finding import Finding, Level, within
from autoglm_throttle.gpu.none import NoSource
from autoglm_throttle.gpu.select import select
from autoglm_throttle.model import GpuProvider, GpuSample, ThrottleError
from autoglm_throttle.settings import Settings
from autoglm_throttle.settings.quantity import plain

ANSWER_S: Final = 10.0
"""The first call opens the driver, which can take seconds where nothing keeps it loaded."""

_GIB: Final = 1024**3


def examine(settings: Settings) -> list[Finding]:
    """One reading of all devices, or why there is none."""
    try:
        provider = select(settings.gpu, devices=settings.gpu_devices, manual=True)
        if provider is None:
            return [_finding("source", Level.OK, "GPU=none: nothing is read", value="none")]
        return within(ANSWER_S, lambda: _read(provider))
    except NoSource as error:
        level = Level.FAIL if settings.gpu_required else Level.WARN
        hint = "the limits apply all the same; GPU=none says that none is expected"
        return [_finding("source", level, str(error), hint)]
    except TimeoutError:
        text = f"the driver has not answered within {plain(ANSWER_S)} s"
        return [_finding("sample", Level.FAIL, text, "nvidia-smi will hang as well: look at the kernel log")]
    except (ThrottleError, ValueError) as error:
        return [_finding("sample", Level.FAIL, f"GPU={settings.text_of('gpu')}: {error}")]


def _read(provider: GpuProvider) -> list[Finding]:
    rows = provider.read()
    read_s = time.monotonic()
    try:
        library = _library() if provider.name == "nvml" else ""
    finally:
        provider.close()
    devices = "1 device" if len(rows) == 1 else f"{len(rows)} devices"
    text = f"{provider.name} reads {devices}{f', {library}' if library else ''}"
    source = _finding("source", Level.OK if rows else Level.FAIL, text, value=provider.name)
    return [source, *(_device(row, read_s) for row in _by_index(rows))]


def _library() -> str:
    """Versions of NVIDIA's driver and of the library that reads it."""
    nvml = importlib.import_module("pynvml")
    try:
        return f"driver {nvml.nvmlSystemGetDriverVersion()}, NVML {nvml.nvmlSystemGetNVMLVersion()}"
    except nvml.NVMLError as error:
        return f"driver of unknown version ({error})"


def _by_index(rows: Sequence[GpuSample]) -> list[GpuSample]:
    return sorted(rows, key=lambda row: row.index)


def _device(row: GpuSample, read_s: float) -> Finding:
    name = f"{row.index} {row.name}".rstrip()
    if row.health == "lost":
        hint = "it is left out; none left shuts the door under POLICY=tiers"
        return _finding("device", Level.FAIL, f"{name}: lost", hint, value=row.device)
    age_ms = max(0.0, read_s - row.taken_at_s) * 1e3
    text = f"{name}: {_load(row)}, {age_ms:.1f} ms old"
    if row.utilization_pct is None:
        hint = "TIERS can not act on it; POLICY=gate needs no telemetry"
        return _finding("device", Level.WARN, text, hint, value=row.device)
    return _finding("device", Level.OK, text, value=row.device)


def _load(row: GpuSample) -> str:
    parts = ["utilization unknown" if row.utilization_pct is None else f"{row.utilization_pct:.0f} % busy"]
    if row.memory_used_bytes is not None and row.memory_total_bytes is not None:
        parts.append(f"{row.memory_used_bytes / _GIB:.1f} of {row.memory_total_bytes / _GIB:.1f} GiB")
    return ", ".join(parts)


def _finding(item: str, level: Level, message: str, hint: str = "", *, value: str | None = None) -> Finding:
    return Finding("gpu", item, level, message, hint, value)
