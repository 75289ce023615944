"""What a reading of the GPUs costs: eight cards of a stand-in for NVIDIA's library, or this machine's cards.

Run: ``python -m benchmarks.gpu_sampling``. The stand-in is compiled (cc) and answers at once; with a state
file it opens and reads that at every call, without one what remains is our own code and the binding's.
``--cards`` reads the real cards instead, and says what each call costs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import harness

CARDS = 8
PAUSE_S = 0.2
"""Between two readings of real cards: GPM needs 0.1 s, and the provider is never asked more often."""


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200, help="readings of each kind (default 200)")
    parser.add_argument("--cards", action="store_true", help="read the cards of this machine")
    parser.add_argument("--write", action="store_true", help="keep the result in benchmarks/results")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        print(json.dumps(stand_in(options.rounds)))
        return
    figures = real(options.rounds) if options.cards else outside(options.rounds)
    result = {**harness.machine("nvidia-ml-py"), "rounds": options.rounds, **figures}
    show(result)
    if options.write:
        harness.keep("gpu_sampling_cards" if options.cards else "gpu_sampling", result)


def outside(rounds: int) -> dict[str, Any]:
    """Build the stand-in and measure in a process that loads it."""
    from tests.fake_nvml.build import build

    with tempfile.TemporaryDirectory() as folder:
        environ = build(Path(folder))
        command = [sys.executable, "-m", "benchmarks.gpu_sampling", "--inside", "--rounds", str(rounds)]
        done = subprocess.run(command, env=environ, check=True, capture_output=True, text=True)
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def stand_in(rounds: int) -> dict[str, Any]:
    """Readings with the state file, then without."""
    from autoglm_throttle.gpu.nvml import NvmlProvider

    state = Path(os.environ["FAKE_NVML_FILE"])
    state.write_text(f"-1.count={CARDS}\n")
    now = 0.0
    source = NvmlProvider(environ={}, clock=lambda: now)

    def read() -> None:
        nonlocal now
        now += 1.0  # samples of GPM must not be too close
        if any(row.notes for row in source.read()):
            raise TypeError("another job was done: something was left out")

    first = clocked(read)
    with_file = readings(read, rounds)
    state.unlink()
    without = readings(read, rounds)
    source.close()
    return {"cards": CARDS, "first_ms": first[0], "with_file": with_file, "without_file": without}


def real(rounds: int) -> dict[str, Any]:
    """Readings of this machine's cards, then what each call of the binding took."""
    import pynvml

    from autoglm_throttle.gpu.nvml import NvmlProvider

    source = NvmlProvider()
    begun = time.perf_counter()
    rows = source.read()
    first_ms = (time.perf_counter() - begun) * 1e3
    told = readings(source.read, rounds, PAUSE_S)
    source.close()
    calls = timed_calls(pynvml)
    for _ in range(max(rounds // 10, 3)):
        time.sleep(PAUSE_S)
        rows = source.read()
    version = pynvml.nvmlSystemGetDriverVersion()
    source.close()
    return {
        "cards": len(rows),
        "names": sorted({row.name for row in rows}),
        "driver": version,
        "first_ms": first_ms,
        "readings": told,
        "calls_us": {name: statistics.median(taken) for name, taken in sorted(calls.items())},
        "notes": sorted({note for row in rows for note in row.notes}),
    }


def timed_calls(binding: Any) -> dict[str, list[float]]:
    """Let every reading function of the binding note its microseconds."""
    taken: dict[str, list[float]] = {}

    def timed(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            begun = time.perf_counter()
            try:
                return call(*arguments, **options)
            finally:
                taken.setdefault(name, []).append((time.perf_counter() - begun) * 1e6)

        return run

    for name in dir(binding):
        if name.startswith(("nvmlDeviceGet", "nvmlGpm")):
            setattr(binding, name, timed(name, getattr(binding, name)))
    return taken


def clocked(read: Callable[[], object]) -> tuple[float, float]:
    """Milliseconds and milliseconds of processor time of one reading."""
    wall, cpu = time.perf_counter(), time.thread_time()
    read()
    return (time.perf_counter() - wall) * 1e3, (time.thread_time() - cpu) * 1e3


def readings(read: Callable[[], object], rounds: int, pause_s: float = 0.0) -> dict[str, float]:
    """The median and the longest of some readings; the least processor time, as neighbours only add to it."""
    taken = []
    for _ in range(rounds):
        if pause_s:
            time.sleep(pause_s)
        taken.append(clocked(read))
    walls, cpus = [wall for wall, _ in taken], [cpu for _, cpu in taken]
    return {
        "wall_ms": statistics.median(walls),
        "wall_most_ms": max(walls),
        "cpu_ms": statistics.median(cpus),
        "cpu_least_ms": min(cpus),
    }


def show(result: dict[str, Any]) -> None:
    """Print the figures."""
    title = f"reading of {result['cards']} cards"
    print(f"{title:28}{'wall ms':>10}{'most ms':>10}{'CPU ms':>10}{'least':>10}")
    for name in ("with_file", "without_file", "readings"):
        if name in result:
            row = result[name]
            told = (row["wall_ms"], row["wall_most_ms"], row["cpu_ms"], row["cpu_least_ms"])
            print(f"{name:28}" + "".join(f"{value:10.2f}" for value in told))
    print(f"{'the first, which opens':28}{result['first_ms']:10.2f}")
    for name, micros in result.get("calls_us", {}).items():
        print(f"  {name:42}{micros:10.1f} us")
    for note in result.get("notes", ()):
        print(f"  {note}")
    print(harness.line(result))


if __name__ == "__main__":
    main()
