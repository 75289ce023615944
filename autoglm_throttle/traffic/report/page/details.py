"""The tables of the page: segments, priorities, kinds of requests, rejections, and run details."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from autoglm_throttle.traffic.report.page import units
from autoglm_throttle.traffic.report.page.latencies import SHARES, quantile_row
from autoglm_throttle.traffic.report.page.markup import Markup, tag
from autoglm_throttle.traffic.report.page.tables import Table
from autoglm_throttle.traffic.report.schema import Document, TallyDocument

NAMES = {"loop": "Event loop"}
"""Display names of keys of ``about`` that are unclear by themselves."""

HEAD = ("sent", "served", "in time", "limited", "shed", "errors", "p50", "p95", "p99")


def tables(document: Document) -> Iterator[Table]:
    """Yield all tables that have content."""
    yield _segments(document)
    if len(document["requests"]) > 1:
        rows = [
            (part["label"], *_cells(part["tally"]), units.seconds(part["tally"]["first_byte"]["p99_s"]))
            for part in document["requests"]
        ]
        yield Table("Kinds of requests", ("request", *HEAD, "first byte p99"), rows)
    yield from _rejections(document)
    yield _times(document)


def run_details(document: Document) -> Markup:
    """Build the list of load parameters and generator figures."""
    return tag(
        "dl",
        *(tag("div", tag("dt", name), tag("dd", value)) for name, value in _run_details(document)),
        class_="details",
    )


def _segments(document: Document) -> Table:
    rows: list[tuple[str, ...]] = []
    strong = set()
    for part in document["segments"]:
        strong.add(len(rows))
        span = f"{units.clock(round(part['start_s'], 1))} to {units.clock(round(part['end_s'], 1))}"
        rows.append((f"{part['name']}, {span}", *_cells(part["tally"])))
        rows += _priorities(part["priorities"])
    strong.add(len(rows))
    rows.append(("all", *_cells(document["totals"])))
    rows += _priorities(document["priorities"])
    return Table("By segment and priority", ("segment", *HEAD), rows, frozenset(strong))


def _priorities(tallies: dict[str, TallyDocument]) -> list[tuple[str, ...]]:
    return [(name, *_cells(tally)) for name, tally in tallies.items() if tally["planned"]]


def _cells(tally: TallyDocument) -> tuple[str, ...]:
    sent, classes, response = tally["planned"] - tally["unsent"], tally["classes"], tally["response"]
    served = classes["ok"] + classes["degraded"]
    return (
        units.count(sent),
        units.share(served / sent if sent else None),
        units.share(tally["goodput"]["ratio"]),
        units.share(tally["limited_ratio"]),
        units.share(tally["shed_ratio"]),
        units.share(tally["error_ratio"]),
        *map(units.seconds, (response["p50_s"], response["p95_s"], response["p99_s"])),
    )


def _rejections(document: Document) -> Iterator[Table]:
    names = [name for name, tally in document["priorities"].items() if tally["reasons"]]
    if names:
        whole = Counter(document["totals"]["reasons"]).most_common()
        reasons = {name: document["priorities"][name]["reasons"] for name in names}
        rows = [
            (
                reason or "not given",
                *(units.count(reasons[name].get(reason, 0)) for name in names),
                units.count(total),
            )
            for reason, total in whole
        ]
        yield Table("Why requests were rejected", ("reason", *names, "all"), rows)
    statuses = document["totals"]["statuses"]
    rows = [(f"{status}", units.count(number)) for status, number in statuses.items()]
    errors = {
        name.replace("_", " "): number
        for name, number in document["totals"]["classes"].items()
        if number and name in ("connection", "timeout", "malformed", "unanswered", "dropped")
    }
    rows += [(f"none: {name}", units.count(number)) for name, number in errors.items()]
    yield Table("Statuses of the answers", ("status", "requests"), rows)


def _times(document: Document) -> Table:
    totals = document["totals"]
    durations = {
        "response, from the intended start": totals["response"],
        "service, from the write": totals["service"],
        "first byte": totals["first_byte"],
        "rejections": totals["rejection"],
        "wait given by Retry-After": totals["promised"],
        "lag of the generator": document["generator"]["lag"],
    }
    head = ("time", "count", "mean", *(name.removesuffix("_s").replace("p999", "p99.9") for name in SHARES))
    return Table(
        "Times", head, [quantile_row(name, times) for name, times in durations.items() if times["count"]]
    )


def _run_details(document: Document) -> Iterator[tuple[str, str]]:
    load, made = document["load"], document["generator"]
    processes = units.many(made["processes"], "process", "processes")
    loop = (
        "open: no request waited for an answer"
        if load["loop"] == "open"
        else "closed: users waited for answers"
    )
    yield "Shape", load["shape"]
    yield "Arrivals", f"{load['arrivals']}, seed {load['seed']}"
    yield "Loop", loop
    yield "Mix", ", ".join(f"{name} {percent:g} %" for name, percent in load["mix"].items())
    yield "Clients", units.count(load["clients"])
    yield "Requests", ", ".join(load["requests"])
    yield (
        "In time means",
        ", ".join(f"{name} {units.seconds(limit)}" for name, limit in load["limits_s"].items()),
    )
    yield (
        "Generator",
        f"{units.many(made['connections'], 'connection')}, {processes}, {made['resent']:,} sent again",
    )
    yield "Its share of a core", units.share(made["cpu_share"])
    yield "Sending overran by", units.seconds(made["overrun_s"])
    names = ((NAMES.get(name, name.capitalize()), value) for name, value in document["about"].items())
    yield from ((name, f"{value}") for name, value in names)
