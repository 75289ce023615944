"""Text output: the published figures, ours and those of the peers, level by level."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.headline_rows.cases import PUBLISHED, VARIANTS, Case
from benchmarks.headline_rows.evaluation import BEYOND

HEADINGS = (
    "mean",
    "p50",
    "p95",
    "p99",
    "errors",
    "limited",
    "shed",
    "goodput/s",
    "done",
    "of control",
    "CPU",
)

TIMES = ("mean_s", "p50_s", "p95_s", "p99_s")

NOTES = (
    "Times in ms, from the intended start, of the served; medians over the rounds that count. goodput:",
    "within 500 ms. errors, limited (429) and shed (503 with Retry-After): share of the planned.",
    "done: answers of any kind. of control: answers by those of the control in the same round, median",
    "(least..greatest). CPU: share of a core that the server took, over the whole run. published: they do",
    "not say which latency, nor whether refusals are errors; under limited stands how often their limiter",
    "acted. Rows with a FastAPI app have a control of their own. Peers hold one limit, set by hand.",
    "Users on Redis: 1000 users who have signed in, each with a limit that is asked for every time.",
)


def table(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Render a block for each level, the published figures first."""
    lines: list[str] = []
    for level in dict.fromkeys(row["level"] for row in found):
        here = [row for row in found if row["level"] == level]
        if level == BEYOND and here[0]["outcome"] != "pass":
            continue
        lines += ["", _line(f"{level[:-2]} requests/s", HEADINGS), *_published(level), *_rows(here)]
    return [*lines[1:], "", *NOTES]


def _published(level: str) -> Iterator[str]:
    if level in PUBLISHED:
        known = PUBLISHED[level]
        cells = (f"{known.mean_ms:g}", "", "", "", f"{known.error_ratio:.1%}", str(known.triggers))
        yield _line("published", cells)


def _rows(here: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    last = ""
    for row in here:
        variant, _, name = row["case"].partition("/")
        if variant in VARIANTS and variant != last:
            last = variant
            yield f"  {variant}: {VARIANTS[variant].title}"
        case = Case(variant, name) if name else Case("headroom", "bare")
        yield _line(f"{'    ' if name else '  '}{case.title}", _cells(row)) + f"  {row['outcome']}"


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    shares = (row["errors"], row["limited"], row["shed"])
    ratio = row["done_of_control"]
    return (
        *("-" if row[name] is None else f"{1e3 * row[name]:.0f}" for name in TIMES),
        *(f"{count / row['planned']:.1%}" for count in shares),
        f"{row['goodput_rps']:.0f}",
        f"{row['done_ratio']:.1%}",
        "-" if ratio is None else f"{ratio['median']:.2f} ({ratio['least']:.2f}..{ratio['greatest']:.2f})",
        f"{row['server_cpu']:.0%}",
    )


def _line(head: str, cells: Sequence[str]) -> str:
    widths = (8, 7, 7, 7, 8, 8, 9, 10, 8, 19, 6)
    return f"{head:38}" + "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=False))
