"""Draws the live view and the final table: pure functions from numbers to text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from autoglm_throttle.model import Priority
from autoglm_throttle.traffic.books import Books, Row

BAR = 50
"""Characters for 0..100 %: two percent each, so that the tier lines fall on different ones."""

GREEN, YELLOW, RED, RESET = "\x1b[32m", "\x1b[33m", "\x1b[31m", "\x1b[0m"


@dataclass(frozen=True, slots=True)
class ClassFrame:
    """One priority in the live view; rates in requests/s."""

    rate_rps: float
    """Refill rate now."""
    admitted_rps: float
    limited_rps: float
    rejected_rps: float
    p95_s: float | None


@dataclass(frozen=True, slots=True)
class Frame:
    """Everything the live view shows."""

    elapsed_s: float
    length_s: float
    phase: str
    offered_rps: float
    in_flight: int
    utilization_pct: float | None
    power_w: float | None
    tiers: Sequence[Sequence[float]]
    """Pairs of utilization in percent and the factor above it."""
    factor: float
    why: str
    classes: Mapping[Priority, ClassFrame]


def draw(frame: Frame, *, color: bool) -> list[str]:
    """The live view, line by line; the number of lines is always the same."""
    known = frame.utilization_pct is not None
    gpu = f"{frame.utilization_pct:5.1f} %" if known else "unknown"
    power = f"  {frame.power_w:3.0f} W" if frame.power_w is not None else ""
    lines = [
        f"{frame.elapsed_s:5.1f} of {frame.length_s:.0f} s   phase {frame.phase:<9}"
        f" offered {frame.offered_rps:6.0f}/s   in flight {frame.in_flight:5}",
        f"GPU     [{bar(frame.utilization_pct or 0.0, frame.tiers, color=color)}] {gpu}{power}",
        "        " + _scale(frame.tiers),
        f"factor  {_bright(f'{frame.factor:4.2f}', _shade(1.0 - frame.factor), color)}"
        f"  ({frame.why})   lines: "
        + ", ".join(f"above {edge:g} % x {factor:g}" for edge, factor in frame.tiers),
        "         rate now   admitted    limited   rejected        p95",
    ]
    for priority, one in frame.classes.items():
        lines.append(
            f"{priority.label:<8}{one.rate_rps:7.0f}/s {one.admitted_rps:8.0f}/s {one.limited_rps:8.0f}/s"
            f" {one.rejected_rps:8.0f}/s {seconds(one.p95_s):>10}"
        )
    return lines


def plain(frame: Frame) -> str:
    """The live view as one line, for output that is no terminal."""
    gpu = "unknown" if frame.utilization_pct is None else f"{frame.utilization_pct:.0f} %"
    classes = "  ".join(
        f"{priority.label} {one.admitted_rps:.0f}/{one.limited_rps:.0f}/{one.rejected_rps:.0f}"
        f" p95 {seconds(one.p95_s)}"
        for priority, one in frame.classes.items()
    )
    start = f"{frame.elapsed_s:5.1f} s  {frame.phase:<8}  GPU {gpu:>5}  factor {frame.factor:4.2f}"
    return f"{start}  admitted/limited/rejected per s: {classes}"


def bar(utilization_pct: float, tiers: Sequence[Sequence[float]], *, color: bool) -> str:
    """A bar of 0..100 % with a mark where each tier begins."""
    filled = round(BAR * min(100.0, utilization_pct) / 100.0)
    marks = {min(BAR - 1, int(BAR * edge / 100.0)) for edge, _ in tiers}
    cells = [("|" if cell in marks else "#" if cell < filled else " ") for cell in range(BAR)]
    passed = sum(utilization_pct > edge for edge, _ in tiers)
    return _bright("".join(cells), _shade(passed / max(1, len(tiers))), color)


def _scale(tiers: Sequence[Sequence[float]]) -> str:
    cells = [" "] * (BAR + 4)
    for edge, _ in tiers:
        place = 1 + min(BAR - 1, int(BAR * edge / 100.0))
        cells[place : place + 2] = f"{edge:.0f}"[:2]
    return "".join(cells).rstrip()


def _shade(badness: float) -> str:
    return GREEN if badness <= 0.0 else RED if badness >= 1.0 else YELLOW


def _bright(text: str, shade: str, color: bool) -> str:
    return f"{shade}{text}{RESET}" if color else text


def seconds(duration_s: float | None) -> str:
    """A duration in the unit people would use; a dash for none."""
    if duration_s is None:
        return "-"
    return f"{1e3 * duration_s:.0f} ms" if duration_s < 1.0 else f"{duration_s:.1f} s"


HEADINGS = ("phase", "priority", "sent", "admitted", "limited", "rejected", "failed", "p95", "why refused")


def table(books: Books) -> list[str]:
    """The books by phase and priority, and their sum."""
    rows: list[tuple[str, ...]] = [HEADINGS]
    for segment, name in enumerate(books.segments):
        rows += [
            _cells(name, priority.label, books.rows[segment, priority])
            for priority in Priority
            if books.rows[segment, priority].sent
        ]
    rows.append(_cells("all", "", books.total()))
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    return [_line(row, widths) for row in rows]


def _cells(name: str, label: str, row: Row) -> tuple[str, ...]:
    numbers = (row.sent, row.admitted, row.limited, row.rejected, row.failed)
    reasons = ", ".join(f"{reason or 'not said'} {count}" for reason, count in row.reasons.most_common())
    return (name, label, *map(str, numbers), seconds(row.response.percentile(0.95)), reasons or "-")


def _line(cells: Iterable[str], widths: Sequence[int]) -> str:
    padded = [
        cell.rjust(width) if 2 <= column <= 7 else cell.ljust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "  ".join(padded).rstrip()
