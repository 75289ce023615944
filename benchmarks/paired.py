"""Calls of a guard and decisions in Redis, over those of another commit, in alternating runs.

Run: ``python -m benchmarks.paired --against COMMIT``, about two minutes. Each pair runs the workloads of
`benchmarks.paired_worker` in a new process for either version, the first one in turn. The figure is the
median of the ratios of the pairs, which holds on any machine; it is above 1 where this version is faster.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks import harness
from benchmarks.callgrind import ROOT, at_commit
from tests.store.server import RedisServer

WORKER = ROOT / "benchmarks" / "paired_worker.py"
BAR = 0.97
"""Least median ratio."""


def run(tree: Path, url: str) -> dict[str, float]:
    """Run the workloads once with the package of one tree."""
    environ = os.environ | {"PYTHONPATH": str(tree)}
    command = [sys.executable, "-P", str(WORKER), url]  # -P: benchmarks/redis.py would shadow the library
    ended = subprocess.run(command, env=environ, cwd=tree, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(ended.stdout)
    return found


def ratios(before: Path, pairs: int) -> dict[str, list[float]]:
    """Return the ratios of each workload, one for each pair."""
    found: dict[str, list[float]] = {}
    with RedisServer() as server:
        for number in range(pairs):
            trees = (ROOT, before) if number % 2 else (before, ROOT)
            seen = {tree: run(tree, server.url) for tree in trees}
            for name, rate in seen[ROOT].items():
                found.setdefault(name, []).append(rate / seen[before][name])
    return found


def main() -> int:
    """Measure, print and keep the result; returns 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", metavar="COMMIT", required=True, help="the version to compare with")
    parser.add_argument("--pairs", type=int, default=10, help="alternating pairs of runs")
    parser.add_argument("--write", action="store_true", help="keep the result in benchmarks/results")
    options = parser.parse_args()
    found = at_commit(options.against, lambda tree: ratios(tree, options.pairs))
    medians = {name: statistics.median(each) for name, each in found.items()}
    for name, each in found.items():
        print(f"{name:18} {medians[name]:6.3f}  from {min(each):.3f} to {max(each):.3f}")
    result = {**harness.machine("redis", "httpx"), "against": options.against, "ratios": found}
    if options.write:
        harness.keep("paired", result)
    missed = [name for name, median in medians.items() if median < BAR]
    print(f"bar {BAR}: " + (f"missed by {', '.join(missed)}" if missed else "met by all"))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
