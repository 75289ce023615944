"""Properties of a simulated GPU, its work items and their results.

The defaults are round numbers of this project, not those of a device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

GIB = 1 << 30
PUBLISHED_IDLE_BYTES = 1_030_000_000
PUBLISHED_REQUEST_BYTES = 768_000_000
"""Memory per request.

With `PUBLISHED_IDLE_BYTES`, the line through the published figures of a model server's memory: 1.8 GB with
one request in flight, 25.6 GB with 32 (GB of 10^9 bytes).
"""


def _check(**numbers: float) -> None:
    for name, number in numbers.items():
        if not 0.0 < number < math.inf:
            raise ValueError(f"{name} must be a finite number above 0, not {number!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSpec:
    """Static batching: an idle device takes at most ``max_batch`` queued requests, which end together.

    Raises:
        ValueError: a number that is not above 0, or ``base_s`` so long that
            ``capacity_rps`` is out of reach.
    """

    max_batch: int = 16
    base_s: float = 0.010
    """Fixed cost of a batch: launch, copy, post-processing."""
    capacity_rps: float = 100.0
    """Requests/s in full batches: the maximal throughput."""

    def __post_init__(self) -> None:
        _check(max_batch=self.max_batch, base_s=self.base_s, capacity_rps=self.capacity_rps)
        if self.per_item_s <= 0.0:
            raise ValueError(
                f"base_s must be below max_batch / capacity_rps = {self.max_batch / self.capacity_rps:g} s"
            )

    @property
    def per_item_s(self) -> float:
        """Time that each request adds to its batch, so that full batches run at ``capacity_rps``."""
        return (self.max_batch / self.capacity_rps - self.base_s) / self.max_batch


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmSpec:
    """Continuous batching: each step gives each running sequence one token; new ones join between steps.

    A step lasts ``step_s + per_seq_s x running + context of new sequences / prefill_tps``.

    Raises:
        ValueError: a number that is not above 0.
    """

    step_s: float = 0.012
    per_seq_s: float = 0.0002
    prefill_tps: float = 20_000.0
    """Context tokens/s."""
    kv_tokens: int = 400_000
    """Capacity for context and output tokens of running sequences; a sequence starts when it fits whole."""
    max_running: int = 64
    kv_bytes_per_token: int = 131_072
    """32 layers x 8 KV heads x 128 x 2 (key, value) x 2 bytes: the shape of Llama 3 8B in half precision."""

    def __post_init__(self) -> None:
        _check(
            step_s=self.step_s,
            per_seq_s=self.per_seq_s,
            prefill_tps=self.prefill_tps,
            kv_tokens=self.kv_tokens,
            max_running=self.max_running,
        )

    def faster(self, factor: float) -> LlmSpec:
        """Return the same device with every duration divided by ``factor``."""
        return replace(
            self,
            step_s=self.step_s / factor,
            per_seq_s=self.per_seq_s / factor,
            prefill_tps=self.prefill_tps * factor,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedGpuSpec:
    """Memory, power and work model of a device.

    Raises:
        ValueError: idle memory or power above the total, or a negative duration.
    """

    work: BatchSpec | LlmSpec = BatchSpec()
    memory_total_bytes: int = 80 * GIB
    memory_idle_bytes: int = 2 * GIB
    request_bytes: int = GIB // 4
    """Memory of each request, queued or running; batch mode only."""
    restart_s: float = 5.0
    """Seconds for which the device is lost after it ran out of memory."""
    idle_w: float = 70.0
    peak_w: float = 700.0

    def __post_init__(self) -> None:
        if not 0 <= self.memory_idle_bytes < self.memory_total_bytes:
            raise ValueError("memory_idle_bytes must be below memory_total_bytes")
        if not 0.0 <= self.idle_w <= self.peak_w or not self.restart_s >= 0.0:
            raise ValueError("idle_w must not be above peak_w, restart_s not negative")

    def with_published_memory(self) -> SimulatedGpuSpec:
        """Return the same device with the published memory: 1.03 GB, and 0.768 GB per request in flight.

        For batch mode; in llm mode the tokens decide.
        """
        return replace(self, memory_idle_bytes=PUBLISHED_IDLE_BYTES, request_bytes=PUBLISHED_REQUEST_BYTES)


class Item(NamedTuple):
    """One request for the device."""

    id: int
    context_tokens: int = 0
    tokens: int = 1
    """Tokens to generate; llm mode only, like ``context_tokens``."""


class Done(NamedTuple):
    """Result of one request on the device."""

    id: int
    done_s: float
    failed: str = ""
    """Reason of the failure: ``memory``, ``lost``, ``too_large`` or ``cancelled``; empty for success."""
