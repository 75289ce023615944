"""A reading of all GPU sources, as a table for people and as a document for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from autoglm_throttle.cli.doctor_result import one_line
from autoglm_throttle.cli.output import table
from autoglm_throttle.gpu.aggregate import load_pct
from autoglm_throttle.gpu.sampler import SourceState
from autoglm_throttle.gpu.sanity import MEASURED
from autoglm_throttle.observe.gpu_metrics import labelled
from autoglm_throttle.settings.groups.gpu import ENGINES
from autoglm_throttle.types import GpuCondition, GpuSample, GpuVerdict, GpuView

MAX_NAME_CHARS: Final = 20  # of a product's or a model's name, so that a line fits into 120 columns
UNKNOWN: Final = "-"

_GIB: Final = 1024**3
# Verdicts that need no reason.
_PLAIN: Final = frozenset({GpuCondition.IDLE, GpuCondition.WORKING, GpuCondition.PRODUCTIVE})
_LEFT: Final = frozenset({"gpu", "name", "verdict", "source", "engine", "model"})  # Columns of texts


# Name and state of a source, and the reason for missing readings with the remedy; empty while it works.
GpuSource = tuple[str, SourceState, str]


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
    for labelled_rows, cells in ((devices, _device_cells), (engines, _engine_cells)):
        rows = [cells(label, row, reading) for label, row in labelled_rows]
        for heading in map(list, rows[:1]):
            right = frozenset(at for at, column in enumerate(heading) if column not in _LEFT)
            parts.append(table([heading, *(list(row.values()) for row in rows)], right=right))
    if not parts:
        parts.append(_empty_text(reading.sources))
    notes = list(_reasons(reading, devices))
    for name, _, error in reading.sources:
        if error:
            notes.append(error if error.startswith(name) else f"{name}: {error}")
    if notes:
        parts.append("\n".join(map(one_line, notes)))
    return "\n\n".join(parts)


def as_document(reading: GpuReading) -> dict[str, Any]:
    """Return everything that is known; unknown values are null."""
    devices, engines = _split(reading)
    return {
        "gpus": [
            {**_row_document(label, row, reading), "verdict": _verdict_document(row, reading)}
            for label, row in devices
        ],
        "engines": [_row_document(label, row, reading) for label, row in engines],
        "sources": [dict(zip(("name", "state", "error"), one, strict=True)) for one in reading.sources],
    }


def _empty_text(sources: Sequence[GpuSource]) -> str:
    kinds = {name.partition(":")[0] for name, _, _ in sources}
    requested = ["no GPU"] if kinds - ENGINES or not kinds else []
    requested += ["no engine"] if kinds & ENGINES else []
    return f"{' and '.join(requested)} was found"


Labelled = list[tuple[str, GpuSample]]


def _split(reading: GpuReading) -> tuple[Labelled, Labelled]:
    rows = [] if reading.view is None else labelled(reading.view.devices)
    return [one for one in rows if one[1].kind != "engine"], [one for one in rows if one[1].kind == "engine"]


def _verdict(reading: GpuReading, row: GpuSample) -> GpuVerdict | None:
    return None if reading.view is None else reading.view.verdicts.get((row.host, row.device))


def _device_cells(label: str, row: GpuSample, reading: GpuReading) -> dict[str, str]:
    """Return the cells of a device by column."""
    verdict = _verdict(reading, row)
    return {
        "gpu": one_line(label),
        "name": _name(row),
        "util %": _number(load_pct(row)),
        "SM %": _number(row.sm_active_ratio, 100.0),
        "memory GiB": _of(row.memory_used_bytes, row.memory_total_bytes, 1 / _GIB, 1),
        "power W": _of(row.power_w, row.power_limit_w),
        "MHz": _number(row.sm_clock_mhz),
        "C": _number(row.temperature_c),
        "verdict": UNKNOWN if verdict is None else verdict.condition.value,
        "age s": _age(row, reading),
        "source": one_line(row.source),
    }


def _engine_cells(label: str, row: GpuSample, reading: GpuReading) -> dict[str, str]:
    """Return the cells of an engine by column."""
    return {
        "engine": one_line(label),
        "model": _name(row),
        "running": _number(row.running),
        "queued": _number(row.queued),
        "cache %": _number(row.kv_used_ratio, 100.0),
        "tokens/s": _number(row.tokens_per_s),
        "age s": _age(row, reading),
        "source": one_line(row.source),
    }


def _reasons(reading: GpuReading, devices: Labelled) -> Iterator[str]:
    for label, row in devices:
        verdict = _verdict(reading, row)
        if row.health == "lost":
            yield ": ".join(filter(None, [label, "lost", "; ".join(row.notes)]))
        elif verdict is not None and verdict.condition not in _PLAIN:
            text = f"{verdict.condition}, {verdict.confidence:.0%} sure"
            if verdict.condition is GpuCondition.UNKNOWN:  # nothing is certain
                text = "no verdict yet: too few measurements, or too little information"
            evidence = ", ".join(f"{name} {value:.3g}" for name, value in verdict.evidence.items())
            yield f"{label}: {text}: {evidence or 'no evidence'}"


def _row_document(label: str, row: GpuSample, reading: GpuReading) -> dict[str, Any]:
    named = ("device", "host", "kind", "name", "source", "health", "notes")
    values = {name: getattr(row, name) for name in (*named, *MEASURED)}
    values["throttle"] = None if row.throttle is None else sorted(row.throttle)
    age_s = round(_age_s(row, reading.at_s), 3)
    return {"label": label, **values, "age_s": age_s, "stale": _stale(row, reading)}


def _verdict_document(row: GpuSample, reading: GpuReading) -> dict[str, Any] | None:
    verdict = _verdict(reading, row)
    if verdict is None:
        return None
    return {
        "condition": verdict.condition.value,
        "confidence": verdict.confidence,
        "for_s": round(max(0.0, reading.at_s - verdict.since_s), 3),
        "evidence": dict(verdict.evidence),
    }


def _name(row: GpuSample) -> str:
    name = one_line(row.name.removeprefix("NVIDIA ")) or UNKNOWN
    return name if len(name) <= MAX_NAME_CHARS else name[: MAX_NAME_CHARS - 2] + ".."


def _number(value: float | None, times: float = 1.0, digits: int = 0) -> str:
    return UNKNOWN if value is None else f"{times * value:.{digits}f}"


def _of(part: float | None, whole: float | None, times: float = 1.0, digits: int = 0) -> str:
    """Format ``30.0/139.8``, with a dash for one unknown value, and a single dash for two."""
    if part is None and whole is None:
        return UNKNOWN
    return f"{_number(part, times, digits)}/{_number(whole, times, digits)}"


def _age_s(row: GpuSample, now: float) -> float:
    return max(0.0, now - row.taken_at_s) + row.age_s


def _age(row: GpuSample, reading: GpuReading) -> str:
    return f"{_age_s(row, reading.at_s):.1f}{' stale' if _stale(row, reading) else ''}"


def _stale(row: GpuSample, reading: GpuReading) -> bool:
    """Whether the row holds the last numbers of a source that has stopped reporting."""
    return any(name == row.source and error for name, _, error in reading.sources)
