"""Cost of a guarded call and admissions of half-open breakers, ours and those of other libraries.

Run: ``python -m benchmarks.breaker``, two minutes; ``--quick`` proves only that everything runs. It starts
servers of its own. Costs are CPU time of the calling thread, in interleaved rounds, medians of their ratios.
Ratios hold on any machine, absolute figures only on the one named; where a control is not steady, a missed
bar of speed is not counted.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from benchmarks import harness
from benchmarks.breakers import cost, fleet, opening, races, side_by_side, table
from benchmarks.breakers.bars import bars
from benchmarks.breakers.candidates import PACKAGES
from benchmarks.breakers.scale import QUICK, Scale
from tests.store.server import RedisServer


def _opening(scale: Scale) -> dict[str, Any]:
    with RedisServer() as server:
        return asyncio.run(opening.openings(server, scale))


def _half_open(scale: Scale) -> dict[str, Any]:
    with RedisServer() as server:
        return races.half_open(server, scale)


PARTS: Mapping[str, Callable[[Scale], Any]] = {
    "cost": cost.costs,
    "shared": fleet.shared,
    "opening": _opening,
    "half_open": _half_open,
    "threads": side_by_side.threads,
}


def _options() -> argparse.Namespace:
    logging.getLogger("autoglm_throttle").addHandler(logging.NullHandler())
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=Scale.rounds, help="rounds of the costs")
    parser.add_argument("--quick", action="store_true", help="short rounds, for whoever changes this")
    parser.add_argument(
        "--only", nargs="+", choices=PARTS, default=list(PARTS), help="some parts; never kept"
    )
    parser.add_argument("--write", action="store_true", help="keep the result in benchmarks/results")
    options = parser.parse_args()
    if options.write and (options.quick or options.only != list(PARTS)):
        parser.error("only a whole run is kept")
    return options


def main() -> None:
    """Measure, print, compute the bars and write the record."""
    options = _options()
    scale = QUICK if options.quick else replace(Scale(), rounds=options.rounds)
    begun = time.monotonic()
    found: dict[str, Any] = {}
    for part in (part for part in PARTS if part in options.only):
        found[part] = PARTS[part](scale)
        print(table.PARTS[part](found[part]), flush=True)
    evaluated = list(bars(found))
    print("\n" + "\n".join(map(str, evaluated)))
    result = {
        **harness.machine(*PACKAGES, "redis"),
        "rounds": scale.rounds,
        **found,
        "bars": [bar.record() for bar in evaluated],
    }
    print(f"\n{harness.line(result)}; {time.monotonic() - begun:.0f} s")
    if options.write:
        harness.keep("breaker", result)


if __name__ == "__main__":
    main()
