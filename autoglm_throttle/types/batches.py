"""The view of a micro-batcher."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BatcherView:
    """The state of a batcher at one moment. Counters grow from its construction on."""

    name: str
    target: float  # cost at which a batch is full
    waiting: int  # items in the queue
    waiting_cost: float
    running: int  # batches
    batches: int  # finished batches, failed ones included
    failed: int  # batches whose function raised, or broke its contract
    items: int  # items of finished batches
    cost: float  # their cost
    run_s: float  # seconds in the function
    wait_s: float  # seconds in the queue, of all items that ran
    full: int  # items rejected because the queue was full
    late: int  # items dropped because they would end after their deadline
    p95_s: float | None  # of the last window, from submission to result; None before the first
    per_cost_s: float  # the model of a batch's duration: `per_cost_s * cost + fixed_s`
    fixed_s: float
