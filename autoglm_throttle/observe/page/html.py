"""The live page as HTML with every plot drawn in SVG: complete without JavaScript.

All text is escaped. Colours are classes: the policy of the page forbids the attribute ``style``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from functools import cache
from html import escape
from importlib import resources
from itertools import groupby
from typing import TYPE_CHECKING, Final

from autoglm_throttle.version import __version__

if TYPE_CHECKING:
    from autoglm_throttle.observe.page.plots import Plot
    from autoglm_throttle.observe.page.text import Section, Table

WIDTH: Final = 1000  # of a plot, in its own units; the height of a line plot is HEIGHT
HEIGHT: Final = 200
ROW: Final = 24  # height of one series of a strip


@cache
def resource(name: str) -> str:
    """Return a file of this folder."""
    return resources.files("autoglm_throttle.observe.page").joinpath(name).read_text("utf-8")


def page(title: str, main: str, *, head: str = "") -> str:
    """Put a main part into the frame of all pages."""
    text = resource("page.html").replace("{{version}}", escape(__version__)).replace("{{head}}", head)
    before, _, after = text.replace("{{title}}", escape(title)).partition("{{main}}")
    return before + main + after


def render(
    sentence: str, sections: Sequence[Section], plots: Sequence[Plot], wall_s: float, step_s: float
) -> str:
    """Render the whole page."""
    at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(wall_s))
    links = "".join(f'<li><a href="#{one["id"]}">{escape(one["title"])}</a></li>' for one in sections)
    parts = [
        f'<p id="sentence" role="status">{escape(sentence)}</p>',
        f'<p id="age">As of <time>{at}</time></p>',
        f'<nav aria-label="Sections"><ul>{links}</ul></nav><div id="sections">',
        *(_section(one, [plot for plot in plots if plot.spec.section == one["id"]]) for one in sections),
        "</div>",
    ]
    refresh = f'<noscript><meta http-equiv="refresh" content="{step_s:g}" /></noscript>'
    script = "".join(
        f'<script src="{name}.js?v={escape(__version__)}" defer></script>' for name in ("uplot", "page")
    )
    return page(sentence, "".join(parts), head=refresh + script)


def _section(section: Section, plots: Iterable[Plot]) -> str:
    key, title = section["id"], escape(section["title"])
    pairs = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>" for name, text in section["pairs"]
    )
    pairs = f"<dl>{pairs}</dl>" if pairs else ""
    drawn, tables = "".join(map(_figure, plots)), "".join(map(_table, section["tables"]))
    drawn = f'<div class="plots">{drawn}</div>' if drawn else ""
    head = f'<section id="{key}" aria-labelledby="{key}-title"><h2 id="{key}-title">{title}</h2>'
    return f"{head}{pairs}{drawn}{tables}</section>"


def _table(table: Table) -> str:
    caption = escape(table["caption"])
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in table["head"])
    shades = table.get("shades") or [[0] * len(row) for row in table["rows"]]
    rows = "".join(
        f"<tr>{''.join(map(_cell, range(len(row)), row, shade))}</tr>"
        for row, shade in zip(table["rows"], shades, strict=True)
    )
    return (
        f'<div class="scroll" role="region" aria-label="{caption}" tabindex="0">'
        f"<table><caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _cell(index: int, text: str, shade: int) -> str:
    kind = f' class="shade{shade}"' if shade else ""
    return f"<td{kind}>{escape(text)}</td>" if index else f'<th scope="row">{escape(text)}</th>'


def _figure(plot: Plot) -> str:
    spec, title = plot.spec, escape(plot.spec.title)
    values = [(name, json.loads(f"[{','.join(texts)}]")) for name, texts in plot.series]
    legend = "".join(
        f'<li><span class="key s{index % 8}"></span>{escape(_shown(name, series[-1], spec.unit))}</li>'
        for index, (name, series) in enumerate(values)
    )
    draw = _strip if spec.kind == "strip" else _lines
    return (
        f'<figure id="plot-{spec.id}"><figcaption>{title}{_unit(spec.unit)}</figcaption>{draw(plot, values)}'
        f'<ul class="legend{" names" if spec.kind == "strip" else ""}">{legend}</ul></figure>'
    )


def _unit(unit: str) -> str:
    return f", {escape(unit)}" if unit else ""


def _shown(name: str, value: float | str | None, unit: str) -> str:
    return f"{name}: {'–' if value is None else f'{value} {unit}'.strip()}"


def _lines(plot: Plot, values: Sequence[tuple[str, list[float | None]]]) -> str:
    spec = plot.spec
    known = [value for _, series in values for value in series if value is not None]
    top = spec.top or max(known, default=0.0) or 1.0
    marks = "".join(
        f'<line class="band" x1="0" x2="{WIDTH}" y1="{_y(at, top):g}" y2="{_y(at, top):g}" />'
        for at, _ in plot.bands
    )
    paths = "".join(
        f'<path class="line s{index % 8}" d="{_path(series, top)}" />'
        for index, (_, series) in enumerate(values)
    )
    axis = "; ".join([f"0 to {top:.3g} {spec.unit}".strip(), *(text for _, text in plot.bands)])
    return _svg(HEIGHT, f"{spec.title}, {axis}", marks + paths) + f'<p class="axis">{escape(axis)}</p>'


def _y(value: float, top: float) -> float:
    return HEIGHT * (1.0 - min(value / top, 1.0))


def _path(series: Sequence[float | None], top: float) -> str:
    """Return the path of a line; a missing value is a gap, and a value between two gaps a dot."""
    parts, is_down, step = [], False, WIDTH / max(1, len(series) - 1)
    for index, value in enumerate(series):
        if value is not None:
            place = f"{index * step:.1f} {_y(value, top):.1f}"
            parts.append(f"L{place}" if is_down else f"M{place}h0")
        is_down = value is not None
    return "".join(parts)


def _strip(plot: Plot, values: Sequence[tuple[str, list[str | None]]]) -> str:
    """Draw one row for each series, with a rectangle for each time that a state has lasted."""
    rows = []
    for row, (name, series) in enumerate(values):
        start, width = 0, WIDTH / len(series)
        for state, run in groupby(series):
            length = len(list(run))
            if state is not None:
                place = f'x="{start * width:.1f}" y="{row * ROW}" width="{length * width:.1f}"'
                title = f"<title>{escape(_shown(name, state, ''))}</title>"
                rows.append(f'<rect class="state {state}" {place} height="{ROW - 4}">{title}</rect>')
            start += length
    newest = ", ".join(_shown(name, series[-1], "") for name, series in values)
    return _svg(ROW * len(values), f"{plot.spec.title}: {newest}", "".join(rows))


def _svg(height: int, label: str, inner: str) -> str:
    return (
        f'<svg class="plot" role="img" aria-label="{escape(label)}" viewBox="0 0 {WIDTH} {height}" '
        f'preserveAspectRatio="none" height="{height}">{inner}</svg>'
    )
