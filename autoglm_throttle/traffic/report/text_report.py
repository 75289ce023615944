"""Formats a report for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from autoglm_throttle.traffic.report.formatting import NO_DATA, duration, printable, quantity, rate, share
from autoglm_throttle.traffic.report.schema import Document, GeneratorPart, TallyDocument
from autoglm_throttle.traffic.request_log import RequestResult

HEADINGS: tuple[str, ...] = (
    "segment",
    "priority",
    "planned",
    "answers",
    "limited",
    "shed",
    "errors",
    "goodput",
    "mean",
    "p50",
    "p95",
    "p99",
    "max",
)
"""Column headings; durations are those of served requests, from the intended start."""


def lines(document: Document) -> list[str]:
    """Format a report: the verdict, the objectives, one table, and the errors.

    Args:
        document: a report built by `make`.

    Returns:
        Lines without line ends; neither the first nor the last is empty.
    """
    text = [
        document["title"],
        document["verdict"]["text"],
        *_caveats(document),
        *_objectives(document),
        "",
        _load(document),
        *table(_rows(document)),
        "",
        _limits(document["load"]["limits_s"]),
        *_details(document["totals"]),
        _generator(document["generator"]),
    ]
    return [printable(line) for line in text]


def table(rows: Sequence[Sequence[str]], text_columns: int = 2) -> list[str]:
    """Align columns under their headings: text to the left, numbers to the right.

    Args:
        rows: the headings first.
        text_columns: number of leading text columns.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if place < text_columns else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _caveats(document: Document) -> list[str]:
    """Caveats that the sentence of the verdict does not contain."""
    text = document["verdict"]["text"]
    return [f"caveat: {caveat}" for caveat in document["verdict"]["caveats"] if caveat not in text]


def _objectives(document: Document) -> list[str]:
    results = document["verdict"]["objectives"]
    width = max((len(one["term"]) for one in results), default=0)
    return [
        f"  {'holds ' if one['holds'] else 'failed'}  {one['term']:<{width}}"
        f"  {quantity(one['value'], one['unit'])}"
        for one in results
    ]


def _load(document: Document) -> str:
    load = document["load"]
    mix = ", ".join(f"{name} {percent:g} %" for name, percent in load["mix"].items() if percent)
    parts = (
        load["shape"],
        f"{load['arrivals']} arrivals",
        f"{load['loop']} loop",
        f"seed {load['seed']}",
        f"{load['planned']} request{'s' * (load['planned'] != 1)} in {load['duration_s']:g} s",
        mix,
    )
    return ", ".join(part for part in parts if part)


def _rows(document: Document) -> list[tuple[str, ...]]:
    rows = [HEADINGS]
    segments = document["segments"]
    if len(segments) > 1:
        for segment in segments:
            rows += _segment(segment["name"], segment["tally"], segment["priorities"])
    rows += _segment("all", document["totals"], document["priorities"])
    if len(document["requests"]) > 1:
        rows += [_row(part["label"], "all", part["tally"]) for part in document["requests"]]
    return rows


def _segment(
    name: str, whole: TallyDocument, priorities: Mapping[str, TallyDocument]
) -> list[tuple[str, ...]]:
    parts = [(label, tally) for label, tally in priorities.items() if tally["planned"]]
    if len(parts) == 1:
        return [_row(name, parts[0][0], whole)]
    return [_row(name, "all", whole), *(_row("", label, tally) for label, tally in parts)]


def _row(segment: str, priority: str, tally: TallyDocument) -> tuple[str, ...]:
    response = tally["response"]
    return (
        segment,
        priority,
        str(tally["planned"]),
        rate(tally["rps"]),
        share(tally["limited_ratio"]),
        share(tally["shed_ratio"]),
        share(tally["error_ratio"]),
        share(tally["goodput"]["ratio"]),
        duration(response["mean_s"]),
        duration(response["p50_s"]),
        duration(response["p95_s"]),
        duration(response["p99_s"]),
        duration(response["max_s"]),
    )


def _limits(limits_s: Mapping[str, float]) -> str:
    limits = ", ".join(f"{name} {duration(limit_s)}" for name, limit_s in limits_s.items())
    return f"goodput: served within {limits}" if limits else "goodput: everything served"


def _details(totals: TallyDocument) -> list[str]:
    errors = [
        (outcome.label, totals["classes"][outcome.label])
        for outcome in RequestResult
        if outcome.failed and totals["classes"][outcome.label]
    ]
    reasons = [(reason or "no reason given", count) for reason, count in totals["reasons"].items()]
    found = [("statuses", totals["statuses"].items()), ("rejected for", reasons), ("errors", errors)]
    details = [f"{name}: {_counted(counts)}" for name, counts in found if counts]
    if totals["service"]["count"]:
        details.append(
            f"service time (from the write): p50 {duration(totals['service']['p50_s'])},"
            f" p99 {duration(totals['service']['p99_s'])}"
        )
    if totals["first_byte"]["count"]:
        first = totals["first_byte"]
        both = f"p50 {duration(first['p50_s'])}, p99 {duration(first['p99_s'])}"
        details.append(f"first byte (from the intended start): {both}")
    if totals["unsent"]:
        details.append(f"left out because the run was stopped: {totals['unsent']}")
    return details


def _counted(counts: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts)


def _generator(generator: GeneratorPart) -> str:
    cpu = generator["cpu_share"]
    busy = NO_DATA if cpu is None else share(cpu)
    return (
        f"generator: lag p99 {duration(generator['lag']['p99_s'])}, {busy} of a core,"
        f" {generator['connections']} connections, {generator['resent']} sent again"
    )
