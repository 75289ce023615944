"""A report, two reports side by side, and the progress of a run, for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from autoglm_throttle.traffic.histogram import Histogram
from autoglm_throttle.traffic.report.objectives import metric
from autoglm_throttle.traffic.report.schema import Document, Part
from autoglm_throttle.traffic.request_log import RequestResult

NO_DATA = "-"  # Shown in place of missing data

RATIOS = ("limited", "shed", "errors", "goodput")
TIMES = ("mean", "p50", "p95", "p99", "max")
# Column headings; durations are those of served requests, from the intended start.
HEADINGS = ("segment", "priority", "planned", "answers", *RATIOS, *TIMES)

# Seconds between two updates of the progress line on a terminal, and between two lines in a log.
TERMINAL_S, PLAIN_S = 1.0, 10.0

COMPARED = {  # Compared numbers, and their names in objectives
    "answers": "rps",
    **{name: name for name in ("done", "goodput", "limited", "shed")},
    "errors": "error",
    **{name: name for name in ("mean", "p50", "p95", "p99")},
    "service p99": "service.p99",
}

# Parts of `load` that must be equal for two runs to have the same load and the same measure of goodput.
LOAD = ("shape", "arrivals", "seed", "mix", "clients", "requests", "loop", "limits_s")

_RETURN, _CLEAR = "\r", "\x1b[K"


def duration(seconds: float | None) -> str:
    """Format with three digits and a unit: ``850 us``, ``20.5 ms``, ``1.20 s``."""
    if seconds is None:
        return NO_DATA
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} us"
    return f"{_digits(seconds * 1e3)} ms" if seconds < 1.0 else f"{_digits(seconds)} s"


def share(ratio: float | None) -> str:
    """Format as percent, with two decimals unless exactly 0 or 1: ``0 %``, ``0.35 %``, ``100 %``."""
    if ratio is None:
        return NO_DATA
    return f"{ratio * 100:.0f} %" if ratio in {0.0, 1.0} else f"{ratio * 100:.2f} %"


def rate(per_second: float | None) -> str:
    """Format as a rate per second: ``4969/s``, ``5.53/s``."""
    return NO_DATA if per_second is None else f"{_digits(per_second)}/s"


def quantity(value: float | None, unit: str) -> str:
    """Format a value in the unit of its objective: ``s``, ``ratio`` or ``rps``."""
    return {"s": duration, "ratio": share, "rps": rate}[unit](value)


def _digits(number: float) -> str:
    """Format with three digits, or with all digits before the decimal point."""
    decimals = 0 if number >= 100.0 else 1 if number >= 10.0 else 2
    return f"{number:.{decimals}f}"


def printable(text: str) -> str:
    """Replace control characters in external text, such as a reason in an answer, to protect the terminal."""
    return "".join(sign if sign.isprintable() else "?" for sign in text)


def table(rows: Sequence[Sequence[str]], text_columns: int = 2) -> list[str]:
    """Align columns under their headings: leading text columns to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if place < text_columns else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def lines(document: Document) -> list[str]:
    """Format a report: the verdict, the objectives, one table, and the errors; lines without line ends."""
    verdict, load, generator = document["verdict"], document["load"], document["generator"]
    width = max((len(one["term"]) for one in verdict["objectives"]), default=0)
    limits = ", ".join(f"{name} {duration(limit_s)}" for name, limit_s in load["limits_s"].items())
    mix = "".join(f", {name} {percent:g} %" for name, percent in load["mix"].items() if percent)
    text = [
        document["title"],
        verdict["text"],
        *(f"caveat: {caveat}" for caveat in verdict["caveats"] if caveat not in verdict["text"]),
        *(
            f"  {'holds ' if one['holds'] else 'failed'}  {one['term']:<{width}}"
            f"  {quantity(one['value'], one['unit'])}"
            for one in verdict["objectives"]
        ),
        "",
        f"{load['shape']}, {load['arrivals']} arrivals, {load['loop']} loop, seed {load['seed']},"
        f" {load['planned']} request{'s' * (load['planned'] != 1)} in {load['duration_s']:g} s{mix}",
        *table(_rows(document)),
        "",
        f"goodput: served within {limits}" if limits else "goodput: everything served",
        *_details(document["totals"]),
        f"generator: lag p99 {duration(generator['lag']['p99_s'])}, {share(generator['cpu_share'])} of a"
        f" core, {generator['connections']} connections, {generator['resent']} sent again",
    ]
    return [printable(line) for line in text]


def _rows(document: Document) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [HEADINGS]
    segments = document["segments"] if len(document["segments"]) > 1 else []
    whole = {"name": "all", "tally": document["totals"], "priorities": document["priorities"]}
    for part in (*segments, whole):
        used = [(label, tally) for label, tally in part["priorities"].items() if tally["planned"]]
        rows.append(_row(part["name"], used[0][0] if len(used) == 1 else "all", part["tally"]))
        if len(used) > 1:
            rows += [_row("", label, tally) for label, tally in used]
    if len(document["requests"]) > 1:
        rows += [_row(part["label"], "all", part["tally"]) for part in document["requests"]]
    return rows


def _row(segment: str, priority: str, tally: Part) -> tuple[str, ...]:
    response = tally["response"]
    ratios = (tally["limited_ratio"], tally["shed_ratio"], tally["error_ratio"], tally["goodput"]["ratio"])
    times = (response["mean_s"], response["p50_s"], response["p95_s"], response["p99_s"], response["max_s"])
    counts = (str(tally["planned"]), rate(tally["rps"]))
    return (segment, priority, *counts, *map(share, ratios), *map(duration, times))


def _details(totals: Part) -> list[str]:
    classes = totals["classes"]
    found = {
        "statuses": totals["statuses"],
        "rejected for": {reason or "no reason given": count for reason, count in totals["reasons"].items()},
        "errors": {
            one.label: classes[one.label] for one in RequestResult if one.failed and classes[one.label]
        },
    }
    details = [
        f"{name}: {', '.join(f'{label} {count}' for label, count in counts.items())}"
        for name, counts in found.items()
        if counts
    ]
    durations = {
        "service time (from the write)": totals["service"],
        "first byte (from the intended start)": totals["first_byte"],
    }
    details += [
        f"{name}: p50 {duration(times['p50_s'])}, p99 {duration(times['p99_s'])}"
        for name, times in durations.items()
        if times["count"]
    ]
    if totals["unsent"]:
        details.append(f"left out because the run was stopped: {totals['unsent']}")
    return details


def comparison(a: Document, b: Document) -> dict[str, Any]:
    """Compare all common numbers, ready for JSON; a ratio is b by a. Caveats: why they may not compare."""
    rows = list(_comparison_rows(a, b))
    return {"titles": [a["title"], b["title"]], "caveats": _caveats(a, b), "rows": rows}


def compare(a: Document, b: Document) -> list[str]:
    """Format two reports side by side for the terminal; metrics that are zero in both are left out."""
    result = comparison(a, b)
    rows = [("segment", "priority", "metric", "A", "B", "B/A")]
    for row in result["rows"]:
        segment, priority, name, unit, one, other, ratio = row.values()
        if one or other:
            both = quantity(one, unit), quantity(other, unit)
            rows.append((segment, priority, name, *both, NO_DATA if ratio is None else f"{ratio:.2f}"))
    titles = [f"{name}: {title}" for name, title in zip("AB", result["titles"], strict=True)]
    caveats = [f"note: {caveat}" for caveat in result["caveats"]]
    return [printable(line) for line in (*titles, *caveats, "", *table(rows, text_columns=3))]


def _caveats(a: Document, b: Document) -> list[str]:
    caveats = [
        f"not the same {part.removesuffix('_s')}: {a['load'][part]} and {b['load'][part]}"
        for part in LOAD
        if a["load"][part] != b["load"][part]
    ]
    for name, verdict in (("A", a["verdict"]), ("B", b["verdict"])):
        caveats += [f"{name} is not valid: {caveat}" for caveat in verdict["caveats"]]
        if verdict["aborted"]:
            caveats.append(f"{name} was stopped before its end")
    return caveats


def _pairs(a: Document, b: Document) -> Iterator[tuple[str, str, Part, Part]]:
    yield "all", "all", a["totals"], b["totals"]
    for label in (name for name in a["priorities"] if name in b["priorities"]):
        yield "all", label, a["priorities"][label], b["priorities"][label]
    names = [segment["name"] for segment in a["segments"]]
    if len(names) > 1 and names == [segment["name"] for segment in b["segments"]]:
        for number, (mine, theirs) in enumerate(zip(a["segments"], b["segments"], strict=True), 1):
            yield f"{number} ({mine['name']})", "all", mine["tally"], theirs["tally"]


def _comparison_rows(a: Document, b: Document) -> Iterator[dict[str, Any]]:
    for segment, priority, mine, theirs in _pairs(a, b):
        for name, objective in COMPARED.items():
            unit, measure = metric(objective)
            one, other = measure(mine), measure(theirs)
            yield {
                "segment": segment,
                "priority": priority,
                "metric": name,
                "unit": unit,
                "a": one,
                "b": other,
                "ratio": None if one is None or other is None or not one else other / one,
            }


class ProgressLine:
    """Counts results as they happen and formats the progress of the run; the time is passed in.

    A closed loop has 0 planned requests. On a terminal one line is rewritten; a log gets lines now and then.
    """

    def __init__(self, planned: int, duration_s: float, *, terminal: bool, width: int = 80) -> None:
        self._planned = f"/{planned}" if planned else ""
        self._duration_s = duration_s
        self._terminal = terminal
        self._width = width
        self._every_s = self._due_s = TERMINAL_S if terminal else PLAIN_S
        self._outcomes = [0] * len(RequestResult)
        self._recent_s: list[float] = []

    def record(self, index: int, outcome: RequestResult, response_s: float) -> None:  # noqa: ARG002 - an observer's
        """Count one result; called by a generator."""
        self._outcomes[outcome] += 1
        if outcome <= RequestResult.DEGRADED:
            self._recent_s.append(response_s)

    def line(self, elapsed_s: float, launched: int, in_flight: int) -> str:
        """Return the text to write now, including control characters; empty when no update is due."""
        if elapsed_s < self._due_s:
            return ""
        # Missed updates are skipped, not caught up.
        self._due_s += self._every_s * (1 + (elapsed_s - self._due_s) // self._every_s)
        outcomes, length_s, recent = self._outcomes, self._duration_s, Histogram()
        recent.record_all(self._recent_s)
        self._recent_s.clear()
        p50_s, p99_s = recent.percentiles((0.5, 0.99))
        over = elapsed_s > length_s
        text = (
            f"{elapsed_s:.0f}{' s, all sent' if over else f'/{length_s:.0f} s'}"
            f"  sent {launched}{self._planned}"
            f"  done {sum(outcomes[: RequestResult.CONNECTION])}  in flight {in_flight}"
            f"  p50 {duration(p50_s)}  p99 {duration(p99_s)}"
            f"  429 {outcomes[RequestResult.LIMITED]}  503 {outcomes[RequestResult.SHED]}"
            f"  errors {sum(outcomes[RequestResult.CLIENT_ERROR :])}"
        )
        return f"{_RETURN}{text[: self._width - 1]}{_CLEAR}" if self._terminal else f"{text}\n"

    def close(self) -> str:
        """Return the text that clears the progress line, so that further output starts on an empty line."""
        return f"{_RETURN}{_CLEAR}" if self._terminal else ""
