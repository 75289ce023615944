"""Curves: SVG path data from points in 0..1, on a field of 1000 by 1000."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

FIELD = 1000
"""Width and height: a tenth of a unit is finer than a pixel of any screen."""

Point = tuple[float, float]
"""Distance from the left and from the bottom, 0..1."""


def line(points: Iterable[Point | None]) -> str:
    """Draw a line through points; None makes a gap, a point between two gaps a dot."""
    parts = []
    pen = "M"
    for point in points:
        if point is None:
            pen = "M"
            continue
        parts.append(f"{pen}{_at(point)}")
        if pen == "M":
            # A path of a single point is drawn only with a segment; of length zero it becomes a dot.
            parts.append("h0")
        pen = "L"
    return "".join(parts)


def stairs(edges: Sequence[float], heights: Sequence[float]) -> str:
    """Draw a step curve, level between each two edges.

    Args:
        edges: rising, one more than the heights.
        heights: 0..1.
    """
    return line(_steps(edges, heights))


def band(edges: Sequence[float], lower: Sequence[float], upper: Sequence[float]) -> str:
    """Draw the area between two step curves."""
    outline = [*_steps(edges, upper), *reversed(_steps(edges, lower))]
    return f"M{'L'.join(map(_at, outline))}Z"


def stacked(rows: Iterable[Sequence[float]]) -> list[tuple[list[float], list[float]]]:
    """Return lower and upper heights of each row, each stacked on the previous rows."""
    floors: list[tuple[list[float], list[float]]] = []
    for row in rows:
        lower = floors[-1][1] if floors else [0.0] * len(row)
        floors.append((lower, [below + own for below, own in zip(lower, row, strict=True)]))
    return floors


def _steps(edges: Sequence[float], heights: Sequence[float]) -> list[Point]:
    return [
        (edge, height) for number, height in enumerate(heights) for edge in (edges[number], edges[number + 1])
    ]


def _at(point: Point) -> str:
    across, up = point
    return f"{_tenths(FIELD * across)} {_tenths(FIELD * (1.0 - up))}"


def _tenths(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")
