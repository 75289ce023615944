"""The table of sequences: events of a breaker, and their results."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

TABLE = Path(__file__).with_name("table.txt")

_TIMES = re.compile(r" x(\d+)$")


@dataclass(frozen=True)
class Row:
    """One row: a sequence of events, and its results."""

    part: str
    """Name of the set of events."""
    group: str
    name: str
    rules: str
    events: str
    answers: str

    def __str__(self) -> str:
        return self.name

    def sequence(self) -> list[str]:
        return split(self.events)

    def expected(self) -> list[str]:
        return split(self.answers)


def split(text: str) -> list[str]:
    """Split text at commas, and repeat each part by its ``x3``."""
    events: list[str] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        times = _TIMES.search(part)
        events += [_TIMES.sub("", part)] * (int(times[1]) if times else 1)
    return events


def rows(part: str | None = None) -> list[Row]:
    """Return all rows of the table, or those of one part, in order."""
    found: list[Row] = []
    here = group = ""
    for text in TABLE.read_text(encoding="utf-8").splitlines()[1:]:
        if text.startswith("## "):
            here, group = text[3:], ""
        elif text.startswith("# "):
            group = text[2:]
        elif text:
            cells = [cell.strip() for cell in text.split("|")]
            name, rules, events, answers = cells
            found.append(Row(here, group, name, rules, events, answers))
    return [row for row in found if part in {None, row.part}]
