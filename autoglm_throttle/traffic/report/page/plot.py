"""One plot: a figure with a name, a drawing that grows with the page, a legend and a table.

The drawing has two coordinate systems, so that it can be of any width without a script: curves live on a
field that is stretched, texts and lines of the grid at percentages of it, in their own size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from autoglm_throttle.traffic.report.page.axes import Axis
from autoglm_throttle.traffic.report.page.curves import FIELD
from autoglm_throttle.traffic.report.page.markup import Markup, join, tag
from autoglm_throttle.traffic.report.page.tables import Table, folded

ROOMS = ((230.0, "mark"), (380.0, "mark roomy"), (880.0, "mark vast"))
"""Pixels that a drawing has anywhere, where two stand side by side, and on a line of its own; and the
look of a name that fits there. The style hides it elsewhere."""

LETTER = 7.0
"""Pixels, about, that a letter is wide."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One curve or area."""

    data: str
    """Of the path; empty: nothing to draw."""
    kind: str
    """``area`` or ``line``."""
    look: str
    """Class that colours it."""
    name: str = ""
    """In the legend; empty: not there."""


@dataclass(frozen=True, slots=True)
class Band:
    """A named stretch of the field, 0..1."""

    start: float
    end: float
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """Everything that a figure shows."""

    title: str
    summary: str
    """One sentence that says what is to be seen."""
    across: Axis
    up: Axis
    layers: Sequence[Layer]
    table: Table
    bands: Sequence[Band] = ()
    hints: Sequence[str] = ()
    """Said by the pointer over equal parts of the field, as many as there are."""
    across_name: str = ""


def figure(plot: Plot) -> Markup:
    """The figure, as HTML."""
    return tag(
        "figure",
        tag("figcaption", tag("h3", plot.title), tag("p", plot.summary)),
        _legend(plot.layers),
        _drawing(plot),
        folded(plot.table),
    )


def _drawing(plot: Plot) -> Markup:
    content = [
        _grid(plot.up.ticks),
        *(_band(band) for band in plot.bands),
        tag("svg", *_paths(plot), viewBox=f"0 0 {FIELD} {FIELD}", preserveAspectRatio="none", class_="field"),
        *_ticks(plot.across.ticks),
    ]
    if plot.across_name:
        content.append(tag("text", plot.across_name, x="100%", y="100%", dy="34", class_="name"))
    return tag("svg", *content, class_="plot", role="img", aria_label=f"{plot.title}. {plot.summary}")


def _paths(plot: Plot) -> Iterable[Markup]:
    for layer in plot.layers:
        yield tag("path", d=layer.data, class_=f"{layer.kind} {layer.look}")
    width = FIELD / max(1, len(plot.hints))
    for number, hint in enumerate(plot.hints):
        title = tag("title", hint)
        yield tag(
            "rect",
            title,
            x=f"{number * width:.4g}",
            y="0",
            width=f"{width:.4g}",
            height=f"{FIELD}",
            class_="hint",
        )


def _grid(ticks: Iterable[tuple[float, str]]) -> Markup:
    parts = []
    for place, says in ticks:
        y = _percent(1.0 - place)
        parts.append(tag("line", x1="0", x2="100%", y1=y, y2=y, class_="grid"))
        parts.append(tag("text", says, x="-8", y=y, dy="4", class_="up"))
    return join(*parts)


def _ticks(ticks: Iterable[tuple[float, str]]) -> Iterable[Markup]:
    for place, says in ticks:
        side = "last" if place > 0.97 else "across"
        yield tag("text", says, x=_percent(place), y="100%", dy="18", class_=side)


def _band(band: Band) -> Markup:
    """A line where it begins, and its name above if there is room for it."""
    x, wanted = _percent(band.start), LETTER * (len(band.name) + 1)
    line = tag("line", x1=x, x2=x, y1="-16", y2="100%", class_="band")
    look = next((look for pixels, look in ROOMS if (band.end - band.start) * pixels >= wanted), None)
    if look is None:
        return line
    return join(line, tag("text", band.name, x=x, y="0", dx="4", dy="-6", class_=look))


def _legend(layers: Iterable[Layer]) -> Markup:
    named = [layer for layer in layers if layer.name]
    if not named:
        return Markup()
    items = (tag("li", tag("span", class_=f"key {layer.kind} {layer.look}"), layer.name) for layer in named)
    return tag("ul", *items, class_="legend")


def _percent(share: float) -> str:
    return f"{100.0 * share:.4g}%"
