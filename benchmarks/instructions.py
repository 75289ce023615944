"""User-space instructions of one request, counted by callgrind; the bare app's are subtracted.

Run: ``python -m benchmarks.instructions``, about two minutes for each commit. ``--against COMMIT`` also
measures that commit in the same run and prints the ratio. Instructions do not depend on the load of the
machine, so they show a difference of one percent where seconds show noise. They do not show cache misses
or system calls.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.instructions_driver import ATTACHMENTS, REQUESTS, STATES

ROOT = Path(__file__).resolve().parents[1]
DRIVER = ROOT / "benchmarks" / "instructions_driver.py"

NO_VALGRIND = "valgrind is not installed on this machine (Debian: the package valgrind); nothing was measured"

MARK = "getppid"
"""The C function that closes a profile; only the driver calls it, around each measured part."""

SUMMARY = re.compile(r"^summary: (\d+)$", re.MULTILINE)

Figures = dict[str, dict[str, int]]
"""Instructions of one request by attachment and state."""


def profiles(checkout: Path, folder: Path) -> list[int]:
    """Run the driver on a checkout and return the instructions of each profile, in order.

    Raises:
        RuntimeError: the driver failed.
    """
    out = folder / "callgrind"
    command = ["valgrind", "--tool=callgrind", f"--dump-before={MARK}", f"--callgrind-out-file={out}", "-q"]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("AUTOGLM_THROTTLE_")}
    done = subprocess.run(
        [*command, sys.executable, "-P", str(DRIVER)],
        env=environ | {"PYTHONHASHSEED": "0", "PYTHONPATH": str(checkout), "PYTHONDONTWRITEBYTECODE": "1"},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"the driver failed on {checkout}:\n{done.stderr}")
    numbers = sorted(int(path.suffix[1:]) for path in folder.glob("callgrind.*"))
    texts = [(folder / f"callgrind.{number}").read_text() for number in numbers]
    return [int(match[1]) for text in texts if (match := SUMMARY.search(text))]


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
        return per_request(profiles(checkout, Path(folder)))


def measure_commit(commit: str) -> Figures:
    """Measure a commit in a work tree of its own, which is removed afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), commit], check=True)
        try:
            return measure(tree)
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


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
    before = measure_commit(options.against) if options.against else None
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
