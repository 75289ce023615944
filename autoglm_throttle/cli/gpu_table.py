"""Formats a GPU reading as a table for people and as a document for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from autoglm_throttle.cli.finding import printable
from autoglm_throttle.cli.gpu_watch import Seen, Source
from autoglm_throttle.cli.output import table
from autoglm_throttle.gpu.merge import load_pct
from autoglm_throttle.gpu.row import MEASURED
from autoglm_throttle.model import GpuCondition, GpuSample, GpuVerdict, GpuView
from autoglm_throttle.observe.device_label import labelled
from autoglm_throttle.settings.gpu_items import ENGINES

NAME_AT_MOST: Final = 20
"""Characters of a product's or a model's name, so that a line fits into 120 columns."""

UNKNOWN: Final = "-"

_GIB: Final = 1024**3
_PLAIN: Final = frozenset({GpuCondition.IDLE, GpuCondition.WORKING, GpuCondition.PRODUCTIVE})
"""Verdicts that need no reason."""

_CARDS: Final = (
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


def as_text(seen: Seen) -> str:
    """Format the tables of devices and engines, the reasons, and the errors of sources."""
    cards, engines = _split(seen)
    parts = []
    if cards:
        rows = [_card(label, row, seen) for label, row in cards]
        parts.append(table([_CARDS, *rows], right=frozenset({2, 3, 4, 5, 6, 7, 9})))
    if engines:
        rows = [_engine(label, row, seen) for label, row in engines]
        parts.append(table([_ENGINE_HEADING, *rows], right=frozenset({2, 3, 4, 5, 6})))
    if not parts:
        parts.append(_nothing(seen.sources))
    remarks = [*_reasons(seen.view, cards), *map(_silent, seen.sources)]
    if any(remarks):
        parts.append("\n".join(printable(text) for text in remarks if text))
    return "\n\n".join(parts)


def as_document(seen: Seen) -> dict[str, Any]:
    """Return everything that is known; unknown values are null."""
    cards, engines = _split(seen)
    return {
        "gpus": [
            _row(label, row, seen) | {"verdict": _judged(_verdict(seen.view, row), seen.at_s)}
            for label, row in cards
        ],
        "engines": [_row(label, row, seen) for label, row in engines],
        "sources": [{"name": one.name, "state": one.state, "said": one.said} for one in seen.sources],
    }


def _nothing(sources: Sequence[Source]) -> str:
    kinds = {one.name.partition(":")[0] for one in sources}
    asked = [
        what for what, there in (("GPU", kinds - ENGINES or not kinds), ("engine", kinds & ENGINES)) if there
    ]
    return " and ".join(f"no {what}" for what in asked) + " is seen"


def _silent(source: Source) -> str:
    """Return the error of a source; empty if it works."""
    named = not source.said or source.said.startswith(source.name)
    return source.said if named else f"{source.name}: {source.said}"


Labelled = list[tuple[str, GpuSample]]


def _split(seen: Seen) -> tuple[Labelled, Labelled]:
    rows = [] if seen.view is None else labelled(seen.view.devices)
    return [one for one in rows if one[1].kind != "engine"], [one for one in rows if one[1].kind == "engine"]


def _verdict(view: GpuView | None, row: GpuSample) -> GpuVerdict | None:
    return None if view is None else view.verdicts.get((row.host, row.device))


def _card(label: str, row: GpuSample, seen: Seen) -> Sequence[str]:
    verdict = _verdict(seen.view, row)
    return (
        printable(label),
        _name(row),
        _number(load_pct(row)),
        _percent(row.sm_active_ratio),
        _of(_gib(row.memory_used_bytes), _gib(row.memory_total_bytes), 1),
        _of(row.power_w, row.power_limit_w, 0),
        _number(row.sm_clock_mhz),
        _number(row.temperature_c),
        UNKNOWN if verdict is None else verdict.condition.value,
        _age(row, seen),
        printable(row.source),
    )


def _engine(label: str, row: GpuSample, seen: Seen) -> Sequence[str]:
    return (
        printable(label),
        _name(row),
        _number(row.running),
        _number(row.queued),
        _percent(row.kv_used_ratio),
        _number(row.tokens_per_s),
        _age(row, seen),
        printable(row.source),
    )


def _reasons(view: GpuView | None, cards: Labelled) -> Iterator[str]:
    for label, row in cards:
        verdict = _verdict(view, row)
        if row.health == "lost":
            yield ": ".join([label, "lost", *(["; ".join(row.notes)] if row.notes else [])])
        elif verdict is not None and verdict.condition not in _PLAIN:
            yield f"{label}: {_found(verdict)}"


def _found(verdict: GpuVerdict) -> str:
    """Format the verdict and its evidence; without a verdict nothing is certain."""
    told = ", ".join(f"{name} {value:.3g}" for name, value in verdict.evidence.items()) or "nothing is known"
    if verdict.condition is GpuCondition.UNKNOWN:
        return f"not judged yet, as long as the measurements are too few or tell too little: {told}"
    return f"{verdict.condition}, {verdict.confidence:.0%} sure: {told}"


def _row(label: str, row: GpuSample, seen: Seen) -> dict[str, Any]:
    named = ("device", "host", "kind", "name", "source", "health", "notes")
    told = {name: getattr(row, name) for name in (*named, *MEASURED)}
    told["throttle"] = None if row.throttle is None else sorted(row.throttle)
    return {"label": label, **told, "age_s": round(_age_s(row, seen.at_s), 3), "stale": _stale(row, seen)}


def _judged(verdict: GpuVerdict | None, now: float) -> dict[str, Any] | None:
    if verdict is None:
        return None
    return {
        "finding": verdict.condition.value,
        "confidence": verdict.confidence,
        "for_s": round(max(0.0, now - verdict.since_s), 3),
        "evidence": dict(verdict.evidence),
    }


def _name(row: GpuSample) -> str:
    name = printable(row.name.removeprefix("NVIDIA ")) or UNKNOWN
    return name if len(name) <= NAME_AT_MOST else name[: NAME_AT_MOST - 2] + ".."


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


def _age(row: GpuSample, seen: Seen) -> str:
    return f"{_age_s(row, seen.at_s):.1f}{' stale' if _stale(row, seen) else ''}"


def _stale(row: GpuSample, seen: Seen) -> bool:
    """Whether the row holds the last numbers of a source that has stopped reporting."""
    return any(one.name == row.source and one.said for one in seen.sources)
