"""Sections of the headline page, made from the kept records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.harness import line
from benchmarks.headline_rows.cases import FASTAPI_CONTROL, PUBLISHED, ROWS, VARIANTS
from benchmarks.headline_rows.evaluation import TOP

SHOWN = ("headroom", "pressure")
"""Variants with a table; the third is checked by its counts alone."""

COLUMNS = (
    "mean",
    "p50",
    "p95",
    "p99",
    "errors",
    "rejected",
    "of high",
    "served/s",
    "in 500 ms",
    "answered",
    "",
)
TIMES = ("mean_s", "p50_s", "p95_s", "p99_s")


def headline_part(kept: Mapping[str, Any]) -> str:
    """Render every level of the short experiment."""
    rows = kept["rows"]
    levels = dict.fromkeys(row["level"] for row in rows)
    tables = "\n".join(_table(level, [row for row in rows if row["level"] == level]) for level in levels)
    return f"{tables}\n{_where('benchmarks/headline.py', kept)}"


def hold_part(kept: Mapping[str, Any]) -> str:
    """Render the highest level, held."""
    table = _table(TOP, [row for row in kept["rows"] if row["level"] == TOP])
    return f"{table}\n{_where('benchmarks/headline.py --hold 60', kept)}"


def summary_part(kept: Mapping[str, Any]) -> str:
    """Render the held level in a few rows, for the benchmark page."""
    found = {row["case"]: row for row in kept["rows"] if row["level"] == TOP}
    shown = [name for name in ("control", *(f"pressure/{row}" for row in ROWS)) if name in found]
    body = "".join(_cells(_title(name, long=True), *_figures(found[name])) for name in shown)
    return f"{_head(f'{TOP} for a minute')}{body}\n{_where('benchmarks/headline.py --hold 60', kept)}"


def _table(level: str, rows: Sequence[Mapping[str, Any]]) -> str:
    return f"{_head(level)}{''.join(_body(level, rows))}"


def _body(level: str, rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if level in PUBLISHED:
        known = PUBLISHED[level]
        cells = (f"{known.mean_ms:g} ms", "", "", "", f"{known.error_ratio:.1%}", f"{known.triggers} times")
        yield _cells("published", *cells, "", "", "", "", "")
    last = ""
    for row in rows:
        variant = row["case"].partition("/")[0]
        if variant in VARIANTS and variant not in SHOWN:
            continue
        if variant in VARIANTS and variant != last:
            last = variant
            yield _cells(f"**{VARIANTS[variant].title}**", *[""] * len(COLUMNS))
        yield _cells(_title(row["case"]), *_figures(row))


def _figures(row: Mapping[str, Any]) -> Iterator[str]:
    if row["outcome"] == "inconclusive":
        yield from ["-"] * (len(COLUMNS) - 1)
        yield row["outcome"]
        return
    for name in TIMES:
        yield "-" if row[name] is None else f"{1e3 * row[name]:.0f} ms"
    rejected = row["limited"] + row["shed"]
    yield f"{row['errors'] / row['planned']:.1%}"
    yield f"{rejected / row['planned']:.1%}"
    high = row["priorities"]["high"]
    yield f"{(high['limited'] + high['shed']) / high['planned']:.1%}"
    yield f"{row['served_rps']:.0f}"
    yield f"{row['goodput_rps']:.0f}/s"
    yield f"{row['done_ratio']:.1%}"
    yield row["outcome"]


def _title(case: str, *, long: bool = False) -> str:
    variant, _, row = case.partition("/")
    if not row:
        return "control: the service alone, its GPU can do 6000/s"
    if case == FASTAPI_CONTROL.key:
        return f"control: {ROWS[row]}"
    return f"{ROWS[row]}; {VARIANTS[variant].title}" if long else ROWS[row]


def _head(first: str) -> str:
    return f"{_cells(first, *COLUMNS)}|{'---|' * (1 + len(COLUMNS))}\n"


def _cells(*cells: str) -> str:
    return f"| {' | '.join(cells)} |\n"


def _where(name: str, kept: Mapping[str, Any]) -> str:
    rounds = kept["scale"]["rounds"]
    many = "one round" if rounds == 1 else f"medians of {rounds} rounds"
    return f"`{name}`, {many}: {line(kept)}.\n"
