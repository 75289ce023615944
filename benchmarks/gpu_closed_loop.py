"""A real GPU under overload: goodput of a batching transformer service at 1 to 10 times its capacity.

On a machine with an NVIDIA GPU, from the root of the repository, with nothing but Python 3.11 or newer::

    python3 -m venv .venv-gpu && .venv-gpu/bin/pip install '.[nvml,traffic]' torch
    .venv-gpu/bin/python -m benchmarks.gpu_closed_loop --write

Where Python has PyTorch already, ``python3 -m pip install '.[nvml,traffic]'`` is enough. It takes 8 minutes,
or less with ``--minutes``: cases without time are skipped and named. ``--write`` keeps the record in
benchmarks/results, ``--out FILE`` anywhere else, and both from the first measurement on, so that an
interrupted run leaves its results.

First the device alone: idle, a kernel of one block that spins, small products, memory-bound decoding, a bf16
matrix product; each with its telemetry and its verdicts with responses ("moving") and without ("silent"), and
then the fit of the thresholds of verdicts. Then the capacity, closed loop at rising
concurrency. Then open-loop load in multiples of it, 10/30/60 % of high, mid and low priority: without a
middleware (the control), behind ours with nothing set by hand but the objective, and behind a concurrency
limit set to the right number. Goodput is answers within the objective per second, over what is possible: the
capacity, or the load where that is less. An observer in each server reads the device once a second.

``--work cpu`` exercises all of this without a GPU and ``--work torch-cpu`` with PyTorch on the processor.
Their telemetry is invented, so their records have another form and are never kept among the results.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from autoglm_throttle.traffic.generator import ClientOptions
from autoglm_throttle.traffic.generator.connection_pool import max_connections
from autoglm_throttle.traffic.histogram import Histogram
from autoglm_throttle.traffic.plan import Arrivals, LoadPlan, LoadShape, PriorityMix, make_plan
from autoglm_throttle.types import ProviderUnavailable
from benchmarks import harness, overload
from benchmarks.goodput import GoodputObserver
from benchmarks.gpu import table
from benchmarks.gpu.fit import fit
from benchmarks.gpu.observer import summary
from benchmarks.gpu.served import CONNECTIONS, OBSERVATIONS_PATH
from benchmarks.gpu.work import KERNELS, MAX_BATCH, Job
from examples.demo.process import DemoProcess

SERVER = "benchmarks.gpu.served"
KERNEL_RUNS = "benchmarks.gpu.kernel_runs"
NAME = "gpu_closed_loop"
Keep = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Scale:
    """Sizes and durations of a run."""

    target_rps: float = 100.0
    """Capacity that determines the depth of the model: uvicorn can serve ten times as much."""
    slo_s: float = 2.0
    warm_s: float = 4.0
    window_s: float = 8.0
    kernel_s: float = 20.0
    """Seconds of each kernel; a stall is detected after 10 s."""
    interval_s: float = 1.0
    inside: tuple[int, ...] = (MAX_BATCH, 2 * MAX_BATCH, 4 * MAX_BATCH)
    """Concurrency levels of the capacity measurement."""
    step_s: float = 6.0
    """Seconds of each level; a quarter is warm-up. The rest holds 28 batches: one is 4 %."""
    loads: tuple[float, ...] = (1.0, 2.0, 5.0, 10.0)
    """Loads as multiples of the capacity."""
    rows: tuple[str, ...] = ("none", "adaptive", "full")
    extras: tuple[tuple[str, float], ...] = (("tiers", 1.0), ("limits", 5.0), ("tiers", 5.0))
    """Rows and loads for the remaining time."""

    @property
    def seconds(self) -> float:
        """Return the seconds of each run."""
        return self.warm_s + self.window_s

    @property
    def kernels_s(self) -> float:
        """Return the longest time of all kernels together."""
        return self.kernel_s * len(KERNELS)

    def cases(self) -> list[tuple[str, float]]:
        """Return every row and load, the most informative first."""
        return [(row, load) for load in self.loads for row in self.rows] + list(self.extras)


QUICK = Scale(
    slo_s=0.5,
    warm_s=0.4,
    window_s=1.2,
    kernel_s=0.8,
    interval_s=0.2,
    inside=(MAX_BATCH, 2 * MAX_BATCH),
    step_s=0.8,
    loads=(5.0,),
    rows=("none", "adaptive"),
    extras=(),
    target_rps=200.0,
)
"""A functional check without meaningful figures."""


def measure_kernels(job: Job, scale: Scale) -> Iterator[dict[str, Any]]:
    """Measure the telemetry of each kernel; the last item is the depth.

    Raises:
        RuntimeError: the process ended early.
    """
    options = {
        "job": asdict(job),
        "kernel_s": scale.kernel_s,
        "interval_s": scale.interval_s,
        "batch_s": MAX_BATCH / scale.target_rps,
    }
    with subprocess.Popen(
        [sys.executable, "-m", KERNEL_RUNS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        guard = threading.Timer(2.0 * scale.kernels_s + 60.0, process.kill)
        guard.daemon = True
        guard.start()
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("no pipes")
        process.stdin.write(json.dumps(options) + "\n")
        process.stdin.flush()
        for line in process.stdout:
            yield json.loads(line)
        guard.cancel()
    if process.returncode:
        raise RuntimeError(f"the kernels ended with {process.returncode}")


class Bench:
    """The servers of one work at one scale.

    Args:
        job: the work.
        scale: sizes and durations.
    """

    def __init__(self, job: Job, scale: Scale) -> None:
        self.job = job
        self.scale = scale
        self.capacity_rps: float = scale.target_rps

    def child(self, row: str) -> DemoProcess:
        """Build the server of a row, not yet started."""
        options = {
            "row": row,
            "job": asdict(self.job),
            "slo_s": self.scale.slo_s,
            "interval_s": self.scale.interval_s,
            "capacity_rps": self.capacity_rps,
        }
        return DemoProcess(SERVER, options)

    def measure_capacity(self) -> dict[str, Any]:
        """Measure responses per second at rising concurrency; the largest is the capacity."""
        with self.child("none") as child:
            steps = [self._step(child, inside) for inside in self.scale.inside]
        best = max(steps, key=lambda step: float(step["rps"]))
        self.capacity_rps = best["rps"]
        return {"rps": best["rps"], "inside": best["inside"], "steps": steps}

    def _step(self, child: DemoProcess, inside: int) -> dict[str, Any]:
        """Measure a closed loop: the next request follows a response within two milliseconds."""
        scale = self.scale
        made = made_plan(10.0 * scale.target_rps, scale.step_s, Arrivals.UNIFORM, 0)
        observed = GoodputObserver(made, 60.0, scale.step_s / 4.0, scale.step_s)
        options = ClientOptions(connections=inside, max_inflight=inside)
        asyncio.run(overload.drive(child, made, observed, options))
        response = Histogram.of(counts.response for counts in observed.classes.values())
        return {"inside": inside, "rps": observed.completed_rps(), "p50_s": response.percentile(0.5)}

    def run(self, row: str, load: float, seed: int) -> dict[str, Any]:
        """Run a row under a multiple of the capacity, from the start of its server to its end."""
        scale = self.scale
        made = made_plan(load * self.capacity_rps, scale.seconds, Arrivals.POISSON, seed)
        observed = GoodputObserver(made, scale.slo_s, scale.warm_s, scale.seconds)
        opened = min(overload.OPENED, max_connections())
        options = ClientOptions(
            connections=opened,
            more_connections=max(0, min(CONNECTIONS, max_connections()) - opened),
            timeout_s=scale.slo_s,
            drain_s=scale.slo_s + 1.0,
        )
        with self.child(row) as child:
            begun_s = time.monotonic()
            done = asyncio.run(overload.drive(child, made, observed, options))
            observations = asyncio.run(read_observations(child))
        device = summary(observations["series"], begun_s + scale.warm_s, begun_s + scale.seconds)
        return {
            "row": row,
            "load": load,
            **overload.figures(done, self.capacity_rps, instant=False),
            "all_p50_s": percentile(observed, 0.5),
            "all_p99_s": percentile(observed, 0.99),
            "card": device | {"failures": observations["failures"]},
            "own": observations["own"],
        }


def percentile(observed: GoodputObserver, share: float) -> float | None:
    """Return a percentile of the responses to all classes, in time or not."""
    return Histogram.of(counts.response for counts in observed.classes.values()).percentile(share)


def made_plan(rate_rps: float, seconds: float, arrivals: Arrivals, seed: int) -> LoadPlan:
    """Build the requests of a run."""
    return make_plan(LoadShape.parse(f"fixed:{rate_rps}:{seconds}"), arrivals, PriorityMix(), seed)


async def read_observations(child: DemoProcess) -> dict[str, Any]:
    """Read the observations of a server; an overloaded one may reply late."""
    give_up_s = time.monotonic() + overload.REPLY_S
    while (observations := await child.request(OBSERVATIONS_PATH)) is None:
        if time.monotonic() > give_up_s:
            return {"series": [], "failures": {"the witness did not answer": 1}, "own": None}
        await asyncio.sleep(0.1)
    return observations


def measure(job: Job, scale: Scale, minutes: float, keep: Keep) -> dict[str, Any]:
    """Measure as much as time permits, with the record written after each part."""
    begun_s = time.monotonic()
    record: dict[str, Any] = {
        **harness.machine("uvicorn", "limits", *(("nvidia-ml-py", "torch") if not job.stand_in else ())),
        "gpu": device_info(job),
        "complete": False,
        "scale": asdict(scale),
        "kernels": [],
        "rows": [],
        "left_out": [],
    }
    for observations in measure_kernels(job, scale):
        if "kernel" in observations:
            record["kernels"].append(observations)
            show(table.kernel(observations))
        else:
            record["batch"] = observations
        keep(record)
    record["fit"] = fit(record["kernels"])
    show("\n".join(table.fitted(record["fit"])))
    depth = job.depth if job.kind == "cpu" else record["batch"]["depth"]
    bench = Bench(replace(job, depth=depth), scale)
    record["job"] = asdict(bench.job)
    record["capacity"] = bench.measure_capacity()
    show(table.capacity(record["capacity"]))
    keep(record)
    run_rows(bench, record, begun_s + 60.0 * minutes, keep)
    record["complete"] = True
    record["minutes"] = (time.monotonic() - begun_s) / 60.0
    keep(record)
    return record


def run_rows(bench: Bench, record: dict[str, Any], end_s: float, keep: Keep) -> None:
    """Run each row and load while the time suffices for the longest run so far."""
    longest_s = bench.scale.seconds
    for row, load in bench.scale.cases():
        begun_s = time.monotonic()
        if begun_s + longest_s > end_s:
            record["left_out"].append([row, load])
            continue
        try:
            done = bench.run(row, load, seed=1)
            show(table.row(done))
        except Exception as error:
            done = {"row": row, "load": load, "error": f"{type(error).__name__}: {error}"}
            show(str(done))
        record["rows"].append(done)
        keep(record)
        longest_s = max(longest_s, time.monotonic() - begun_s)


def device_info(job: Job) -> dict[str, Any]:
    """Describe the device."""
    if job.stand_in:
        return {"name": "none: a stand-in"}
    import pynvml

    from autoglm_throttle.gpu.nvml.provider import NvmlProvider

    source = NvmlProvider()
    device = source.read()[0]
    observations = {
        "name": device.name,
        "kind": device.kind,
        "driver": pynvml.nvmlSystemGetDriverVersion(),
        "memory_total_bytes": device.memory_total_bytes,
        "power_limit_w": device.power_limit_w,
        "sm_clock_max_mhz": device.sm_clock_max_mhz,
        "notes": list(device.notes),
    }
    source.close()
    return observations


def record_writer(job: Job, paths: Sequence[Path]) -> Keep:
    """Return a function that writes the record; that of a stand-in has no figures of a GPU."""

    def keep(record: dict[str, Any]) -> None:
        shown = {"stand_in": table.NO_GPU, "exercised": record} if job.stand_in else record
        for path in paths:
            new = path.with_suffix(".new")
            new.write_text(json.dumps(shown, indent=2) + "\n")
            os.replace(new, path)  # noqa: PTH105 - a run that is cut short leaves a whole record

    return keep


def show(line: str) -> None:
    """Print a line immediately."""
    print(line, flush=True)


def options_of(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", choices=("gpu", "torch-cpu", "cpu"), default="gpu", help="default: gpu")
    parser.add_argument("--minutes", type=float, default=8.0, help="all of it, at most (default 8)")
    parser.add_argument("--rows", nargs="+", choices=Scale.rows, help="only these, and no extras")
    parser.add_argument("--quick", action="store_true", help="seconds, and no figures to keep")
    parser.add_argument("--write", action="store_true", help="keep the record in benchmarks/results")
    parser.add_argument("--out", type=Path, help="keep the record in this file")
    options = parser.parse_args(argv)
    results = harness.RESULTS.resolve()
    if options.write and (options.quick or options.work != "gpu"):
        parser.error("--quick and stand-ins for a GPU give no figures to keep")
    if options.out and options.work != "gpu" and results in options.out.resolve().parents:
        parser.error("what a stand-in tells does not belong among the results")
    return options


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print and write the record."""
    logging.getLogger("autoglm_throttle").addHandler(logging.NullHandler())
    options = options_of(argv)
    # The first device does the work; the others would only dilute the readings. NVML counts by PCI bus.
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")
    scale = QUICK if options.quick else Scale()
    if options.rows:
        scale = replace(scale, rows=tuple(options.rows), extras=())
    job = Job(options.work, capacity_rps=scale.target_rps)
    paths = [
        path for path in (options.out, harness.RESULTS / f"{NAME}.json" if options.write else None) if path
    ]
    if job.stand_in:
        show(table.NO_GPU)
    show(table.HEAD)
    try:
        record = measure(job, scale, options.minutes, record_writer(job, paths))
    except (ImportError, ProviderUnavailable) as error:
        sys.exit(f"{error}; --work cpu shows that the program works, without figures")
    show("\n".join(table.whole(record)))
    show(table.NO_GPU if job.stand_in else f"{record['gpu']['name']}, driver {record['gpu']['driver']}")
    show(harness.line(record))


if __name__ == "__main__":
    main()
