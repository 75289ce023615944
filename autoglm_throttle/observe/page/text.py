"""Texts of the live page: values in words, tables, and sections. All cells are plain text."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import chain, islice, repeat
from typing import Final, NotRequired, TypedDict

from autoglm_throttle.events import plain

MAX_CHARACTERS: Final = 200  # of one cell
NOT_KNOWN: Final = "–"

SHADES: Final = 5


class Table(TypedDict):
    """A table of text."""

    caption: str
    head: list[str]
    rows: list[list[str]]
    shades: NotRequired[list[list[int]]]
    """Of a heat map the shade of each cell, 1 to `SHADES`; 0 is none."""


Pairs = Iterable[tuple[str, object]]


class Section(TypedDict):
    """One section of the page; its plots name its id."""

    id: str
    title: str
    pairs: list[tuple[str, str]]
    tables: list[Table]


def cell(value: object) -> str:
    """Format a value from outside: one line of printable text, cut, and a dash for nothing."""
    text = plain(str(NOT_KNOWN if value is None or value == "" else value))
    return text if len(text) <= MAX_CHARACTERS else text[: MAX_CHARACTERS - 1] + "…"


def number(value: float | None, unit: str = "", factor: float = 1.0) -> str:
    """Format a number with three digits and its unit; a dash if it is not known or not finite."""
    if value is None or not math.isfinite(value):
        return NOT_KNOWN
    scaled = value * factor
    text = f"{scaled:,.0f}" if abs(scaled) >= 99.95 else f"{scaled:.3g}"
    return f"{text}{'' if unit[:1] in {'', '/'} else ' '}{unit}"


def percent(ratio: float | None) -> str:
    """Format a ratio, 0..1."""
    return number(ratio, "%", 100.0)


def duration(seconds: float | None) -> str:
    """Format seconds: milliseconds below one, minutes and hours above 120."""
    if seconds is None or not math.isfinite(seconds):
        return NOT_KNOWN
    if seconds < 0.9995:
        return number(seconds, "ms", 1000.0)
    if seconds <= 120.0:
        return number(seconds, "s")
    minutes, hours = seconds / 60.0, seconds / 3600.0
    return number(minutes, "min") if minutes <= 120.0 else number(hours, "h")


def section(key: str, title: str, pairs: Pairs = (), tables: Iterable[Table] = ()) -> Section:
    """Make a section; pairs that are not known and tables without rows are left out."""
    shown = [(name, cell(text)) for name, text in pairs if text not in {None, "", NOT_KNOWN}]
    return {"id": key, "title": title, "pairs": shown, "tables": [one for one in tables if one["rows"]]}


def table(caption: str, head: str, rows: Iterable[Iterable[object]]) -> Table:
    """Make a table; the names of its columns are separated by bars. A short row is filled with dashes."""
    columns = head.split("|")
    filled = (list(islice(chain(row, repeat(None)), len(columns))) for row in rows)
    return {"caption": caption, "head": columns, "rows": [list(map(cell, row)) for row in filled]}
