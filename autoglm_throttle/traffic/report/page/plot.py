"""One plot: a figure with a title, a drawing that scales with the page, a legend and a table.

The drawing has two coordinate systems and needs no script at any width. Curves use a stretched field. Texts
and grid lines keep their size and stand at percentages of the field.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from autoglm_throttle.traffic.report.page.axes import Axis
from autoglm_throttle.traffic.report.page.curves import FIELD
from autoglm_throttle.traffic.report.page.markup import Markup, join, tag
from autoglm_throttle.traffic.report.page.tables import Table, folded

LABEL_WIDTHS = ((230.0, "mark"), (380.0, "mark roomy"), (880.0, "mark vast"))
"""Minimal widths of a drawing in pixels, and the CSS class of a label that fits there.

The widths are those of any layout, of two plots side by side, and of a plot with a row of its own. The style
hides a label elsewhere.
"""

LETTER_PX = 7.0
"""Approximate width of a letter in pixels."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One curve or area."""

    data: str
    """Path data; empty: nothing to draw."""
    kind: str
    """``area`` or ``line``."""
    css_class: str
    """CSS class that sets the colour."""
    name: str = ""
    """Name in the legend; empty: not listed."""


@dataclass(frozen=True, slots=True)
class PlotBand:
    """A named interval of the field, 0..1."""

    start: float
    end: float
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """Content of a figure."""

    title: str
    summary: str
    """One sentence that summarizes the plot."""
    across: Axis
    up: Axis
    layers: Sequence[Layer]
    table: Table
    bands: Sequence[PlotBand] = ()
    tooltips: Sequence[str] = ()
    """Tooltips over equal parts of the field, one for each part."""
    across_name: str = ""


def figure(plot: Plot) -> Markup:
    """Render the figure as HTML."""
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
        yield tag("path", d=layer.data, class_=f"{layer.kind} {layer.css_class}")
    width = FIELD / max(1, len(plot.tooltips))
    for number, tooltip in enumerate(plot.tooltips):
        title = tag("title", tooltip)
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
    for place, label in ticks:
        y = _percent(1.0 - place)
        parts.append(tag("line", x1="0", x2="100%", y1=y, y2=y, class_="grid"))
        parts.append(tag("text", label, x="-8", y=y, dy="4", class_="up"))
    return join(*parts)


def _ticks(ticks: Iterable[tuple[float, str]]) -> Iterable[Markup]:
    for place, label in ticks:
        side = "last" if place > 0.97 else "across"
        yield tag("text", label, x=_percent(place), y="100%", dy="18", class_=side)


def _band(band: PlotBand) -> Markup:
    """Draw a line at the start of a band, and its name above if the name fits."""
    x, wanted = _percent(band.start), LETTER_PX * (len(band.name) + 1)
    line = tag("line", x1=x, x2=x, y1="-16", y2="100%", class_="band")
    css_class = next(
        (css_class for pixels, css_class in LABEL_WIDTHS if (band.end - band.start) * pixels >= wanted), None
    )
    if css_class is None:
        return line
    return join(line, tag("text", band.name, x=x, y="0", dx="4", dy="-6", class_=css_class))


def _legend(layers: Iterable[Layer]) -> Markup:
    named = [layer for layer in layers if layer.name]
    if not named:
        return Markup()
    items = (
        tag("li", tag("span", class_=f"key {layer.kind} {layer.css_class}"), layer.name) for layer in named
    )
    return tag("ul", *items, class_="legend")


def _percent(share: float) -> str:
    return f"{100.0 * share:.4g}%"
