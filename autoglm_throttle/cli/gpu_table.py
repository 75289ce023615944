"""A reading of all GPU sources, as a table for people and as a document for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from autoglm_throttle.cli.doctor_result import one_line
from autoglm_throttle.cli.output import table
from autoglm_throttle.gpu.aggregate import load_pct
from autoglm_throttle.gpu.monitor import SourceState
from autoglm_throttle.gpu.sanity import MEASURED
from autoglm_throttle.observe.gpu_metrics import labelled
from autoglm_throttle.settings.groups.gpu import ENGINES
from autoglm_throttle.types import GpuCondition, GpuSample, GpuVerdict, GpuView

# Characters of a product's or a model's name, so that a line fits into 120 columns.
MAX_NAME_CHARS: Final = 20

UNKNOWN: Final = "-"

_GIB: Final = 1024**3
# Verdicts that need no reason.
_PLAIN: Final = frozenset({GpuCondition.IDLE, GpuCondition.WORKING, GpuCondition.PRODUCTIVE})

_DEVICE_HEADING: Final = (
    "gpu",
    "name",
    "util %",
    "SM %",
    "memory GiB",
    "power W",
    "MHz",
    "C",
    "verdict",
    "age s",
    "source",
)
_ENGINE_HEADING: Final = ("engine", "model", "running", "queued", "cache %", "tokens/s", "age s", "source")


@dataclass(frozen=True, slots=True)
class GpuSource:
    """One source, and its state."""

    name: str
    state: SourceState
    error: str  # Reason for missing readings, with the remedy; empty while it works


@dataclass(frozen=True, slots=True)
class GpuReading:
    """View and source states at one moment."""

    at_s: float  # Monotonic
    view: GpuView | None  # None: no source has reported yet
    sources: tuple[GpuSource, ...]


def as_text(reading: GpuReading) -> str:
    """Format the tables of devices and engines, the reasons, and the errors of sources."""
    devices, engines = _split(reading)
    parts = []
    if devices:
        rows = [_device_row(label, row, reading) for label, row in devices]
        parts.append(table([_DEVICE_HEADING, *rows], right=frozenset({2, 3, 4, 5, 6, 7, 9})))
    if engines:
        rows = [_engine_row(label, row, reading) for label, row in engines]
        parts.append(table([_ENGINE_HEADING, *rows], right=frozenset({2, 3, 4, 5, 6})))
    if not parts:
        parts.append(_empty_text(reading.sources))
    notes = [*_reasons(reading.view, devices), *map(_error_line, reading.sources)]
    if any(notes):
        parts.append("\n".join(one_line(text) for text in notes if text))
    return "\n\n".join(parts)


def as_document(reading: GpuReading) -> dict[str, Any]:
    """Return everything that is known; unknown values are null."""
    devices, engines = _split(reading)
    return {
        "gpus": [
            _row_document(label, row, reading)
            | {"verdict": _verdict_document(_verdict(reading.view, row), reading.at_s)}
            for label, row in devices
        ],
        "engines": [_row_document(label, row, reading) for label, row in engines],
        "sources": [{"name": one.name, "state": one.state, "error": one.error} for one in reading.sources],
    }


def _empty_text(sources: Sequence[GpuSource]) -> str:
    kinds = {one.name.partition(":")[0] for one in sources}
    requested = [
        kind for kind, there in (("GPU", kinds - ENGINES or not kinds), ("engine", kinds & ENGINES)) if there
    ]
    return " and ".join(f"no {kind}" for kind in requested) + " was found"


def _error_line(source: GpuSource) -> str:
    """Return the error of a source; empty if it works."""
    named = not source.error or source.error.startswith(source.name)
    return source.error if named else f"{source.name}: {source.error}"


Labelled = list[tuple[str, GpuSample]]


def _split(reading: GpuReading) -> tuple[Labelled, Labelled]:
    rows = [] if reading.view is None else labelled(reading.view.devices)
    return [one for one in rows if one[1].kind != "engine"], [one for one in rows if one[1].kind == "engine"]


def _verdict(view: GpuView | None, row: GpuSample) -> GpuVerdict | None:
    return None if view is None else view.verdicts.get((row.host, row.device))


def _device_row(label: str, row: GpuSample, reading: GpuReading) -> Sequence[str]:
    verdict = _verdict(reading.view, row)
    return (
        one_line(label),
        _name(row),
        _number(load_pct(row)),
        _percent(row.sm_active_ratio),
        _of(_gib(row.memory_used_bytes), _gib(row.memory_total_bytes), 1),
        _of(row.power_w, row.power_limit_w, 0),
        _number(row.sm_clock_mhz),
        _number(row.temperature_c),
        UNKNOWN if verdict is None else verdict.condition.value,
        _age(row, reading),
        one_line(row.source),
    )


def _engine_row(label: str, row: GpuSample, reading: GpuReading) -> Sequence[str]:
    return (
        one_line(label),
        _name(row),
        _number(row.running),
        _number(row.queued),
        _percent(row.kv_used_ratio),
        _number(row.tokens_per_s),
        _age(row, reading),
        one_line(row.source),
    )


def _reasons(view: GpuView | None, devices: Labelled) -> Iterator[str]:
    for label, row in devices:
        verdict = _verdict(view, row)
        if row.health == "lost":
            yield ": ".join([label, "lost", *(["; ".join(row.notes)] if row.notes else [])])
        elif verdict is not None and verdict.condition not in _PLAIN:
            yield f"{label}: {_explain(verdict)}"


def _explain(verdict: GpuVerdict) -> str:
    """Format the verdict and its evidence; without a verdict nothing is certain."""
    evidence = ", ".join(f"{name} {value:.3g}" for name, value in verdict.evidence.items()) or "no evidence"
    if verdict.condition is GpuCondition.UNKNOWN:
        return f"no verdict yet: too few measurements, or too little information: {evidence}"
    return f"{verdict.condition}, {verdict.confidence:.0%} sure: {evidence}"


def _row_document(label: str, row: GpuSample, reading: GpuReading) -> dict[str, Any]:
    named = ("device", "host", "kind", "name", "source", "health", "notes")
    values = {name: getattr(row, name) for name in (*named, *MEASURED)}
    values["throttle"] = None if row.throttle is None else sorted(row.throttle)
    return {
        "label": label,
        **values,
        "age_s": round(_age_s(row, reading.at_s), 3),
        "stale": _stale(row, reading),
    }


def _verdict_document(verdict: GpuVerdict | None, now: float) -> dict[str, Any] | None:
    if verdict is None:
        return None
    return {
        "condition": verdict.condition.value,
        "confidence": verdict.confidence,
        "for_s": round(max(0.0, now - verdict.since_s), 3),
        "evidence": dict(verdict.evidence),
    }


def _name(row: GpuSample) -> str:
    name = one_line(row.name.removeprefix("NVIDIA ")) or UNKNOWN
    return name if len(name) <= MAX_NAME_CHARS else name[: MAX_NAME_CHARS - 2] + ".."


def _number(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.0f}"


def _percent(ratio: float | None) -> str:
    return UNKNOWN if ratio is None else f"{100.0 * ratio:.0f}"


def _gib(count: int | None) -> float | None:
    return None if count is None else count / _GIB


def _of(part: float | None, whole: float | None, digits: int) -> str:
    """Format ``30.0/139.8``, with a dash for one unknown value, and a single dash for two."""
    if part is None and whole is None:
        return UNKNOWN
    return "/".join(UNKNOWN if value is None else f"{value:.{digits}f}" for value in (part, whole))


def _age_s(row: GpuSample, now: float) -> float:
    return max(0.0, now - row.taken_at_s) + row.age_s


def _age(row: GpuSample, reading: GpuReading) -> str:
    return f"{_age_s(row, reading.at_s):.1f}{' stale' if _stale(row, reading) else ''}"


def _stale(row: GpuSample, reading: GpuReading) -> bool:
    """Whether the row holds the last numbers of a source that has stopped reporting."""
    return any(one.name == row.source and one.error for one in reading.sources)
