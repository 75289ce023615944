"""Interleaved rounds, medians and ratios; the machine and the date beside every figure."""

from __future__ import annotations

import argparse
import datetime
import json
import logging
import os
import platform
import statistics
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"

Rows = Mapping[str, Callable[[], float]]


def arguments(description: str, rounds: int) -> argparse.Namespace:
    """Parse the common options, and silence the logs of the package."""
    logging.getLogger("autoglm_throttle").addHandler(logging.NullHandler())
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=rounds, help=f"rounds of all rows (default {rounds})")
    parser.add_argument("--write", action="store_true", help="keep the result in benchmarks/results")
    return parser.parse_args()


def interleave(rows: Rows, rounds: int) -> dict[str, list[float]]:
    """Run every row once in each round; the order rotates, so that a slow minute affects all alike."""
    names = list(rows)
    seen: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        start = number % len(names)
        for name in names[start:] + names[:start]:
            seen[name].append(rows[name]())
    return seen


def ratio(seen: Mapping[str, Sequence[float]], name: str, base: str, less: str | None = None) -> float:
    """Return the median over rounds of name / base, with the row ``less`` subtracted from both."""
    off = seen[less] if less else [0.0] * len(seen[name])
    return statistics.median((a - c) / (b - c) for a, b, c in zip(seen[name], seen[base], off, strict=True))


def machine(*packages: str) -> dict[str, Any]:
    """Describe the machine and the versions."""
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "versions": {name: metadata.version(name) for name in ("autoglm-throttle", *packages)},
    }


def line(result: Mapping[str, Any]) -> str:
    """Render the machine in one line, for the end of a table."""
    return (
        f"{result['date']}, {result['processor']}, {result['cores']} cores, Python {result['python']}; "
        + ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    )


def keep(name: str, result: Mapping[str, Any]) -> None:
    """Write the record of a run."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(result, indent=2) + "\n")
    print(f"kept in benchmarks/results/{path.name}")


def _processor() -> str:
    try:
        for row in Path("/proc/cpuinfo").read_text().splitlines():
            if row.startswith("model name"):
                return row.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
