"""Work for the GPU: the interface between the benchmark and the machine.

Only this module depends on a GPU. ``gpu`` computes on it. ``torch-cpu`` runs the same code on the processor,
and ``cpu`` sleeps; both invent telemetry, so that the whole program can run anywhere. Their results are
marked as such, and are no figures of a GPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

MAX_BATCH = 16
"""Requests computed together, as on the simulated GPU of `benchmarks.overload`."""

KERNELS = {
    "idle": "nothing",
    "spin": "one block that spins",
    "small": "small matrix products, one after another",
    "decode": "8 rows by large weights: bound by memory, as decoding is",
    "gemm": "large bf16 matrix products",
}
"""Kernels measured alone; name -> description."""

STEP_S = 0.05
"""Length of one step of a kernel: long beside a launch, short beside a sample."""


class Work(Protocol):
    """Work of a machine; called by one thread."""

    def batch(self, count: int) -> None:
        """Compute ``count`` requests; returns when they are done."""

    def kernel(self, name: str) -> Callable[[], None]:
        """Prepare one of ``KERNELS``; each call of the returned function runs it for ``STEP_S``."""

    def close(self) -> None:
        """Release all resources."""


@dataclass(frozen=True)
class Job:
    """Kind of work, and its cost per request."""

    kind: str = "gpu"
    depth: int = 8
    """Layers per request; unused by sleeping work."""
    capacity_rps: float = 100.0
    """Capacity of sleeping work in large batches."""

    @property
    def stand_in(self) -> bool:
        """Return whether there is no GPU, so that its telemetry is invented."""
        return self.kind != "gpu"


class Sleeper:
    """A device of fixed capacity that sleeps instead of computing."""

    def __init__(self, capacity_rps: float) -> None:
        self._each_s = 1.0 / capacity_rps

    def batch(self, count: int) -> None:
        """Sleep for one request and for each of the batch."""
        time.sleep(self._each_s * (1 + count))

    def kernel(self, name: str) -> Callable[[], None]:  # noqa: ARG002 - the name is for others
        """Sleep."""
        return lambda: time.sleep(STEP_S)

    def close(self) -> None:
        """Do nothing."""
