"""The real `Throttle` under field conditions in virtual time, beside Gradient2 and a limit set by hand.

Run: ``python -m benchmarks.field``, or with ``--case restart,mixed`` some of the cases. Each table is printed
when its case is done. Time is virtual, so ``--check`` compares the figures byte by byte with the record.

The best possible results, which need the oracle or a sweep over constant limits, are kept in
``benchmarks/results/field_bounds.json``; ``--sweep`` computes them anew.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import logging
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from benchmarks import harness
from benchmarks.field_cases import registry
from benchmarks.field_cases.case import Case, Found, Job, Rows, medians

NAME, BOUNDS, TODAY = "field", "field_bounds", "field_today"

Bounds = dict[str, dict[str, dict[str, dict[str, float]]]]
"""Case -> variant -> seed -> figure."""

Pool = Callable[[Callable[[Job], Found], Iterable[Job]], Iterable[Found]]


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--case", type=_cases, default=tuple(registry.CASES), help=", ".join(registry.CASES))
    parser.add_argument("--seeds", type=int, default=3, help="seeds 1 to this (default 3)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default 2)")
    parser.add_argument("--limiters", type=lambda text: tuple(text.split(",")), help="such as ours")
    parser.add_argument("--variant", help="only variants whose name has this text")
    parser.add_argument(
        "--set",
        type=_setting,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="settings of the throttle",
    )
    parser.add_argument("--trace", metavar="PATH", help="lengths of LLM requests from an Azure trace")
    parser.add_argument(
        "--sweep", action="store_true", help="compute the best possible results anew, and keep them"
    )
    parser.add_argument(
        "--all", action="store_true", help="print every variant of the cases that are summarized"
    )
    parser.add_argument(
        "--write", nargs="?", const=NAME, metavar="NAME", help="keep the figures in benchmarks/results"
    )
    parser.add_argument(
        "--check", action="store_true", help="fail unless the figures are those that were kept"
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases, print their tables, and keep or compare the figures."""
    options = arguments(argv)
    bounds: Bounds = _kept(BOUNDS)
    today: dict[str, Rows] = _kept(TODAY).get("figures", {})
    figures: dict[str, Rows] = {}
    met = [0, 0]
    begun = time.perf_counter()
    with _pool(options.jobs) as pool:
        for name in options.case:
            case_begun = time.perf_counter()
            rows = _run(registry.CASES[name], options, bounds, pool)
            figures[name] = rows
            if options.sweep:
                _keep_bounds(name, bounds)
            shown = rows if options.all and registry.CASES[name].summarize else {}
            met_here = _print(registry.CASES[name], {**rows, **shown}, today.get(name, {}))
            met = [a + b for a, b in zip(met, met_here, strict=True)]
            print(f"{time.perf_counter() - case_begun:.0f} s\n", flush=True)
    print(f"{met[0]} of {met[1]} bars met, {time.perf_counter() - begun:.0f} s")
    if options.write:
        harness.keep(options.write, {**harness.machine(), "sha256": digest(figures), "figures": figures})
    return _check(figures) if options.check else 0


def digest(figures: dict[str, Rows]) -> str:
    """Hash the figures alone, without date and machine."""
    return hashlib.sha256(json.dumps(figures, sort_keys=True).encode()).hexdigest()


def _run(case: Case, options: argparse.Namespace, bounds: Bounds, pool: Pool) -> Rows:
    """Run all variants and seeds of a case."""
    limiters = tuple(name for name in options.limiters or case.limiters)
    kept = {} if options.sweep or options.trace else bounds.get(case.name, {})
    jobs = [
        Job(
            case.name,
            variant,
            seed,
            limiters,
            tuple(options.set),
            kept.get(variant, {}).get(str(seed)),
            options.trace,
        )
        for variant in case.variants
        if not options.variant or options.variant in variant
        for seed in range(1, min(options.seeds, case.seeds) + 1)
    ]
    found = list(zip(jobs, pool(registry.run, jobs), strict=True))
    for job, one in found:
        if one.bound is not None and not options.trace:
            bounds.setdefault(case.name, {}).setdefault(job.variant, {})[str(job.seed)] = one.bound
    rows = medians(found)
    if case.summarize is None:
        return rows
    return rows | case.summarize(rows) if options.all else case.summarize(rows)


def _print(case: Case, rows: Rows, today: Rows) -> tuple[int, int]:
    """Print the table of a case, and return the bars met and all bars."""
    limiters = list(next(iter(rows.values())))
    print(f"{case.name}: {case.title}")
    print(f"{'':24}{'':16}{'before':>9}" + "".join(f"{name:>10}" for name in limiters) + "  bar")
    bars = {(bar.variant, bar.figure): bar for bar in case.bars}
    met = count = 0
    for variant, by_limiter in rows.items():
        for figure, value in by_limiter[limiters[0]].items():
            bar = bars.get((variant, figure))
            verdict = ""
            if bar is not None and limiters[0] == "ours":
                verdict = f"  {bar.text:9}{'met' if bar.is_met(value) else 'MISSED'}"
                met, count = met + bar.is_met(value), count + 1
            before = today.get(variant, {}).get("ours", {}).get(figure)
            cells = "".join(f"{by_limiter[name][figure]:10.3f}" for name in limiters)
            print(f"{variant:24}{figure:16}{'' if before is None else f'{before:.3f}':>9}{cells}{verdict}")
    return met, count


def _check(figures: dict[str, Rows]) -> int:
    kept = _kept(NAME).get("figures", {})
    other = [
        name for name, rows in figures.items() if digest({name: kept.get(name, {})}) != digest({name: rows})
    ]
    print(
        f"other figures than those kept: {', '.join(other)}"
        if other
        else "the figures are those that were kept"
    )
    return 1 if other else 0


def _keep_bounds(case: str, bounds: Bounds) -> None:
    """Keep the best possible results of a case beside those of the others."""
    if case in bounds:
        all_kept = {**_kept(BOUNDS), case: bounds[case]}
        (harness.RESULTS / f"{BOUNDS}.json").write_text(json.dumps(all_kept, indent=1, sort_keys=True) + "\n")


def _kept(name: str) -> dict[str, Any]:
    path = harness.RESULTS / f"{name}.json"
    return dict(json.loads(path.read_text())) if path.exists() else {}


@contextlib.contextmanager
def _pool(jobs: int) -> Iterator[Pool]:
    """Yield what maps a function over jobs, in some processes or in this one."""
    if jobs == 1:
        yield map
        return
    with multiprocessing.get_context("spawn").Pool(jobs, _quiet) as pool:
        yield pool.imap


def _quiet() -> None:
    """Silence the logs of the package."""
    logging.getLogger("autoglm_throttle").setLevel(logging.CRITICAL)


def _cases(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    for name in names:
        if name not in registry.CASES:
            raise argparse.ArgumentTypeError(f"{name} is not one of {', '.join(registry.CASES)}")
    return names


def _setting(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


if __name__ == "__main__":
    _quiet()
    sys.exit(main())
