"""Telemetry of a device that runs one known kernel: the basis of the thresholds of verdicts.

Run as ``python -m benchmarks.gpu.kernel_runs`` with one line of JSON on standard input. It prints a line for
each kernel, and at the end the depth that makes a batch as long as required. Each kernel has two verdicts:
one as if every step were a response ("moving"), one as if a request waited for ever ("silent"). So the same
device shows the verdicts of work and of a hang.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from dataclasses import dataclass
from typing import Any

from autoglm_throttle.types import ServiceStats
from benchmarks.gpu.engine import local_work, with_telemetry
from benchmarks.gpu.observer import Observer, summary
from benchmarks.gpu.work import KERNELS, MAX_BATCH, Job, Work
from examples.demo.process import read_config

SETTLE_S = 5.0
"""Warm-up of a kernel: power is a mean over a second, and clocks rise."""

BRIEF = ("idle", "small")
"""Kernels with half the time, as they need no verdict of a hang."""

TIMED = 5
"""Number of timed batches; the median counts."""


@dataclass(frozen=True)
class KernelOptions:
    """Options of the measurement."""

    job: Job
    kernel_s: float
    interval_s: float
    batch_s: float
    """Required seconds of a full batch."""


@dataclass
class KernelStats:
    """Statistics of the work for both verdicts."""

    inside: int
    steps: int = 0

    def moving(self) -> ServiceStats:
        """Report every step as a response."""
        return ServiceStats(in_flight=self.inside, completed_total=self.steps)

    def silent(self) -> ServiceStats:
        """Report no response."""
        return ServiceStats(in_flight=self.inside)


def kernel(work: Work, sources: tuple[str, ...], name: str, options: KernelOptions) -> dict[str, Any]:
    """Run one kernel for a while and summarize the telemetry."""
    seconds = options.kernel_s / 2.0 if name in BRIEF else options.kernel_s
    step = work.kernel(name)
    stats = KernelStats(inside=int(name != "idle"))
    observer = Observer(sources, options.interval_s, {"moving": stats.moving, "silent": stats.silent})
    begun_s = time.monotonic()
    observer.start()
    while time.monotonic() < begun_s + seconds:
        step()
        stats.steps += 1
    end_s = time.monotonic()
    observer.close()
    record = summary(observer.series, begun_s + min(SETTLE_S, seconds / 4.0), end_s)
    return {
        "kernel": name,
        "what": KERNELS[name],
        "seconds": end_s - begun_s,
        "step_s": (end_s - begun_s) / stats.steps,
        "failures": dict(observer.failures),
        **record,
    }


def batch_s(work: Work) -> float:
    """Measure the seconds of a full batch."""
    taken = []
    for _ in range(TIMED + 2):
        begun_s = time.perf_counter()
        work.batch(MAX_BATCH)
        taken.append(time.perf_counter() - begun_s)
    return statistics.median(taken[2:])


def main() -> None:
    """Run all kernels, then time the batch."""
    record = read_config()
    options = KernelOptions(**{**record, "job": Job(**record["job"])})
    work, sources = with_telemetry(local_work(options.job), options.job)
    for name in KERNELS:
        try:
            write_record(kernel(work, sources, name, options))
        except Exception as error:
            write_record({"kernel": name, "error": f"{type(error).__name__}: {error}"})
    each_s = batch_s(work) / options.job.depth
    write_record({"batch_s": each_s * options.job.depth, "depth": max(1, round(options.batch_s / each_s))})
    work.close()


def write_record(record: dict[str, Any]) -> None:
    """Print a record as one line."""
    sys.stdout.write(json.dumps(record) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
