"""The result as a chart: latency of admitted requests and goodput, by load."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.headline_rows.cases import PUBLISHED, VARIANTS
from benchmarks.headline_rows.control import P99_S
from benchmarks.headline_rows.evaluation import BEYOND

COLOURS = {
    "control": ("control", "#999999"),
    "bare": ("service alone", "#d55e00"),
    "throttle": ("autoglm_throttle", "#009e73"),
    "redis": ("with Redis", "#0072b2"),
    "fastapi": ("FastAPI alone", "#000000"),
    "fastapi-throttle": ("autoglm_throttle, FastAPI", "#56b4e9"),
    "slowapi": ("slowapi", "#e69f00"),
    "fastapi-limiter": ("fastapi-limiter", "#cc79a7"),
}
"""Titles and colours of a palette for colour blindness (Okabe and Ito)."""

WIDTH, HEIGHT, LEFT, TOP, GAP = 300, 150, 52, 60, 62

LEAST_S, MOST_S = 0.005, 20.0
"""The axis of times, logarithmic."""

SHOWN = ("headroom", "pressure")


def draw_chart(found: Sequence[Mapping[str, Any]]) -> str:
    """Draw two services below each other; times on the left, goodput on the right. SVG."""
    levels = [level for level in dict.fromkeys(row["level"] for row in found) if level != BEYOND]
    width, height = 2 * (LEFT + WIDTH) + 30, TOP + len(SHOWN) * (HEIGHT + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        'font-family="sans-serif" font-size="11">',
        "<title>Latency and goodput by offered load, with and without the throttle</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        _legend(),
    ]
    for number, variant in enumerate(SHOWN):
        top = TOP + number * (HEIGHT + GAP)
        lines = {name: _by_level(found, variant, name, levels) for name in COLOURS}
        parts.append(_panel((LEFT, top), f"{variant} ({VARIANTS[variant].title}): p99", levels))
        parts += [_times(rows, COLOURS[name][1], top) for name, rows in lines.items()]
        parts += [_bound(top), _published(levels, top)]
        left = 2 * LEFT + WIDTH + 14
        parts.append(_panel((left, top), "served within 500 ms, of the offered", levels))
        parts += [_shares(rows, COLOURS[name][1], left, top) for name, rows in lines.items()]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _by_level(
    found: Sequence[Mapping[str, Any]], variant: str, name: str, levels: Sequence[str]
) -> list[Mapping[str, Any] | None]:
    key = "control" if name == "control" else f"{variant}/{name}"
    by = {row["level"]: row for row in found if row["case"] == key and row["outcome"] != "inconclusive"}
    return [by.get(level) for level in levels]


def _legend() -> str:
    parts, x, y = [], LEFT, 14
    for title, colour in COLOURS.values():
        if x + 34 + 7 * len(title) > 2 * (LEFT + WIDTH):
            x, y = LEFT, y + 16
        parts.append(f'<line x1="{x}" x2="{x + 18}" y1="{y}" y2="{y}" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{x + 22}" y="{y + 4}">{title}</text>')
        x += 34 + 7 * len(title)
    parts.append(f'<circle cx="{x + 6}" cy="{y}" r="3.5"/>')
    parts.append(f'<text x="{x + 14}" y="{y + 4}">published (mean)</text>')
    return "".join(parts)


def _panel(corner: tuple[int, int], title: str, levels: Sequence[str]) -> str:
    left, top = corner
    ticks = "".join(
        f'<text x="{_x(number, levels, left):.1f}" y="{top + HEIGHT + 14}" '
        f'text-anchor="middle">{level}</text>'
        for number, level in enumerate(levels)
    )
    return (
        f'<text x="{left}" y="{top - 6}" font-weight="bold">{title}</text>'
        f'<rect x="{left}" y="{top}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#999999"/>{ticks}'
    )


def _times(rows: Sequence[Mapping[str, Any] | None], colour: str, top: int) -> str:
    spots = [(number, row["p99_s"]) for number, row in enumerate(rows) if row and row["p99_s"] is not None]
    return _line([(_x(number, rows, LEFT), _time_y(time_s, top)) for number, time_s in spots], colour)


def _shares(rows: Sequence[Mapping[str, Any] | None], colour: str, left: int, top: int) -> str:
    spots = [
        (number, row["goodput_rps"] / float(row["level"].removesuffix("/s")))
        for number, row in enumerate(rows)
        if row
    ]
    return _line([(_x(n, rows, left), top + HEIGHT * (1.0 - min(1.0, share))) for n, share in spots], colour)


def _bound(top: int) -> str:
    y = _time_y(P99_S, top)
    marks = "".join(
        f'<text x="{LEFT - 4}" y="{_time_y(time_s, top) + 4:.1f}" text-anchor="end">{text}</text>'
        for time_s, text in ((0.01, "10 ms"), (0.1, "100 ms"), (P99_S, "500 ms"), (5.0, "5 s"))
    )
    return (
        f'<line x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#000000" '
        f'stroke-dasharray="4 3"/>{marks}'
    )


def _published(levels: Sequence[str], top: int) -> str:
    return "".join(
        f'<circle cx="{_x(number, levels, LEFT):.1f}" r="3.5" '
        f'cy="{_time_y(PUBLISHED[level].mean_ms / 1e3, top):.1f}"/>'
        for number, level in enumerate(levels)
        if level in PUBLISHED
    )


def _line(spots: Sequence[tuple[float, float]], colour: str) -> str:
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>' for x, y in spots)
    return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.8"/>{dots}'


def _x(number: int, levels: Sequence[object], left: int) -> float:
    return left + WIDTH * (number + 0.5) / len(levels)


def _time_y(time_s: float, top: int) -> float:
    share = math.log(max(time_s, LEAST_S) / LEAST_S) / math.log(MOST_S / LEAST_S)
    return top + HEIGHT * (1.0 - min(1.0, share))
