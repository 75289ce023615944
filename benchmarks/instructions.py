"""User-space instructions of one request, counted by callgrind; the bare app's are subtracted.

Run: ``python -m benchmarks.instructions``, about two minutes for each commit. ``--against COMMIT`` also
measures that commit in the same run and prints the ratio. Instructions do not depend on the load of the
machine, so they show a difference of one percent where seconds show noise. They do not show cache misses
or system calls.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.callgrind import NO_VALGRIND, ROOT, at_commit, environ, profiles
from benchmarks.instructions_driver import ATTACHMENTS, REQUESTS, STATES

DRIVER = ROOT / "benchmarks" / "instructions_driver.py"

Figures = dict[str, dict[str, int]]
"""Instructions of one request by attachment and state."""


def per_request(counts: list[int]) -> Figures:
    """Convert the profiles to instructions of one request, the bare app's taken off.

    Raises:
        RuntimeError: there are more or fewer profiles than the driver makes.
    """
    cases = [(attachment, state) for attachment in ("bare", *ATTACHMENTS) for state in STATES]
    if len(counts) != 1 + 2 * len(cases):
        raise RuntimeError(f"{len(counts)} profiles, {1 + 2 * len(cases)} expected")
    measured = {case: counts[2 + 2 * at] / REQUESTS for at, case in enumerate(cases)}
    return {
        attachment: {state: round(measured[attachment, state] - measured["bare", state]) for state in STATES}
        for attachment in ATTACHMENTS
    }


def measure(checkout: Path) -> Figures:
    """Measure one checkout."""
    with tempfile.TemporaryDirectory() as folder:
        variables = environ(checkout, PYTHONDONTWRITEBYTECODE="1")
        return per_request(profiles([str(DRIVER)], variables, Path(folder)))


def table(now: Figures, before: Figures | None) -> str:
    """Render a line for each attachment and state."""
    lines = [
        f"{'instructions of a request':28}{'now':>10}" + (f"{'before':>10}{'ratio':>8}" if before else "")
    ]
    for attachment, states in now.items():
        for state, count in states.items():
            line = f"{f'{attachment}, {state}':28}{count:10,.0f}"
            if before:
                line += f"{before[attachment][state]:10,.0f}{count / before[attachment][state]:8.3f}"
            lines.append(line)
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
    result: dict[str, Any] = {**harness.machine(), "requests": REQUESTS, "instructions": now}
    if before:
        result |= {"against": options.against, "before": before}
    print(harness.line(result))
    if options.write:
        harness.keep("instructions", result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
