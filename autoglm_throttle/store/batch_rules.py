"""Sizes and times of the batched store calls."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BatchRules:
    """Sizes and times of a batch.

    Raises:
        ValueError: a size is below 1, or the deadline is not above 0.
    """

    deadline_s: float = 0.05
    """Deadline of an answer in seconds, with or without the store; the p99 at 5000 decisions/s is 8 ms."""
    in_flight: int = 2
    """Calls at a time: 1, 2 and 4 are equal on loopback; two hide a network's latency."""
    batch_keys: int = 128
    """Keys in one call: about 0.6 ms of one core of the server."""
    queue: int = 4096
    """Entries that may wait for a call."""

    def __post_init__(self) -> None:
        if not 0.0 < self.deadline_s < math.inf or min(self.in_flight, self.batch_keys, self.queue) < 1:
            raise ValueError(f"every number must be above 0: {self}")
