"""Tables: the numbers behind a plot, and tables of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autoglm_throttle.traffic.report.page.markup import Markup, tag


@dataclass(frozen=True, slots=True)
class Table:
    """A table with row names in the first column."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    strong: frozenset[int] = frozenset()
    """Indexes of the rows that sum up others."""


def shown(table: Table) -> Markup:
    """Render a table that scrolls by itself on narrow screens."""
    head = tag("tr", *(tag("th", name, scope="col") for name in table.head))
    rows = (_row(cells, strong=number in table.strong) for number, cells in enumerate(table.rows))
    body = tag("table", tag("caption", table.caption), tag("thead", head), tag("tbody", *rows))
    return tag("div", body, class_="scroll", role="region", aria_label=table.caption, tabindex="0")


def folded(table: Table) -> Markup:
    """Render a table that is collapsed at first."""
    return tag("details", tag("summary", "Numbers"), shown(table))


def _row(cells: Sequence[str], *, strong: bool) -> Markup:
    first, *rest = cells
    row_cells = [tag("th", first, scope="row"), *(tag("td", cell) for cell in rest)]
    return tag("tr", *row_cells, class_="strong") if strong else tag("tr", *row_cells)
