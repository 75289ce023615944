"""The real `Throttle` around a simulated service in virtual time: goodput under overload, by priority.

Run: ``python -m benchmarks.closed_loop``. It is compared with an oracle that knows the service, with no
limit, and with limiters of other designs, for the same requests. Time is virtual; only the date and the
machine in the record differ between runs, so ``--check`` compares the figures byte by byte with the record.

``--robust N`` draws N services at random instead, from number ``--first M`` on; ``--knob`` turns the
latency budget.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks import harness
from benchmarks.loop import plot, robust, study, table
from benchmarks.loop.limiters.registry import NAMES, POLICIES
from benchmarks.loop.scenarios import SCENARIOS, SIXTEEN

BUDGETS = (0.12, 0.18, 0.25, 0.35, 0.45, 0.6)
"""Shares of the objective that a request may spend inside the service."""


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--scenarios", type=_names(tuple(SCENARIOS)), default=tuple(SCENARIOS), help="some, by name"
    )
    parser.add_argument("--policies", type=_names(NAMES), default=NAMES, help=f"some of {','.join(NAMES)}")
    parser.add_argument("--seeds", type=int, default=5, help="seeds 1 to this (default 5)")
    parser.add_argument(
        "--set",
        type=_setting,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="another value of a setting of the throttle, such as min_share=0",
    )
    parser.add_argument(
        "--write", action="store_true", help="keep the result and the plots in benchmarks/results"
    )
    parser.add_argument(
        "--check", action="store_true", help="fail unless the figures are those that were kept"
    )
    parser.add_argument("--robust", type=int, metavar="N", help="N services drawn at random instead")
    parser.add_argument(
        "--first",
        type=int,
        default=robust.EVALUATED_FROM,
        metavar="M",
        help=f"number of the first of them (default {robust.EVALUATED_FROM}); each is always the same",
    )
    parser.add_argument("--knob", action="store_true", help="the latency budget from 0.12 to 0.6 instead")
    return parser.parse_args()


def main() -> int:
    """Run, print and write the record."""
    logging.getLogger("autoglm_throttle").addHandler(logging.NullHandler())
    options = arguments()
    begun = time.perf_counter()
    name, run = _mode(options)
    figures = run(options)
    print(f"{time.perf_counter() - begun:.0f} s")
    if options.check:
        return _check(name, figures)
    if options.write:
        harness.keep(name, {**harness.machine(), "sha256": digest(figures), "figures": figures})
    return 0


def _mode(options: argparse.Namespace) -> tuple[str, Callable[[argparse.Namespace], dict[str, Any]]]:
    """Return the name of the record, and the function that makes its figures."""
    if options.robust:
        return "robust", run_random
    return ("closed_loop_knob", measure_latency_budget) if options.knob else ("closed_loop", full)


def full(options: argparse.Namespace) -> dict[str, Any]:
    """Run all scenarios with all limiters: the medians and the bars."""
    wanted = tuple((name, name, tuple(options.set) if name in POLICIES else ()) for name in options.policies)
    seeds = range(1, options.seeds + 1)
    results = study.run(
        [study.Task(SCENARIOS[name], seed, wanted) for name in options.scenarios for seed in seeds]
    )
    medians = study.medians(results)
    print(table.text(medians, [name for name in NAMES if name in ("oracle", *options.policies)]))
    found = {
        limiter: table.bars(medians, limiter)
        for limiter in ("adaptive", "concurrency")
        if limiter in options.policies
    }
    for limiter, of_limiter in found.items():
        print(f"{limiter}\n{table.verdicts(of_limiter)}\n")
    if options.write:
        plot.write([result for result in results if result.seed == 1], harness.RESULTS)
    return {
        "seeds": options.seeds,
        "medians": _written(medians),
        "mean_of_16": {limiter: round(table.mean_of_16(medians, limiter), 4) for limiter in options.policies},
        "bars": {limiter: [_kept(bar) for bar in of_limiter] for limiter, of_limiter in found.items()},
    }


def digest(figures: Mapping[str, Any]) -> str:
    """Hash the figures alone, without date and machine, to compare two runs."""
    return hashlib.sha256(json.dumps(figures, sort_keys=True).encode()).hexdigest()


def _check(name: str, figures: Mapping[str, Any]) -> int:
    kept = json.loads((harness.RESULTS / f"{name}.json").read_text())["sha256"]
    same = digest(figures) == kept
    print(
        "the figures are those that were kept"
        if same
        else f"other figures than those kept: {digest(figures)}"
    )
    return 0 if same else 1


def _written(medians: table.Medians) -> dict[str, Any]:
    """Convert medians for JSON, which has no infinity."""
    return {
        scenario: {
            limiter: {name: "never" if value == math.inf else value for name, value in row.items()}
            for limiter, row in by_limiter.items()
        }
        for scenario, by_limiter in medians.items()
    }


def _kept(bar: table.Bar) -> dict[str, Any]:
    return {**asdict(bar), "value": "never" if bar.value == math.inf else round(bar.value, 4)}


def run_random(options: argparse.Namespace) -> dict[str, Any]:
    """Run random services: the bars of goodput less three points, and the worst services."""
    print(f"{robust.DRAWN}\n{robust.EVALUATED}\n")
    numbers = range(options.first, options.first + options.robust)
    limiters = tuple((name, name, tuple(options.set) if name in POLICIES else ()) for name in robust.LIMITERS)
    results = study.run([study.Task(robust.scenario(number), 1, limiters) for number in numbers])
    medians = study.medians(results)
    print(table.text(medians, ("oracle", *robust.LIMITERS)))
    found = {limiter: table.bars(medians, limiter, robust.SLACK) for limiter in ("concurrency", "adaptive")}
    for limiter, of_limiter in found.items():
        print(f"{limiter}\n{table.verdicts(of_limiter)}\n")
    summary = {limiter: robust.summary(medians, limiter) for limiter in robust.LIMITERS}
    for limiter, figures in summary.items():
        print(
            f"{limiter}: {figures['within']} of {len(medians)} services are within the bars for the worst one"
        )
    return {
        "drawn": robust.DRAWN,
        "judged": robust.EVALUATED,
        "first": options.first,
        "services": options.robust,
        "doors": summary,
        "bars": {limiter: [_kept(bar) for bar in of_limiter] for limiter, of_limiter in found.items()},
    }


def measure_latency_budget(options: argparse.Namespace) -> dict[str, Any]:
    """Measure the trade-off of the latency budget: the tail of the high class against goodput."""
    limiters = tuple((f"{budget:g}", "adaptive", (("latency_budget", budget),)) for budget in BUDGETS)
    seeds = range(1, options.seeds + 1)
    medians = study.medians(study.run([study.Task(one, seed, limiters) for one in SIXTEEN for seed in seeds]))
    print(
        f"{'latency budget':16}{'mean of 16':>12}{'worst':>8}"
        + "".join(f"{name:>24}" for name in table.CONSTANT)
    )
    print(" " * 36 + "".join(f"{'goodput, p99, /oracle':>24}" for _ in table.CONSTANT))
    for name, _, _ in limiters:
        cells = [medians[scenario][name] for scenario in table.CONSTANT]
        print(
            f"{name:16}{table.mean_of_16(medians, name):12.3f}"
            f"{table.worst_of_16(medians, name, 'goodput'):8.3f}"
            + "".join(f"{c['goodput']:10.3f}{c['high_p99_s']:7.2f}{c['high_p99_over']:7.2f}" for c in cells)
        )
    return _written(medians)


def _names(known: Sequence[str]) -> Any:
    def read(text: str) -> tuple[str, ...]:
        names = tuple(text.split(","))
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name} is not one of {', '.join(known)}")
        return names

    return read


def _setting(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    try:
        return name, float(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} is not a name, = and a number") from None


if __name__ == "__main__":
    sys.exit(main())
