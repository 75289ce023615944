"""What a card tells while it does one known thing: the figures to set ``VerdictRules`` by.

Run as ``python -m benchmarks.gpu.lone`` with one line of JSON on the standard input; a line for each kernel
comes out as soon as it is known, and in the end the depth that makes a batch as long as it should be.
Each kernel is judged twice: as if every step were an answer, and as if one request waited for ever. So the
same card shows what it is to be called while it works and while it hangs.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from dataclasses import dataclass
from typing import Any

from autoglm_throttle.traffic.demo.serving import read_config
from autoglm_throttle.types import ServiceStats as Told
from benchmarks.gpu.engine import here, seen
from benchmarks.gpu.watch import Watch, summary
from benchmarks.gpu.work import KERNELS, MAX_BATCH, Job, Work

SETTLE_S = 5.0
"""Before the numbers count: power is a mean over a second, and clocks rise."""

BRIEF = ("idle", "small")
"""Half as long: nothing has to hang in them."""

TIMED = 5
"""Batches, of which the median counts."""


@dataclass(frozen=True)
class Asked:
    """What is to be found out."""

    job: Job
    kernel_s: float
    interval_s: float
    batch_s: float
    """How long a full batch should take."""


@dataclass
class Doing:
    """What the work is said to be, to both judges."""

    inside: int
    steps: int = 0

    def moving(self) -> Told:
        """Every step is an answer."""
        return Told(in_flight=self.inside, completed_total=self.steps)

    def silent(self) -> Told:
        """Nothing comes out."""
        return Told(in_flight=self.inside)


def kernel(work: Work, sources: tuple[str, ...], name: str, asked: Asked) -> dict[str, Any]:
    """Keep the card at one thing for a while and tell what was seen."""
    seconds = asked.kernel_s / 2.0 if name in BRIEF else asked.kernel_s
    step = work.kernel(name)
    doing = Doing(inside=int(name != "idle"))
    watch = Watch(sources, asked.interval_s, {"moving": doing.moving, "silent": doing.silent})
    begun_s = time.monotonic()
    watch.start()
    while time.monotonic() < begun_s + seconds:
        step()
        doing.steps += 1
    end_s = time.monotonic()
    watch.close()
    told = summary(watch.series, begun_s + min(SETTLE_S, seconds / 4.0), end_s)
    return {
        "kernel": name,
        "what": KERNELS[name],
        "seconds": end_s - begun_s,
        "step_s": (end_s - begun_s) / doing.steps,
        "failures": dict(watch.failures),
        **told,
    }


def batch_s(work: Work) -> float:
    """How long a full batch takes."""
    taken = []
    for _ in range(TIMED + 2):
        begun_s = time.perf_counter()
        work.batch(MAX_BATCH)
        taken.append(time.perf_counter() - begun_s)
    return statistics.median(taken[2:])


def main() -> None:
    """Do all kernels, then time the batch."""
    told = read_config()
    asked = Asked(**{**told, "job": Job(**told["job"])})
    work, sources = seen(here(asked.job), asked.job)
    for name in KERNELS:
        try:
            say(kernel(work, sources, name, asked))
        except Exception as error:
            say({"kernel": name, "error": f"{type(error).__name__}: {error}"})
    each_s = batch_s(work) / asked.job.depth
    say({"batch_s": each_s * asked.job.depth, "depth": max(1, round(asked.batch_s / each_s))})
    work.close()


def say(told: dict[str, Any]) -> None:
    """One line."""
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
