"""Instructions and CPU seconds of a start: from the first import to the response of the first request.

Run: ``python -m benchmarks.start``, about four minutes for each commit. ``--against COMMIT`` also measures
that commit in the same run and prints the ratios. Instructions are those of ``ThrottleMiddleware(app)`` in an
environment without settings, and of one request; the imports of all modules of others that this start loads
are subtracted. CPU seconds are those of a start with a ``CONFIG_FILE`` of many routes, imports left out, and
of ``autoglm-throttle check`` on the same file, the interpreter included: the fastest of some processes.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.callgrind import NO_VALGRIND, ROOT, at_commit, environ, output, profiles

DRIVER = ROOT / "benchmarks" / "start_driver.py"

STEPS = ("own modules", "settings", "throttle", "first request")
"""The parts of a start, in the order of the driver's marks."""

ROUTES = (0, 500, 1000, 2000)

RUNS = 5

KEYS = {
    "pattern": (),
    "all keys": ('methods = ["POST"]', 'priority = "high"', "cost = 2.5", 'user_limit = "100/minute"'),
}
"""Routes with a pattern alone, and with further keys."""

COMMANDS = ("seconds", "check")

Figures = dict[str, dict[str, float]]
"""Kind of figure -> part or number of routes -> instructions or CPU seconds."""


def config_file(routes: int, keys: Sequence[str]) -> str:
    """Write a configuration file."""
    tables = (["[[routes]]", f'pattern = "/v1/route-{number}"', *keys, ""] for number in range(routes))
    return "\n".join(line for table in tables for line in table)


def of_start(counts: Sequence[int], steps: Sequence[int]) -> dict[str, float]:
    """Name the profiles of the modes ``start`` and ``steps``.

    Raises:
        RuntimeError: there are more or fewer profiles than the driver makes.
    """
    if len(counts) != 2 or len(steps) != 1 + len(STEPS):
        raise RuntimeError(f"{len(counts)} and {len(steps)} profiles, 2 and {1 + len(STEPS)} expected")
    dependencies, start = counts
    return {"dependencies": dependencies, "start": start, **dict(zip(STEPS, steps[1:], strict=True))}


def instructions(variables: Mapping[str, str], folder: Path) -> dict[str, float]:
    """Count the instructions of a start and of its parts."""
    command = [sys.executable, "-P", str(DRIVER)]
    file = folder / "modules.txt"
    file.write_text(output([*command, "modules"], variables, folder))
    output(
        [*command, "start", str(file)], variables, folder
    )  # writes the bytecode that the counted runs read
    counts = (profiles([str(DRIVER), mode, str(file)], variables, folder) for mode in ("start", "steps"))
    return of_start(*counts)


def cpu_seconds(
    mode: str, keys: Sequence[str], variables: Mapping[str, str], folder: Path
) -> dict[str, float]:
    """Return the CPU seconds of a mode by number of routes, of the fastest process."""
    file = folder / "throttle.toml"
    command = [sys.executable, "-P", str(DRIVER), mode]
    variables = {**variables, "AUTOGLM_THROTTLE_CONFIG_FILE": str(file)}
    found: dict[str, float] = {}
    for routes in ROUTES:
        file.write_text(config_file(routes, keys))
        found[str(routes)] = min(float(output(command, variables, folder)) for _ in range(RUNS))
    return found


def measure(checkout: Path) -> Figures:
    """Measure one checkout."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        variables = environ(checkout, PYTHONPYCACHEPREFIX=str(folder / "bytecode"))
        figures: Figures = {"instructions": instructions(variables, folder)}
        for mode in COMMANDS:
            for title, keys in KEYS.items():
                figures[f"{mode}, {title}"] = cpu_seconds(mode, keys, variables, folder)
        return figures


def growth(seconds: Mapping[str, float]) -> float:
    """Return the ratio of the time added by all routes to that added by half of them: 2 if it is linear."""
    none, *_, half, most = seconds.values()
    return (most - none) / (half - none)


def table(now: Figures, before: Figures | None) -> str:
    """Render a line for each figure."""
    lines: list[str] = []
    for kind, figures in now.items():
        lines.append(f"{kind:28}{'now':>14}" + (f"{'before':>14}{'ratio':>8}" if before else ""))
        form = ",.0f" if kind == "instructions" else ".3f"
        for name, figure in figures.items():
            title = f"  {name}" if kind == "instructions" else f"  {int(name):,} routes"
            line = f"{title:28}{figure:14{form}}"
            if before:
                other = before[kind][name]
                line += f"{other:14{form}}{figure / other:8.3f}"
            lines.append(line)
        if kind != "instructions":
            line = f"{'  growth (2 is linear)':28}{growth(figures):14.2f}"
            lines.append(line + (f"{growth(before[kind]):14.2f}" if before else ""))
    return "\n".join(lines)


def main() -> int:
    """Measure, print and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", metavar="COMMIT", help="measure this commit in the same run")
    parser.add_argument("--write", action="store_true", help="keep the result in benchmarks/results")
    options = parser.parse_args()
    if shutil.which("valgrind") is None:
        print(NO_VALGRIND, file=sys.stderr)
        return 1
    before = at_commit(options.against, measure) if options.against else None
    now = measure(ROOT)
    print(table(now, before))
    packages = ("pydantic", "pydantic-settings", "starlette", "limits", "anyio")
    result: dict[str, Any] = {**harness.machine(*packages), "runs": RUNS, "figures": now}
    if before:
        result |= {"against": options.against, "before": before}
    print(harness.line(result))
    if options.write:
        harness.keep("start", result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
