"""User limits shared by processes: ours on Redis, other libraries, and the floor, in one run.

Run: ``python -m benchmarks.redis``, about five minutes; ``--quick`` takes half a minute and proves only that
everything runs. It starts a server of its own. Ratios hold on any machine, absolute figures only on the one
named; client and server share its processors. Each part has a control, and where that is not steady a missed
bar is not counted.
"""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks import harness
from benchmarks.shared import table
from benchmarks.shared.attack import attacked
from benchmarks.shared.bars import bars
from benchmarks.shared.bench import QUICK, RedisBench, Scale, redis_bench
from benchmarks.shared.cancelled import measure
from benchmarks.shared.exact import exactness
from benchmarks.shared.outage import failure
from benchmarks.shared.rows import CANDIDATES, COUNTER, LONG_DEADLINE
from benchmarks.shared.throughput import decisions, open_loops
from benchmarks.shared.user_memory import memory

PACKAGES = ("redis", "hiredis", "limits", "throttled-py", "asgi-ratelimit")
CANCELS = ("store", "throttle", "moving-raised")


def _cancelled(bench: RedisBench) -> dict[str, Any]:
    ours, peer = bench.scale.cancel_ours, bench.scale.cancel_peer
    return {
        name: measure(bench, CANDIDATES[name], peer if name == "moving-raised" else ours) for name in CANCELS
    }


def _exactness(bench: RedisBench) -> dict[str, Any]:
    windows = {name: LONG_DEADLINE[name] for name in ("store", "moving-raised")}
    windows |= {"fixed-raised": CANDIDATES["fixed-raised"], "counter": COUNTER}
    return exactness(bench, LONG_DEADLINE, windows)


PARTS: Mapping[str, Callable[[RedisBench], Any]] = {
    "decisions": lambda bench: decisions(bench, CANDIDATES),
    "open_loop": lambda bench: open_loops(bench, CANDIDATES),
    "exactness": _exactness,
    "memory": lambda bench: memory(bench, LONG_DEADLINE["store"], LONG_DEADLINE["moving-raised"]),
    "attack": attacked,
    "cancelled": _cancelled,
    "failure": failure,
}
"""Parts in the order in which they run: the last one kills the server."""


def _options() -> argparse.Namespace:
    logging.getLogger("autoglm_throttle").addHandler(logging.NullHandler())
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=Scale.rounds, help="rounds of the decisions a second")
    parser.add_argument("--quick", action="store_true", help="one short round, for whoever changes this")
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
    scale = QUICK if options.quick else Scale(rounds=options.rounds)
    begun = time.monotonic()
    found: dict[str, Any] = {}
    with redis_bench(scale) as bench:
        name = bench.server.binary.name
        for part in (part for part in PARTS if part in options.only):
            found[part] = PARTS[part](bench)
            print(table.PARTS[part](found[part]), flush=True)
    evaluated = list(bars(found))
    print("\n".join(map(str, evaluated)))
    result = {
        **harness.machine(*PACKAGES),
        "server": name,
        "rounds": scale.rounds,
        "limit": "100/minute",
        **found,
        "bars": [bar.record() for bar in evaluated],
    }
    print(f"\n{name}; {harness.line(result)}; {time.monotonic() - begun:.0f} s")
    if options.write:
        harness.keep("redis", result)


if __name__ == "__main__":
    main()
