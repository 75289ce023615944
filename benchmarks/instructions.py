"""User-space instructions of one request, by callgrind, of each way to attach the limiter and of its peers.

Run: ``python -m benchmarks.instructions``, about nine minutes; with ``--apps address identify --loads full``,
one. ``--against COMMIT`` also measures that commit in the same run and prints the ratio. Instructions do not
depend on the load of the machine, so they show a difference of one percent where seconds show noise. They do
not show cache misses or system calls, so 100,000 callers are also timed, in pairs with 1,000.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.callgrind import NO_VALGRIND, ROOT, at_commit, environ, output, profiles
from benchmarks.instructions_driver import ATTACHMENTS, LOADS, REQUESTS, TOGGLE
from benchmarks.instructions_peers import FIELDS, PEERS
from benchmarks.shared.bars import Bar

DRIVER = ROOT / "benchmarks" / "instructions_driver.py"

PEER_ROWS = tuple(peer + fields for peer in PEERS for fields in ("", FIELDS))
FEWER_LOADS = {"bare": ("few",), "none": ("fresh", "few", "full")} | dict.fromkeys(
    PEER_ROWS, ("fresh", "few", "full", "refused")
)
"""Loads of an app that does not have all. Without a user limit no caller is rejected or remembered."""

TIMED = ("address", "identify", "header")
"""Attachments whose callers are remembered."""

ADDED = {"none": 30_000, "address": 50_000, "identify": 56_000, "header": 70_000}
"""Most instructions that a request of a full window may add to the app's own."""

OVER_PEER = {"address": 0.8, "identify": 0.9}
"""Most instructions over those of asgi-ratelimit with equal fields; rejections: over its empty ones."""

MANY_INSTRUCTIONS, MANY_TIME, MANY_MB = 1.2, 1.6, 45.0
"""Most of 100,000 callers over 1,000, and their memory."""

Figures = dict[str, dict[str, float]]
"""Instructions of one whole request by app and state."""


def count(checkout: Path, app: str, loads: Sequence[str]) -> dict[str, float]:
    """Count the instructions of one request in each state of these loads.

    Raises:
        RuntimeError: there are more or fewer profiles than the driver makes.
    """
    states = [state for load in loads for state in LOADS[load]]
    with tempfile.TemporaryDirectory() as folder:
        variables = environ(checkout, PYTHONDONTWRITEBYTECODE="1", **{TOGGLE: "1"})
        counts = profiles([str(DRIVER), app, *loads], variables, Path(folder), counts_at_start=False)
    if len(counts) != 2 * len(states):
        raise RuntimeError(f"{app}: {len(counts)} profiles, {2 * len(states)} expected")
    return {state: counts[2 * at + 1] / REQUESTS for at, state in enumerate(states)}


def timed(checkout: Path, app: str) -> dict[str, float]:
    """Time 1,000 and 100,000 callers, without callgrind."""
    with tempfile.TemporaryDirectory() as folder:
        read: dict[str, float] = json.loads(
            output([sys.executable, "-P", str(DRIVER), app, "seconds"], environ(checkout), Path(folder))
        )
        return read


def measure(checkout: Path, apps: Sequence[str], loads: Sequence[str]) -> dict[str, Figures]:
    """Measure one checkout."""
    found: dict[str, Figures] = {"instructions": {}, "seconds": {}}
    for app in apps:
        own = FEWER_LOADS.get(app, tuple(LOADS))
        if wanted := own if app == "bare" else [load for load in loads if load in own]:
            found["instructions"][app] = count(checkout, app, wanted)
        if "many" in loads and app in TIMED:
            found["seconds"][app] = timed(checkout, app)
    return found


def added(whole: Figures, app: str, state: str) -> float:
    """Return the instructions of a request without those of the app; a rejected one calls no app."""
    base = 0.0 if state == "refused" else sum(whole["bare"].values())
    return whole[app][state] - base


def bars(found: dict[str, Figures]) -> Iterator[Bar]:
    """Compute the bars of the rows that were measured."""
    whole = found["instructions"]
    for app, states in whole.items():
        if app in ADDED and "steady" in states:
            yield Bar(f"{app}, steady: instructions added", added(whole, app, "steady"), ADDED[app])
        if app in OVER_PEER:
            yield from _over_peer(whole, app)
        for order in LOADS["many"]:
            if order in states and "steady" in states:
                over = added(whole, app, order) / added(whole, app, "steady")
                yield Bar(f"{app}, {order}: instructions over 1,000 callers", over, MANY_INSTRUCTIONS)
    for app, figures in found["seconds"].items():
        for order in LOADS["many"]:
            yield Bar(f"{app}, {order}: time over 1,000 callers", figures[order], MANY_TIME)
        yield Bar(f"{app}: MB of 100,000 callers", figures["memory_mb"], MANY_MB)


def _over_peer(whole: Figures, app: str) -> Iterator[Bar]:
    for state, peer in (("steady", PEERS[0] + FIELDS), ("refused", PEERS[0])):
        if state in whole[app] and state in whole.get(peer, {}):
            over = added(whole, app, state) / added(whole, peer, state)
            yield Bar(f"{app}, {state}: over {peer}", over, OVER_PEER[app])


def table(now: Figures, before: Figures | None) -> str:
    """Render a line for each app and state."""
    lines = [
        f"{'instructions added to a request':48}{'now':>10}"
        + (f"{'before':>10}{'ratio':>8}" if before else "")
    ]
    for app, states in now.items():
        for state in states if app != "bare" else ():
            text = f"{app}, {state}" + (" (whole request)" if state == "refused" else "")
            line = f"{text:48}{added(now, app, state):10,.0f}"
            if before and app in before:
                then = added(before, app, state)
                line += f"{then:10,.0f}{added(now, app, state) / then:8.3f}"
            lines.append(line)
    return "\n".join(lines)


def main() -> int:
    """Measure, print and write the record; returns 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    rows = (*ATTACHMENTS, *PEER_ROWS)
    parser.add_argument("--apps", nargs="+", choices=rows, default=rows, metavar="APP", help=", ".join(rows))
    parser.add_argument("--loads", nargs="+", choices=list(LOADS), default=list(LOADS))
    parser.add_argument("--against", metavar="COMMIT", help="measure this commit in the same run")
    parser.add_argument("--write", action="store_true", help="keep the result in benchmarks/results")
    options = parser.parse_args()
    if shutil.which("valgrind") is None:
        print(NO_VALGRIND, file=sys.stderr)
        return 1
    own = ["bare", *(app for app in options.apps if app in ATTACHMENTS)]
    before = (
        at_commit(options.against, lambda tree: measure(tree, own, options.loads))
        if options.against
        else None
    )
    found = measure(ROOT, ["bare", *options.apps], options.loads)
    print(table(found["instructions"], before["instructions"] if before else None))
    for app, figures in found["seconds"].items():
        shown = ", ".join(f"{name} {value:.2f}" for name, value in figures.items())
        print(f"{app}, by the clock: {shown}")
    evaluated = list(bars(found))
    print("\n".join(map(str, evaluated)))
    result: dict[str, Any] = {**harness.machine("asgi-ratelimit", "limits"), "requests": REQUESTS, **found}
    result["bars"] = [bar.record() for bar in evaluated]
    if before:
        result |= {"against": options.against, "before": before}
    print(json.dumps(result))
    print(harness.line(result))
    if options.write:
        harness.keep("instructions", result)
    return 1 if any(bar.verdict == "MISSED" for bar in evaluated) else 0


if __name__ == "__main__":
    sys.exit(main())
