"""What the GPU is given to do: the seam between the benchmark and the machine.

Nothing else of the benchmark knows whether there is a GPU. ``gpu`` computes on it. ``torch-cpu`` runs the
same code on the processor, and ``cpu`` sleeps; both invent what a card would tell, so that the whole program
can be exercised anywhere. Their results say so, and are no figures of any GPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

MAX_BATCH = 16
"""Requests computed together: that of the simulated GPU of `benchmarks.overload`."""

KERNELS = {
    "idle": "nothing",
    "spin": "one block that spins",
    "small": "small matrix products, one after another",
    "decode": "8 rows by large weights: bound by memory, as decoding is",
    "gemm": "large bf16 matrix products",
}
"""What a card is seen doing alone; name -> description."""

STEP_S = 0.05
"""Length of one step of a kernel: long beside a launch, short beside a sample."""


class Work(Protocol):
    """What a machine does. One thread calls it."""

    def batch(self, count: int) -> None:
        """Compute the answers to ``count`` requests; returns when they are there."""

    def kernel(self, name: str) -> Callable[[], None]:
        """Prepare one of ``KERNELS``; each call of what is returned keeps the card at it for ``STEP_S``."""

    def close(self) -> None:
        """Let go of everything."""


@dataclass(frozen=True)
class Job:
    """Which work, and how much of it a request is."""

    kind: str = "gpu"
    depth: int = 8
    """Layers that each request passes through; of a sleeping work without meaning."""
    capacity_rps: float = 100.0
    """Of a sleeping work, for large batches."""

    @property
    def stand_in(self) -> bool:
        """Whether there is no GPU, and what is told of one is made up."""
        return self.kind != "gpu"


class Sleeper:
    """A device of fixed capacity that sleeps instead of computing."""

    def __init__(self, capacity_rps: float) -> None:
        self._each_s = 1.0 / capacity_rps

    def batch(self, count: int) -> None:
        """Take as long as one request and then each of the batch take."""
        time.sleep(self._each_s * (1 + count))

    def kernel(self, name: str) -> Callable[[], None]:  # noqa: ARG002 - the name is for others
        """Sleep."""
        return lambda: time.sleep(STEP_S)

    def close(self) -> None:
        """Do nothing."""
