"""Cost of a GPU sample: eight devices of a simulated NVML library, or the devices of this machine.

Run: ``python -m benchmarks.gpu_sampling``. The stand-in is compiled (cc) and answers at once; with a state
file it opens and reads that at every call, without one what remains is our own code and the binding's; the
binding's part is known from the same calls without us.
A sample is a reading and what the throttle then does with it: joining, verdicts, control. What requests
notice of it over HTTP is measured last, for two minutes. ``--cards`` reads the real cards instead, and says
what each call costs.
"""

from __future__ import annotations

import argparse
import functools
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import harness, request_latency
from benchmarks.request_latency import CARDS, Scale
from benchmarks.shared.bars import Bar

if TYPE_CHECKING:
    from autoglm_throttle import Throttle
    from autoglm_throttle.types import GpuSample

CALLS = ("nvmlDeviceGet", "nvmlGpm")
"""Prefixes of the reading functions of the binding."""

OWN_CPU_MS = 1.0
"""Bound of the CPU time of a sample of eight devices."""
TITLES = {
    "with_file": "with the file",
    "without_file": "without it",
    "observe": "what the throttle does then",
    "sample": "a sample: both of these",
    "binding": "of that NVIDIA's binding",
    "readings": "the cards of this machine",
}
"""Row of the record -> title."""

PAUSE_S = 0.2
"""Seconds between two readings of real devices: GPM needs 0.1 s, and the provider is not read more often."""


def main() -> None:
    """Measure, print and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200, help="readings of each kind (default 200)")
    parser.add_argument("--cards", action="store_true", help="read the cards of this machine")
    parser.add_argument("--write", action="store_true", help="keep the result in benchmarks/results")
    parser.add_argument("--turns", type=int, default=20, help="rounds over HTTP (default 20); 0: none")
    parser.add_argument(
        "--turn-s", type=float, default=1.0, help="seconds of each row in a round (default 1)"
    )
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    logging.getLogger("autoglm_throttle").addHandler(logging.NullHandler())
    scale = request_latency.Scale(options.turns, options.turn_s, options.turn_s)
    if options.inside:
        print(json.dumps(inside(options.rounds, scale)))
        return
    figures = real(options.rounds) if options.cards else outside(options.rounds, scale)
    packages = ("nvidia-ml-py",) if options.cards else ("nvidia-ml-py", "uvicorn")
    result = {**harness.machine(*packages), "rounds": options.rounds, **figures}
    evaluated = bars(result)
    result["bars"] = [bar.record() for bar in evaluated]
    show(result, evaluated)
    if options.write:
        harness.keep("gpu_sampling_cards" if options.cards else "gpu_sampling", result)


def outside(rounds: int, scale: Scale) -> dict[str, Any]:
    """Build the simulated library and measure in a process that loads it."""
    from tests.fake_nvml.build import build

    with tempfile.TemporaryDirectory() as folder:
        environ = build(Path(folder))
        command = [sys.executable, "-m", "benchmarks.gpu_sampling", "--inside"]
        command += [f"--rounds={rounds}", f"--turns={scale.rounds}", f"--turn-s={scale.turn_s}"]
        done = subprocess.run(command, env=environ, check=True, stdout=subprocess.PIPE, text=True)
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def inside(rounds: int, scale: Scale) -> dict[str, Any]:
    """Measure readings, whole samples, and the latency of requests meanwhile."""
    figures = stand_in(rounds)
    if scale.rounds:
        folder = Path(os.environ["FAKE_NVML_FILE"]).parent
        figures["requests"] = request_latency.measure(scale, folder)
    return figures


def stand_in(rounds: int) -> dict[str, Any]:
    """Measure readings with and without the state file, then their processing by the throttle."""
    from autoglm_throttle import Throttle
    from autoglm_throttle.gpu.nvml.provider import NvmlProvider

    state = Path(os.environ["FAKE_NVML_FILE"])
    state.write_text(f"-1.count={CARDS}\n")
    now = 0.0
    source = NvmlProvider(environ={}, clock=lambda: now)

    def read() -> Sequence[GpuSample]:
        nonlocal now
        now += 1.0  # samples of GPM must not be too close
        rows = source.read()
        if len(rows) != CARDS or any(row.notes for row in rows):
            raise TypeError("another job was done: something was left out")
        return rows

    first = clocked(read)
    with_file = readings(read, rounds)
    state.unlink()
    without = readings(read, rounds)
    calls = recorded(read)
    binding = readings(lambda: [call() for call in calls], rounds)
    figures = samples(read, Throttle(gpu=source, sampling="manual", clock=lambda: now), rounds)
    source.close()
    figures |= {"with_file": with_file, "without_file": without, "binding": binding}
    own_ms = figures["sample"]["cpu_least_ms"] - binding["cpu_least_ms"]
    return {"cards": CARDS, "first_ms": first[0], **figures, "own_cpu_least_ms": own_ms}


def recorded(read: Callable[[], object]) -> list[Callable[[], object]]:
    """Record the binding calls of a reading, to repeat them without the provider."""
    import pynvml

    calls: list[Callable[[], object]] = []
    inner = False

    def kept(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            nonlocal inner
            if inner:  # one function of the binding calls another
                return call(*arguments, **options)
            calls.append(functools.partial(call, *arguments, **options))
            inner = True
            try:
                return call(*arguments, **options)
            finally:
                inner = False

        return run

    before = {name: getattr(pynvml, name) for name in dir(pynvml) if name.startswith(CALLS)}
    for name, call in before.items():
        setattr(pynvml, name, kept(call))
    try:
        read()
    finally:
        for name, call in before.items():
            setattr(pynvml, name, call)
    return calls


def samples(
    read: Callable[[], Sequence[GpuSample]], throttle: Throttle, rounds: int
) -> dict[str, dict[str, float]]:
    """Measure the processing of readings of busy devices, and the sum with the reading itself."""
    observed, whole = [], []
    rows: Sequence[GpuSample] = ()

    def keep() -> None:
        nonlocal rows
        rows = read()

    def observe() -> None:
        throttle.observe(rows)

    for number in range(rounds):
        reading = clocked(keep)
        rows = [busy(row, number) for row in rows]
        observed.append(clocked(observe))
        whole.append((reading[0] + observed[-1][0], reading[1] + observed[-1][1]))
    return {"observe": figures_of(observed), "sample": figures_of(whole)}


def busy(row: GpuSample, number: int) -> GpuSample:
    """Build the row of a busy device with advancing counters, so that no field is missing."""
    return replace(
        row,
        utilization_pct=60.0 + (number + row.index) % 40,
        power_w=500.0 + number % 7,
        energy_j=500.0 * number,
        sm_active_ratio=0.7,
        throttled_ns=1_000_000 * number,
        pcie_rx_bytes=10**9 * number,
        pcie_tx_bytes=10**9 * number,
    )


def real(rounds: int) -> dict[str, Any]:
    """Measure readings of the devices of this machine, then each call of the binding."""
    import pynvml

    from autoglm_throttle.gpu.nvml.provider import NvmlProvider

    source = NvmlProvider()
    begun = time.perf_counter()
    rows = source.read()
    first_ms = (time.perf_counter() - begun) * 1e3
    figures = readings(source.read, rounds, PAUSE_S)
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
        "readings": figures,
        "calls_us": {name: statistics.median(taken) for name, taken in sorted(calls.items())},
        "notes": sorted({record_micros for row in rows for record_micros in row.notes}),
    }


def timed_calls(binding: Any) -> dict[str, list[float]]:
    """Wrap the reading functions of the binding to record their microseconds."""
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
        if name.startswith(CALLS):
            setattr(binding, name, timed(name, getattr(binding, name)))
    return taken


def clocked(read: Callable[[], object]) -> tuple[float, float]:
    """Measure the wall and CPU milliseconds of one reading."""
    wall, cpu = time.perf_counter(), time.thread_time()
    read()
    return (time.perf_counter() - wall) * 1e3, (time.thread_time() - cpu) * 1e3


def readings(read: Callable[[], object], rounds: int, pause_s: float = 0.0) -> dict[str, float]:
    """Return the median and longest of some readings, and the least CPU time, which noise only increases."""
    taken = []
    for _ in range(rounds):
        if pause_s:
            time.sleep(pause_s)
        taken.append(clocked(read))
    return figures_of(taken)


def figures_of(taken: Sequence[tuple[float, float]]) -> dict[str, float]:
    """Summarize the results of `clocked`."""
    walls, cpus = [wall for wall, _ in taken], [cpu for _, cpu in taken]
    return {
        "wall_ms": statistics.median(walls),
        "wall_most_ms": max(walls),
        "cpu_ms": statistics.median(cpus),
        "cpu_least_ms": min(cpus),
    }


def bars(result: dict[str, Any]) -> list[Bar]:
    """Compute the bars of the simulated devices; on real ones the driver dominates."""
    evaluated = []
    if "own_cpu_least_ms" in result:
        text = f"a sample of {CARDS} cards, least CPU ms without the binding's"
        evaluated.append(Bar(text, result["own_cpu_least_ms"], OWN_CPU_MS))
    return evaluated + (request_latency.bars(result["requests"]) if "requests" in result else [])


def show(result: dict[str, Any], evaluated: Sequence[Bar]) -> None:
    """Print the figures."""
    title = f"reading of {result['cards']} cards"
    print(f"{title:28}{'wall ms':>10}{'most ms':>10}{'CPU ms':>10}{'least':>10}")
    for name, text in TITLES.items():
        if name in result:
            row = result[name]
            figures = (row["wall_ms"], row["wall_most_ms"], row["cpu_ms"], row["cpu_least_ms"])
            print(f"{text:28}" + "".join(f"{value:10.2f}" for value in figures))
    print(f"{'the first, which opens':28}{result['first_ms']:10.2f}")
    for name, micros in result.get("calls_us", {}).items():
        print(f"  {name:42}{micros:10.1f} us")
    for record_micros in result.get("notes", ()):
        print(f"  {record_micros}")
    if "requests" in result:
        request_latency.show(result["requests"])
    for bar in evaluated:
        print(bar)
    print(harness.line(result))


if __name__ == "__main__":
    main()
