"""Text view of a plan: number of requests by segment, priority and second."""

from __future__ import annotations

from autoglm_throttle.traffic.plan.load_plan import LoadPlan
from autoglm_throttle.types import Priority

WIDTH = 10


def format_plan(plan: LoadPlan) -> list[str]:
    """Format the counts of a plan: a line per segment, their sum, and a line per second."""
    heads = ("planned", *(priority.label for priority in Priority))
    return [
        f"{'segment':24}{_cells(('from', 'to'))}{_cells(heads)}",
        *_segments(plan),
        "",
        f"{'second':>{WIDTH}}{_cells(heads)}",
        *(f"{second:>{WIDTH}}{_counts(counts)}" for second, counts in enumerate(_seconds(plan))),
    ]


def _segments(plan: LoadPlan) -> list[str]:
    planned, lines, begin_s = plan.planned(), [], 0.0
    total = [0] * len(Priority)
    for segment, (name, end_s) in enumerate(zip(plan.names, plan.ends_s, strict=True)):
        counts = [planned[segment, priority] for priority in Priority]
        total = [sum(pair) for pair in zip(total, counts, strict=True)]
        lines.append(f"{name:24}{_span(begin_s, end_s)}{_counts(counts)}")
        begin_s = end_s
    return [*lines, f"{'total':24}{_span(0.0, begin_s)}{_counts(total)}"]


def _seconds(plan: LoadPlan) -> list[list[int]]:
    rows = [[0] * len(Priority) for _ in range(int(plan.duration_s) + 1)]
    for offset_s, priority in zip(plan.offsets, plan.priorities, strict=True):
        rows[int(offset_s)][priority] += 1
    if not any(rows[-1]):
        rows.pop()
    return rows


def _span(begin_s: float, end_s: float) -> str:
    return _cells((f"{begin_s:g} s", f"{end_s:g} s"))


def _counts(counts: list[int]) -> str:
    return _cells((str(sum(counts)), *map(str, counts)))


def _cells(texts: tuple[str, ...]) -> str:
    return "".join(f"{text:>{WIDTH}}" for text in texts)
