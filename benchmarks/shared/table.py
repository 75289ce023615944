"""Text output of each part."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from benchmarks.shared.rows import TITLES

HEAD = ("decisions/s", "store/it", "p99 ms", "errors", "trips", "conns", "server us", "spread")


def title(name: str) -> str:
    """Return the title of a row."""
    return TITLES.get(name, name)


def decisions(found: Mapping[str, Any]) -> str:
    """Render a table for each depth."""

    def lines() -> Iterator[str]:
        for depth, part in found.items():
            head = f"{depth} task{'s' if depth != '1' else ''}"
            yield f"\n{head:34}" + "".join(f"{cell:>12}" for cell in HEAD)
            for name, row in part["rows"].items():
                yield f"  {title(name):32}" + _cells(
                    (row["per_s"], ",.0f"),
                    (row["ours_over_it"], ".2f"),
                    (row["p99_ms"], ".2f"),
                    (sum(row["errors"].values()), ",d"),
                    (row["round_trips"], ".3f"),
                    (row["connections"], "d"),
                    (row["server_us"], ".1f"),
                    (row["spread"], ".2f"),
                )
            yield f"  {'control: a loop of fixed work':32}{'':84}{part['control']['spread']:12.2f}"

    return "\n".join(lines())


def _cells(*cells: tuple[Any, str]) -> str:
    return "".join(f"{'-' if value is None else format(value, form):>12}" for value, form in cells)


def _grid(head: str, found: Mapping[str, Mapping[str, Any]], figures: Mapping[str, str]) -> str:
    """Render one line for each row, one column for each figure."""
    first = f"\n{head:34}" + "".join(f"{name:>20}" for name in figures)
    rest = (
        f"  {title(name):32}"
        + "".join(f"{_cell(row.get(figure), form):>20}" for figure, form in figures.items())
        for name, row in found.items()
    )
    return "\n".join((first, *rest))


def _cell(value: Any, form: str) -> str:
    if isinstance(value, dict):
        value = sum(value.values())
    return "-" if value is None else format(value, form)


def open_loop(found: Mapping[str, Any]) -> str:
    """Render latencies at a fixed rate of arrivals."""
    figures = {"p50_ms": ".2f", "p99_ms": ".2f", "lag_p99_ms": ".2f", "errors": ",d", "answered": ",d"}
    return _grid("open loop, 5,000 arrivals/s", found, figures)


def exactness(found: Mapping[str, Any]) -> str:
    """Render admissions above the limit."""
    limit = found["limit"]
    head = f"\nadmitted of {found['crowd']} at once on a cold key, limit {limit}: "
    cold = ", ".join(f"{title(name)} {_burst(one)}" for name, one in found["cold"].items())
    many = ", ".join(f"{title(name)} {_burst(one)}" for name, one in found["processes"].items())
    worst = "\n".join(f"  {title(name):32}{ratio:12.2f}" for name, ratio in found["worst_window"].items())
    return f"{head}{cold}\nfrom 4 processes: {many}\nmost admitted in a window, over the limit\n{worst}"


def _burst(one: Mapping[str, int]) -> str:
    unanswered = one["unanswered"]
    return f"{one['admitted']}" + (f" ({unanswered} unanswered)" if unanswered else "")


def memory(found: Mapping[str, float]) -> str:
    """Render bytes per user."""
    return (
        f"\nbytes per user: exact at 100 {found['store']:.0f}, compact at 10,000 {found['store-compact']:.0f}"
        f", at 1,000,000 {found['store-compact-million']:.0f}, limits moving at 100 {found['moving']:.0f}"
    )


def attack(found: Mapping[str, Any]) -> str:
    """Render decisions with and without the deny cache."""
    figures = {
        "per_s": ",.0f",
        "asked_of_refused": ".2%",
        "asked": ".2%",
        "round_trips": ".4f",
        "admitted": ".1%",
    }
    rows = {f"{name} the refused cache": found[name] for name in ("with", "without")}
    return f"{_grid('90 % from exhausted users', rows, figures)}\n  with over without: {found['speedup']:.1f}"


def cancelled(found: Mapping[str, Any]) -> str:
    """Render replies, connections and throughput with a quarter of the callers cancelled."""
    figures = {
        "wrong": "d",
        "right": ",d",
        "cancelled": ",d",
        "errors": ",d",
        "opened": ",d",
        "calm_per_s": ",.0f",
        "kept": ".2f",
    }
    return _grid("25 % of 64 tasks cancelled", found, figures)


def failure(found: Mapping[str, Any]) -> str:
    """Render the cost of an outage."""
    figures = {
        "first_ms": ".1f",
        "slowest_ms": ".1f",
        "after_third_ms": ".2f",
        "after_third_p99_ms": ".2f",
        "lag_ms": ".1f",
        "control": ".1f",
        "recovery_s": ".2f",
    }
    return _grid("the server", found, figures)


PARTS: Mapping[str, Callable[[Any], str]] = {
    "decisions": decisions,
    "open_loop": open_loop,
    "exactness": exactness,
    "memory": memory,
    "attack": attack,
    "cancelled": cancelled,
    "failure": failure,
}
"""Part of a record -> its text."""
