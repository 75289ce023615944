"""The headline experiment: 100, 1000, 3000 and 5000 requests/s over real HTTP, with and without the throttle.

Run: ``python -m benchmarks.headline``, about eleven minutes. Each row is a uvicorn process of its own with
the simulated inference service on one core; the load generator, open loop and with even arrivals of
10/30/60 % high, mid and low, runs on another. Beside the rows runs a control for each app, raw and FastAPI:
the service with headroom and nothing in front of it. A round counts for the rows of an app only if its
control could answer everything, so that a slow machine gives no figures instead of wrong ones. ``--hold 60``
holds 5000/s for a minute; ``--full`` takes three hours.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.headline_rows import cases, control, evaluation
from benchmarks.headline_rows.cases import Scale
from benchmarks.headline_rows.chart import draw_chart
from benchmarks.headline_rows.run_case import run_case
from benchmarks.headline_rows.table import table
from tests.store.server import RedisServer

LONG_S = 600.0
"""The published run lasted ten minutes."""

CHART = Path(__file__).parents[1] / "docs" / "headline.svg"


def rounds(scale: Scale) -> list[dict[str, Any]]:
    """Run every row once in each round, each round starting with another one."""
    by_key = {case.key: case for case in scale.cases}
    seen = []
    with RedisServer() as redis:
        for number in range(scale.rounds):
            one = {}
            for key in control.order(list(by_key), number):
                one[key] = run_case(by_key[key], scale, redis.url)
                print(f"round {number + 1} of {scale.rounds}: {key}", file=sys.stderr, flush=True)
            seen.append(one)
    return seen


def measure(scale: Scale) -> dict[str, Any]:
    """Run all rounds, evaluate each row, and compute the bars."""
    seen = rounds(scale)
    found = evaluation.rows(seen, scale)
    packages = ("uvicorn", "uvloop", "httptools", "fastapi", "redis")
    peers = sorted({case.row for case in scale.cases} & set(cases.PEERS))
    return {
        **harness.machine(*packages, *peers),
        "scale": {"shape": str(scale), "rounds": scale.rounds},
        "status": evaluation.status(found),
        "published": {level: asdict(one) for level, one in cases.PUBLISHED.items()},
        "rows": found,
        "bars": [bar.record() for bar in evaluation.bars(found)],
        "all": seen,
    }


def show(result: dict[str, Any]) -> None:
    """Print the whole result, the verdict first."""
    argv = {0: "pass", 1: "fail", 3: "inconclusive: the machine was too slow, its control did not pass"}
    print(f"{argv[result['status']]}; {result['scale']['shape']}, {result['scale']['rounds']} rounds\n")
    print("\n".join(table(result["rows"])))
    print("\n".join(str(bar) for bar in evaluation.bars(result["rows"])))
    print(harness.line(result))


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--full", action="store_true", help="20 s a level, 5 rounds, then 5000/s for ten minutes"
    )
    how.add_argument("--hold", type=float, metavar="SECONDS", help="5000/s for so long, fewer rows")
    how.add_argument(
        "--quick", action="store_true", help="seconds instead of minutes, and no figures to keep"
    )
    how.add_argument("--draw", action="store_true", help="only draw docs/headline.svg from the kept result")
    parser.add_argument("--rounds", type=int, help="rounds of all rows (default 3; 5 with --full)")
    parser.add_argument("--write", action="store_true", help="keep the result, and draw docs/headline.svg")
    options = parser.parse_args(argv)
    if options.quick and options.write:
        parser.error("--quick gives no figures to keep")
    if any(number is not None and not number > 0 for number in (options.rounds, options.hold)):
        parser.error("--rounds and --hold must be above 0")
    return options


def scales(options: argparse.Namespace) -> dict[str, Scale]:
    """Return the scales to run, by the name of their record."""
    if options.quick:
        return {"headline": cases.QUICK}
    if options.hold is not None:
        return {"headline_hold": cases.hold(options.hold, options.rounds or 3)}
    chosen = cases.FULL if options.full else cases.SHORT
    made = {"headline": replace(chosen, rounds=options.rounds or chosen.rounds)}
    return made | ({"headline_hold": cases.hold(LONG_S, 1)} if options.full else {})


def draw() -> None:
    """Draw the chart of the kept result."""
    kept = json.loads((harness.RESULTS / "headline.json").read_text())
    CHART.write_text(draw_chart(kept["rows"]), encoding="utf-8")
    print("drawn: docs/headline.svg")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and write the record; the exit status is that of the evaluation."""
    logging.getLogger("autoglm_throttle").addHandler(logging.NullHandler())
    options = arguments(argv)
    if options.draw:
        draw()
        return 0
    worst = 0
    for name, scale in scales(options).items():
        possible = scale.possible()
        missing = sorted({case.row for case in scale.cases} - {case.row for case in possible.cases})
        result = measure(possible)
        show(result)
        print("".join(f"not installed, so without a row: {row}\n" for row in missing), end="")
        worst = max(worst, result["status"])
        if options.write:
            harness.keep(name, result)
    if options.write and options.hold is None:
        draw()
    return worst


if __name__ == "__main__":
    sys.exit(main())
