"""Section of the guards page about their cost, made from the record of the benchmark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.breakers.candidates import CANDIDATES, Candidate, Ours
from benchmarks.harness import line

COLUMNS = (
    "",
    "a closed call: coroutine",
    "plain function",
    "`async with`",
    "a rejection",
    "a closed call, shared",
    "let through half-open: of 1000 tasks",
    "of 64 threads",
    "8 threads × 100 ms",
)
COMPARED = ("coroutine", "refused", "told")
"""Forms with the ratio of ours to the candidate."""


def breakers_part(kept: Mapping[str, Any]) -> str:
    """Render a row for each candidate, then a sentence for each figure that only ours has."""
    rows = "".join(_cells(*_row(kind, kept)) for kind in CANDIDATES)
    text = "".join(f"- {sentence}\n" for sentence in _sentences(kept))
    return (
        f"{_cells(*COLUMNS)}|{'---|' * len(COLUMNS)}\n{rows}"
        "\nCalls and rejections: CPU time beyond a bare call, with the retry time if the library gives one. "
        f"Shared: time with the server on the same processors.\n\n{text}"
        f"\n`benchmarks/breaker.py`, medians of {kept['rounds']} rounds, {kept['shared']['server']}: "
        f"{line(kept)}.\n"
    )


def _row(kind: type[Candidate], kept: Mapping[str, Any]) -> Iterator[str]:
    costs, race = kept["cost"], kept["half_open"][kind.name]
    rejected = "told" if kind.name in costs["told"]["rows"] else "refused"
    yield f"{kind.package} {kept['versions'][kind.package]}"
    for form in ("coroutine", "function", "block", rejected):
        yield _added(form, costs[form]["rows"].get(kind.name), kind)
    yield _shared(kept["shared"]["rows"].get(kind.name))
    for kind_of_task in ("tasks", "threads"):
        yield _range(race[kind_of_task])
    yield f"{kept['threads'][kind.name]:.2f} s"


def _added(form: str, cost: Mapping[str, float] | None, kind: type[Candidate]) -> str:
    if cost is None:
        return "-"
    beside = form in COMPARED and kind is not Ours
    return f"{cost['ns']:,.0f} ns" + (f" (ours: {cost['ours_over_it']:.2f} of it)" if beside else "")


def _shared(row: Mapping[str, float] | None) -> str:
    if row is None:
        return "-"
    commands = f"{row['commands']:.0f} command{'s' * (round(row['commands']) != 1)}"
    return f"{row['wall_us']:,.1f} µs, {commands}"


def _range(seen: Mapping[str, int]) -> str:
    return f"{seen['least']}" if seen["least"] == seen["most"] else f"{seen['least']} to {seen['most']}"


def _sentences(kept: Mapping[str, Any]) -> Iterator[str]:
    adds = {name: row["ns"] for name, row in kept["cost"]["coroutine"]["rows"].items()}
    yield (
        f"With `slow_call_s` ours adds {adds['slow_call_s']:.0f} ns to a closed call, "
        f"with a listener {adds['listener']:.0f} ns, "
        f"with a static fallback {adds['fallback'] / 1e3:.1f} µs, "
        f"with cached responses {adds['stale'] / 1e3:.1f} µs."
    )
    race = kept["half_open"][Ours.name]
    yield (
        f"Half-open, it lets one of 1000 tasks through in {_ones(race['tasks'])} rounds, "
        f"one of 64 threads in {_ones(race['threads'])}, "
        f"one of 100 tasks in two processes in {_ones(race['processes'])}."
    )
    idle, busy, cold = (kept["opening"][row_name] for row_name in ("idle", "busy", "cold"))
    yield (
        f"An opening is known in another process within {idle['median_ms']:.1f} ms, "
        f"at most {idle['max_ms']:.1f}; with a busy main thread "
        f"within {busy['median_ms']:.1f} ms, at most {busy['max_ms']:.1f}. "
        f"In {cold['refused']} of {cold['of']} new processes the first call was rejected, "
        f"after {cold['max_ms']:.0f} ms at most."
    )
    yield from _without_redis(kept["shared"]["rows"])


def _ones(seen: Mapping[str, int]) -> str:
    return (
        f"{seen['of']} of {seen['of']}" if seen["least"] == seen["most"] == 1 else f"not all of {seen['of']}"
    )


def _without_redis(rows: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    text = ", ".join(
        f"{kind.package} {rows[kind.name]['lost_wall_us']:,.1f} µs"
        + f" and {rows[kind.name]['lost_errors']:.0%} errors".replace("%", " %")
        * bool(rows[kind.name]["lost_errors"])
        for kind in CANDIDATES
        if kind.name in rows
    )
    yield f"After Redis is killed, a closed call takes: {text}."


def _cells(*cells: str) -> str:
    return f"| {' | '.join(cells)} |\n"
