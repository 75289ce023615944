"""Sections of pages about the cost of a request, made from the kept record of `benchmarks.instructions`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.harness import line
from benchmarks.instructions import PEER_ROWS, added
from benchmarks.instructions_driver import ATTACHMENTS, LOADS
from benchmarks.instructions_peers import FIELDS, PEERS

TITLES = {
    "none": "no user limit",
    "address": "by address: the cheapest",
    "identify": "`identify=`",
    "header": "by key, checked beside its address",
}
"""Attachments and their titles."""

PEER = PEERS[0] + FIELDS
"""The peer that is compared: it does the same work for its callers."""


def instructions_part(kept: Mapping[str, Any]) -> str:
    """Render a row for each way to attach the limiter and for each peer."""
    whole = kept["instructions"]
    head = (
        "",
        "an admitted request adds",
        f"over {PEER}",
        f"a rejected one, over {PEERS[0]}",
        "100,000 callers over 1,000: instructions",
        "time",
        "memory",
    )
    rows = [
        _cells(TITLES.get(app, app), *_figures(kept, app))
        for app in (*ATTACHMENTS, *PEER_ROWS)
        if app in whole
    ]
    table = f"{_cells(*head)}|{'---|' * len(head)}\n{''.join(rows)}"
    return f"{table}\n`benchmarks/instructions.py`: {line(kept)}.\n"


def _figures(kept: Mapping[str, Any], app: str) -> tuple[str, ...]:
    whole, timed = kept["instructions"], kept["seconds"].get(app)
    steady = added(whole, app, "steady")
    refused = _over(whole, app, "refused", PEERS[0]) if "refused" in whole[app] else "-"
    cells = (f"{steady:,.0f} instructions", _over(whole, app, "steady", PEER), refused)
    if timed is None:
        return (*cells, "-", "-", "-")
    many = max(added(whole, app, order) for order in LOADS["many"]) / steady
    slower = max(timed[order] for order in LOADS["many"])
    return (*cells, f"{many:.2f}", f"{slower:.2f}", f"{timed['memory_mb']:.0f} MB")


def _over(whole: Mapping[str, Mapping[str, float]], app: str, state: str, peer: str) -> str:
    figures = {name: dict(states) for name, states in whole.items()}
    return f"{added(figures, app, state) / added(figures, peer, state):.2f}"


def cost_part(kept: Mapping[str, Any]) -> str:
    """Render the usual cases and the cheapest one in two sentences."""
    us = {app: kept["seconds"][app]["added_us"] for app in ("identify", "header", "address")}
    over = {app: _over(kept["instructions"], app, "steady", PEER) for app in us}
    return (
        f"With `identify=` a request costs {us['identify']:.0f} µs more, by key {us['header']:.0f} µs; by"
        f" address, the cheapest, {us['address']:.0f} µs.\nThat is {over['identify']}, {over['header']} and"
        f" {over['address']} times the instructions of {PEERS[0]} with the same header fields"
        f" ([benchmarks](docs/benchmarks.md)).\n"
    )


def _cells(*cells: str) -> str:
    return f"| {' | '.join(cells)} |\n"
