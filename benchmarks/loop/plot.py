"""Charts of the runs: responses in time over time, one chart for each family of scenarios."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from benchmarks.loop.scenarios import SCENARIOS
from benchmarks.loop.study import Curve, Result

COLOURS = {
    "asked": "#c8c8c8",
    "none": "#d55e00",
    "tiers": "#e69f00",
    "concurrency": "#56b4e9",
    "oracle": "#000000",
    "adaptive": "#009e73",
}
"""Curves and their colours, the last on top; a palette for colour blindness (Okabe and Ito)."""

WIDTH, HEIGHT, LEFT, TOP, GAP = 640, 150, 48, 34, 46


def write(results: Sequence[Result], folder: Path) -> list[Path]:
    """Draw one chart for each family among the results of one seed."""
    families: dict[str, list[Result]] = {}
    for result in results:
        families.setdefault(SCENARIOS[result.scenario].family, []).append(result)
    paths = []
    for family, members in families.items():
        path = folder / f"closed_loop_{family}.svg"
        path.write_text(picture(members), encoding="utf-8")
        paths.append(path)
    return paths


def picture(results: Sequence[Result]) -> str:
    """Draw the panels below each other, as SVG."""
    height = TOP + len(results) * (HEIGHT + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 16} {height}" '
        f'font-family="sans-serif" font-size="11">',
        f'<rect width="{LEFT + WIDTH + 16}" height="{height}" fill="#ffffff"/>',
        _legend(results[0].curves),
    ]
    for number, result in enumerate(results):
        parts.append(_panel(result, TOP + number * (HEIGHT + GAP) + 16))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _legend(curves: Mapping[str, Curve]) -> str:
    parts, x = [], LEFT
    for name in _drawn(curves):
        parts.append(
            f'<line x1="{x}" x2="{x + 18}" y1="14" y2="14" stroke="{COLOURS[name]}" stroke-width="2"/>'
        )
        parts.append(f'<text x="{x + 22}" y="18">{name}</text>')
        x += 30 + 7 * len(name)
    return "".join(parts)


def _panel(result: Result, top: int) -> str:
    curves = result.curves
    some = next(iter(curves.values()))
    series = {name: _rates(curves[name].good, some.bin_s) for name in _drawn(curves) if name != "asked"}
    asked = _rates(some.offered, some.bin_s)
    highest = 1.3 * max(max(values) for values in series.values())
    lines = [
        _line(values, highest, top, COLOURS[name]) for name, values in {"asked": asked, **series}.items()
    ]
    seconds = SCENARIOS[result.scenario].duration_s
    return "\n".join(
        [
            f'<text x="{LEFT}" y="{top - 5}" font-weight="bold">{escape(result.scenario)}: '
            "answers in time per second, by the time of the request</text>",
            f'<rect x="{LEFT}" y="{top}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#999999"/>',
            f'<text x="{LEFT - 4}" y="{top + 10}" text-anchor="end">{highest:.3g}</text>',
            f'<text x="{LEFT - 4}" y="{top + HEIGHT}" text-anchor="end">0</text>',
            f'<text x="{LEFT + WIDTH}" y="{top + HEIGHT + 14}" text-anchor="end">{seconds:g} s</text>',
            *lines,
        ]
    )


def _rates(counts: Sequence[int], bin_s: float) -> list[float]:
    """Convert counts to rates per second, each point the mean of one objective: four bins."""
    return [sum(counts[at : at + 4]) / (4 * bin_s) for at in range(0, len(counts) - 4, 2)]


def _line(values: Sequence[float], highest: float, top: int, colour: str) -> str:
    step = WIDTH / max(1, len(values) - 1)
    points = " ".join(
        f"{LEFT + number * step:.1f},{top + HEIGHT * (1.0 - min(1.0, value / highest)):.1f}"
        for number, value in enumerate(values)
    )
    return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>'


def _drawn(curves: Mapping[str, Curve]) -> list[str]:
    return [name for name in COLOURS if name == "asked" or name in curves]
