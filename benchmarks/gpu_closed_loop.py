"""A real GPU under overload: what a batching transformer service does at 1 to 10 times its capacity.

On a machine with an NVIDIA GPU, from the root of the repository, with nothing but Python 3.11 or newer::

    python3 -m venv .venv-gpu && .venv-gpu/bin/pip install '.[nvml,traffic]' torch
    .venv-gpu/bin/python -m benchmarks.gpu_closed_loop --write

Where Python has PyTorch already, ``python3 -m pip install '.[nvml,traffic]'`` is enough. It takes 8 minutes,
or less with ``--minutes``: what there is no time for is left out and named. ``--write`` keeps the record in
benchmarks/results, ``--out FILE`` anywhere else, and both from the first measurement on, so that a run cut
short leaves what it knew.

First the card alone: idle, a kernel of one block that spins, small products, memory-bound decoding, a bf16
matrix product; each with what the card tells and how it is judged while answers come out ("moving") and while
none do ("silent"), and then how the figures of ``VerdictRules`` fit. Then the capacity, closed loop at rising
concurrency. Then open-loop load in multiples of it, 10/30/60 % of high, mid and low priority: without a
middleware (the control), behind ours with nothing set by hand but the objective, and behind a concurrency
limit set to the right number. Goodput is answers within the objective per second, over what is possible: the
capacity, or the load where that is less. A witness in each server reads and judges the card once a second.

``--work cpu`` exercises all of this without a GPU and ``--work torch-cpu`` with PyTorch on the processor.
What they tell of a card is made up, so their records have another form and are never kept among the results.
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

from autoglm_throttle.traffic.demo.demo_process import DemoProcess
from autoglm_throttle.traffic.files import max_connections
from autoglm_throttle.traffic.generator import ClientOptions
from autoglm_throttle.traffic.histogram import Histogram
from autoglm_throttle.traffic.plan import Arrivals, LoadPlan, LoadShape, PriorityMix, make_plan
from autoglm_throttle.types import ProviderUnavailable
from benchmarks import harness, overload
from benchmarks.gpu import table
from benchmarks.gpu.fit import fit
from benchmarks.gpu.served import CONNECTIONS, TOLD_PATH
from benchmarks.gpu.watch import summary
from benchmarks.gpu.work import KERNELS, MAX_BATCH, Job
from benchmarks.ledger import Ledger

SERVER = "benchmarks.gpu.served"
LONE = "benchmarks.gpu.lone"
NAME = "gpu_closed_loop"
Keep = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Scale:
    """How much of everything."""

    target_rps: float = 100.0
    """Capacity that the depth of the model is chosen for: ten times it is still easy for uvicorn."""
    slo_s: float = 2.0
    warm_s: float = 4.0
    window_s: float = 8.0
    kernel_s: float = 20.0
    """A stall takes 10 s to be called one."""
    interval_s: float = 1.0
    inside: tuple[int, ...] = (MAX_BATCH, 2 * MAX_BATCH, 4 * MAX_BATCH)
    """Requests inside, one after another, while the capacity is measured."""
    step_s: float = 6.0
    """For each of these; the first quarter is the warm-up. What is left holds 28 batches: one is 4 %."""
    loads: tuple[float, ...] = (1.0, 2.0, 5.0, 10.0)
    """As multiples of the capacity."""
    rows: tuple[str, ...] = ("none", "adaptive", "full")
    extras: tuple[tuple[str, float], ...] = (("tiers", 1.0), ("limits", 5.0), ("tiers", 5.0))
    """Rows and loads for what time is left."""

    @property
    def seconds(self) -> float:
        """Of each run."""
        return self.warm_s + self.window_s

    @property
    def kernels_s(self) -> float:
        """Of all kernels together, at most."""
        return self.kernel_s * len(KERNELS)

    def cases(self) -> list[tuple[str, float]]:
        """Every row and load, the most telling first."""
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
"""Shows that everything works, and nothing else."""


def alone(job: Job, scale: Scale) -> Iterator[dict[str, Any]]:
    """What the card tells of each kernel; the last one tells the depth.

    Raises:
        RuntimeError: the process ended early, with the end of what it said.
    """
    asked = {
        "job": asdict(job),
        "kernel_s": scale.kernel_s,
        "interval_s": scale.interval_s,
        "batch_s": MAX_BATCH / scale.target_rps,
    }
    with subprocess.Popen(
        [sys.executable, "-m", LONE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        guard = threading.Timer(2.0 * scale.kernels_s + 60.0, process.kill)
        guard.daemon = True
        guard.start()
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("no pipes")
        process.stdin.write(json.dumps(asked) + "\n")
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
        scale: how much.
    """

    def __init__(self, job: Job, scale: Scale) -> None:
        self.job = job
        self.scale = scale
        self.capacity_rps: float = scale.target_rps

    def child(self, row: str) -> DemoProcess:
        """A server of a row, not yet started."""
        asked = {
            "row": row,
            "job": asdict(self.job),
            "slo_s": self.scale.slo_s,
            "interval_s": self.scale.interval_s,
            "capacity_rps": self.capacity_rps,
        }
        return DemoProcess(SERVER, asked)

    def measure_capacity(self) -> dict[str, Any]:
        """Answers per second with more and more requests inside; the most is the capacity."""
        with self.child("none") as child:
            steps = [self._step(child, inside) for inside in self.scale.inside]
        best = max(steps, key=lambda step: float(step["rps"]))
        self.capacity_rps = best["rps"]
        return {"rps": best["rps"], "inside": best["inside"], "steps": steps}

    def _step(self, child: DemoProcess, inside: int) -> dict[str, Any]:
        """A closed loop: the next request follows within a millisecond or two of an answer."""
        scale = self.scale
        made = made_plan(10.0 * scale.target_rps, scale.step_s, Arrivals.UNIFORM, 0)
        ledger = Ledger(made, 60.0, scale.step_s / 4.0, scale.step_s)
        options = ClientOptions(connections=inside, max_inflight=inside)
        asyncio.run(overload.drive(child, made, ledger, options))
        response = Histogram.of(book.response for book in ledger.classes.values())
        return {"inside": inside, "rps": ledger.completed_rps(), "p50_s": response.percentile(0.5)}

    def run(self, row: str, load: float, seed: int) -> dict[str, Any]:
        """A row under a multiple of the capacity, from the start of its server to its end."""
        scale = self.scale
        made = made_plan(load * self.capacity_rps, scale.seconds, Arrivals.POISSON, seed)
        ledger = Ledger(made, scale.slo_s, scale.warm_s, scale.seconds)
        opened = min(overload.OPENED, max_connections())
        options = ClientOptions(
            connections=opened,
            more_connections=max(0, min(CONNECTIONS, max_connections()) - opened),
            timeout_s=scale.slo_s,
            drain_s=scale.slo_s + 1.0,
        )
        with self.child(row) as child:
            begun_s = time.monotonic()
            done = asyncio.run(overload.drive(child, made, ledger, options))
            told = asyncio.run(heard(child))
        card = summary(told["series"], begun_s + scale.warm_s, begun_s + scale.seconds)
        return {
            "row": row,
            "load": load,
            **overload.figures(done, self.capacity_rps, instant=False),
            "all_p50_s": percentile(ledger, 0.5),
            "all_p99_s": percentile(ledger, 0.99),
            "card": card | {"failures": told["failures"]},
            "own": told["own"],
        }


def percentile(ledger: Ledger, share: float) -> float | None:
    """Of the answers to all classes, in time or not."""
    return Histogram.of(book.response for book in ledger.classes.values()).percentile(share)


def made_plan(rate_rps: float, seconds: float, arrivals: Arrivals, seed: int) -> LoadPlan:
    """The requests of a run."""
    return make_plan(LoadShape.parse(f"fixed:{rate_rps}:{seconds}"), arrivals, PriorityMix(), seed)


async def heard(child: DemoProcess) -> dict[str, Any]:
    """What the witness of a server has seen; an overloaded server may need a while to say it."""
    give_up_s = time.monotonic() + overload.TELLING_S
    while (told := await child.request(TOLD_PATH)) is None:
        if time.monotonic() > give_up_s:
            return {"series": [], "failures": {"the witness did not answer": 1}, "own": None}
        await asyncio.sleep(0.1)
    return told


def measure(job: Job, scale: Scale, minutes: float, keep: Keep) -> dict[str, Any]:
    """Everything that there is time for, kept after each part."""
    begun_s = time.monotonic()
    record: dict[str, Any] = {
        **harness.machine("uvicorn", "limits", *(("nvidia-ml-py", "torch") if not job.stand_in else ())),
        "gpu": facts(job),
        "complete": False,
        "scale": asdict(scale),
        "kernels": [],
        "rows": [],
        "left_out": [],
    }
    for told in alone(job, scale):
        if "kernel" in told:
            record["kernels"].append(told)
            show(table.kernel(told))
        else:
            record["batch"] = told
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
    """Each row and load; the longest so far says whether there is time for another."""
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


def facts(job: Job) -> dict[str, Any]:
    """Which card it is."""
    if job.stand_in:
        return {"name": "none: a stand-in"}
    import pynvml

    from autoglm_throttle.gpu.nvml import NvmlProvider

    source = NvmlProvider()
    card = source.read()[0]
    told = {
        "name": card.name,
        "kind": card.kind,
        "driver": pynvml.nvmlSystemGetDriverVersion(),
        "memory_total_bytes": card.memory_total_bytes,
        "power_limit_w": card.power_limit_w,
        "sm_clock_max_mhz": card.sm_clock_max_mhz,
        "notes": list(card.notes),
    }
    source.close()
    return told


def keeper(job: Job, paths: Sequence[Path]) -> Keep:
    """Writes a record wherever it is wanted; that of a stand-in has nothing where figures of a GPU stand."""

    def keep(record: dict[str, Any]) -> None:
        shown = {"stand_in": table.NO_GPU, "exercised": record} if job.stand_in else record
        for path in paths:
            new = path.with_suffix(".new")
            new.write_text(json.dumps(shown, indent=2) + "\n")
            os.replace(new, path)  # noqa: PTH105 - a run that is cut short leaves a whole record

    return keep


def show(line: str) -> None:
    """Print at once."""
    print(line, flush=True)


def options_of(words: Sequence[str] | None) -> argparse.Namespace:
    """What is asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", choices=("gpu", "torch-cpu", "cpu"), default="gpu", help="default: gpu")
    parser.add_argument("--minutes", type=float, default=8.0, help="all of it, at most (default 8)")
    parser.add_argument("--rows", nargs="+", choices=Scale.rows, help="only these, and no extras")
    parser.add_argument("--quick", action="store_true", help="seconds, and no figures to keep")
    parser.add_argument("--write", action="store_true", help="keep the record in benchmarks/results")
    parser.add_argument("--out", type=Path, help="keep the record in this file")
    options = parser.parse_args(words)
    results = harness.RESULTS.resolve()
    if options.write and (options.quick or options.work != "gpu"):
        parser.error("--quick and stand-ins for a GPU give no figures to keep")
    if options.out and options.work != "gpu" and results in options.out.resolve().parents:
        parser.error("what a stand-in tells does not belong among the results")
    return options


def main(words: Sequence[str] | None = None) -> None:
    """Measure, print, keep."""
    logging.getLogger("autoglm_throttle").addHandler(logging.NullHandler())
    options = options_of(words)
    # The work is done by the first card; the others would only dilute what is told. NVML counts by PCI bus.
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
        record = measure(job, scale, options.minutes, keeper(job, paths))
    except (ImportError, ProviderUnavailable) as error:
        sys.exit(f"{error}; --work cpu shows that the program works, without figures")
    show("\n".join(table.whole(record)))
    show(table.NO_GPU if job.stand_in else f"{record['gpu']['name']}, driver {record['gpu']['driver']}")
    show(harness.line(record))


if __name__ == "__main__":
    main()
