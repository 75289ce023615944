"""Field conditions over real sockets: idle holders, cheap answers, restarts, workers, two client packages.

Run: ``python -m benchmarks.field_sockets``. Each case runs a server process of its own, uvicorn and granian,
with the wrapped service at default settings unless its row says more. ``--cases "gpu sdk"`` runs some,
``--quick`` shortens them. With ``--write`` the run is kept beside the run of the version before the change.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import logging
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.shared.bars import Bar
from benchmarks.socket_cases import holders, overloads, sdk
from benchmarks.socket_cases.servers import COMMANDS, served

NAME = "field_sockets"
SERVED_AT_LEAST = 0.9
"""Share of the capacity that the callers of the client packages get while they call."""

BODY_TIMEOUT_S = 3.0
Rows = dict[str, Any]


def holder(quick: bool) -> Rows:
    """Measure plain requests of other users beside idle holders."""
    seconds = 5.0 if quick else 10.0
    found = {}
    for kind in COMMANDS:
        for name, case in holders.CASES.items():
            with served(kind) as server:
                held = asyncio.run(holders.run(server, case, seconds))
            found[f"{name}, {kind}"] = {
                "served_by_second": held.shares(),
                "after_first_second": held.share_from(1),
                "holders": held.statuses,
                "state": held.state,
            }
    return found


def body(_quick: bool) -> Rows:
    """Measure the answers to heads whose body never comes, with a short time-out."""
    found = {}
    for kind in COMMANDS:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "throttle.toml"
            path.write_text(f"body_timeout_s = {BODY_TIMEOUT_S}\n")
            with served(kind, file=str(path)) as server:
                held = asyncio.run(
                    holders.run(server, holders.CASES["heads without body"], 3 * BODY_TIMEOUT_S)
                )
        found[kind] = {
            "answers": held.statuses,
            "after_first_second": held.share_from(1),
            "state": held.state,
        }
    return found


def gpu(quick: bool) -> Rows:
    """Measure real answers in time beside 600 answers of 404 a second."""
    seconds = 15.0 if quick else 30.0
    found = {}
    for kind in COMMANDS:
        alone = overloads.cheap_beside_gpu(kind, 0, seconds)
        beside = overloads.cheap_beside_gpu(kind, 600, seconds)
        ratio = beside["in_time_rps"] / alone["in_time_rps"]
        found[kind] = {"alone": alone, "beside": beside, "ratio": ratio}
    return found


def restart(quick: bool) -> Rows:
    """Measure the high class at three times the capacity after the only worker was killed, or one of two."""
    seconds = 25.0 if quick else 40.0
    return {f"{number} of uvicorn": overloads.restart(number, 3.0, seconds) for number in (1, 2)}


def workers(quick: bool) -> Rows:
    """Measure the high class of four workers at five times the capacity, by how callers connect."""
    seconds = 15.0 if quick else 35.0
    run = functools.partial(overloads.workers, 4, 5.0, seconds)
    # Two cores carry 250 new connections a second, hardly 500.
    return {"kept connections": run(), "new connections, GPU of 50/s": run(capacity_rps=50.0, fresh=True)}


def packages(quick: bool) -> Rows:
    """Measure 160 looping callers of each client package against 8 slots of a second."""
    seconds, call_s = (4.0, 0.2) if quick else (20.0, 1.0)
    run = functools.partial(sdk.run, "uvicorn", callers=160, seconds=seconds, call_s=call_s)
    found = {package: run(package) for package in sdk.PACKAGES}
    for row in found.values():
        row["served_over_capacity"] = row["served_meanwhile"] * call_s / (8 * seconds)
    return found


CASES: dict[str, Callable[[bool], Rows]] = {
    "holders": holder,
    "body": body,
    "gpu": gpu,
    "restart": restart,
    "workers": workers,
    "sdk": packages,
}


def bars(found: Rows) -> Iterator[Bar]:
    """Compute the bars of the cases that ran."""
    for name, row in found.get("holders", {}).items():
        yield Bar(f"{name}: others served", row["after_first_second"], 1.0, at_most=False)
    for name, row in found.get("body", {}).items():
        yield Bar(f"64 heads, {name}: answers of 408", row["answers"].get(408, 0), 64, at_most=False)
    for name, row in found.get("gpu", {}).items():
        yield Bar(f"600 404s/s, {name}: real answers in time over alone", row["ratio"], 0.95, at_most=False)
    for name, row in found.get("restart", {}).items():
        yield Bar(f"a worker killed, {name}: high in time", row["in_time"]["high"], 0.95, at_most=False)
    for name, row in found.get("workers", {}).items():
        yield Bar(f"four workers at 5x, {name}: high in time", row["in_time"]["high"], 0.90, at_most=False)
    for name, row in found.get("sdk", {}).items():
        yield Bar(f"{name}, 160 callers: failed calls", row["failed_share"], 0.10)
        meanwhile = row["served_over_capacity"]
        yield Bar(f"{name}, 160 callers: served over capacity", meanwhile, SERVED_AT_LEAST, at_most=False)


def kept() -> dict[str, Any]:
    """Read the record of the last run; empty: there is none."""
    path = harness.RESULTS / f"{NAME}.json"
    record: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return record


def main() -> None:
    """Measure, print and write the record."""
    logging.getLogger("autoglm_throttle").addHandler(logging.NullHandler())
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", default=" ".join(CASES), help="names of cases")
    parser.add_argument("--quick", action="store_true", help="shorter cases")
    parser.add_argument("--write", action="store_true", help="keep the result in benchmarks/results")
    parser.add_argument("--before", action="store_true", help="keep it as the figures before the change")
    options = parser.parse_args()
    found = {}
    for name in options.cases.split():
        found[name] = CASES[name](options.quick)
        print(json.dumps({name: found[name]}), flush=True)
    evaluated = list(bars(found))
    print("\n".join(map(str, evaluated)))
    record = kept()
    result = {
        **harness.machine("uvicorn", "granian", "openai", "anthropic"),
        "cases": found,
        "bars": [bar.record() for bar in evaluated],
    }
    print(harness.line(result))
    if options.before:
        harness.keep(NAME, {**record, "before": result})
    elif options.write:
        result["cases"] = record.get("cases", {}) | found
        result["bars"] = [bar.record() for bar in bars(result["cases"])]
        harness.keep(NAME, {**result, "before": record.get("before", {})})


if __name__ == "__main__":
    main()
