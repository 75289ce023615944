"""A batcher under any sequence of submissions, cancellations, failures and waits: each item ends once."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from autoglm_throttle.batcher import AdaptiveBatcher, BatcherClosed, QueueFull, TooLate
from autoglm_throttle.traffic.inproc.loop import VirtualLoop
from autoglm_throttle.types import Priority

MAX_COST, MAX_QUEUE, CONCURRENCY, SLO_S, LONGEST_RUN_S = 8.0, 6, 2, 1.0, 0.3


class Broken(Exception):
    """A fault of the model."""


class BatcherMachine(RuleBasedStateMachine):
    """The model doubles numbers, and fails for a whole batch or for an item when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualLoop()
        self.loop.limit(10_000.0, "the machine")
        self.batcher: AdaptiveBatcher[int, int] = AdaptiveBatcher(
            self.run_batch,
            slo_s=SLO_S,
            max_cost=MAX_COST,
            max_queue=MAX_QUEUE,
            concurrency=CONCURRENCY,
            clock=self.loop.clock,
        )
        self.tasks: dict[int, asyncio.Task[int]] = {}
        self.costs: dict[int, float] = {}
        self.deadlines_s: dict[int, float] = {}
        self.began_s: dict[int, float] = {}
        self.runs: Counter[int] = Counter()
        self.left: set[int] = set()
        self.running, self.run_s, self.breaks, self.poisoned = 0, 0.1, False, -1

    async def run_batch(self, items: list[int]) -> list[Any]:
        cost = sum(self.costs[item] for item in items)
        assert cost <= MAX_COST or len(items) == 1
        assert not self.left & set(items), "an item whose caller had left"
        self.running += 1
        assert self.running <= CONCURRENCY
        self.runs.update(items)
        self.began_s.update(dict.fromkeys(items, self.loop.time()))
        try:
            await asyncio.sleep(self.run_s)
            if self.breaks:
                raise Broken
        finally:
            self.running -= 1
        return [Broken() if item == self.poisoned else 2 * item for item in items]

    def wait(self, seconds: float = 0.0) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))

    @rule(
        count=st.integers(1, 4),
        priority=st.sampled_from(list(Priority)),
        cost=st.sampled_from([0.5, 1.0, 3.0, 20.0]),
        deadline_s=st.sampled_from([0.05, 0.4, 2.0]),
    )
    def submit(self, count: int, priority: Priority, cost: float, deadline_s: float) -> None:
        for _ in range(count):
            item = len(self.tasks)
            self.costs[item] = cost
            self.deadlines_s[item] = self.loop.time() + deadline_s
            call = self.batcher.submit(item, priority, cost, deadline_s)
            self.tasks[item] = self.loop.create_task(call)
        self.wait()

    @rule(seconds=st.sampled_from([0.0, 0.001, 0.02, 0.15, 1.0]))
    def time_passes(self, seconds: float) -> None:
        self.wait(seconds)

    @rule(number=st.integers(0, 100))
    def a_caller_leaves(self, number: int) -> None:
        waiting = [item for item, task in self.tasks.items() if not task.done()]
        if waiting:
            item = waiting[number % len(waiting)]
            self.tasks[item].cancel()
            self.wait()
            self.left.add(item)

    @rule(run_s=st.sampled_from([0.0, 0.01, LONGEST_RUN_S]), breaks=st.booleans(), poisons=st.booleans())
    def the_model_changes(self, run_s: float, breaks: bool, poisons: bool) -> None:
        self.run_s, self.breaks = run_s, breaks
        self.poisoned = len(self.tasks) if poisons else -1

    @invariant()
    def no_item_runs_twice(self) -> None:
        assert all(count == 1 for count in self.runs.values())

    @invariant()
    def the_view_counts_what_waits_and_runs(self) -> None:
        view = self.batcher.view()
        assert self.running <= view.running <= CONCURRENCY  # a batch that has ended may be counted still
        assert view.waiting <= MAX_QUEUE

    @invariant()
    def a_result_belongs_to_its_item(self) -> None:
        for item, task in self.tasks.items():
            if task.done() and not task.cancelled() and task.exception() is None:
                assert task.result() == 2 * item
                assert self.runs[item] == 1

    @invariant()
    def an_item_that_was_dropped_has_not_run(self) -> None:
        for item, task in self.tasks.items():
            if task.done() and not task.cancelled():
                error = task.exception()
                assert error is None or isinstance(error, Broken | QueueFull | TooLate)
                if isinstance(error, QueueFull | TooLate):
                    assert self.runs[item] == 0

    @invariant()
    def no_item_runs_after_its_deadline(self) -> None:
        for item, began_s in self.began_s.items():
            assert began_s <= self.deadlines_s[item]

    def teardown(self) -> None:
        try:
            self.loop.run_until_complete(self.batcher.aclose())
            self.wait()
            assert all(task.done() for task in self.tasks.values()), "each item has ended"
            self.running_items_and_results()
        finally:
            self.loop.close()

    def running_items_and_results(self) -> None:
        view = self.batcher.view()
        assert (view.running, view.waiting) == (0, 0)
        for item, task in self.tasks.items():
            if not task.cancelled() and isinstance(task.exception(), BatcherClosed):
                assert self.runs[item] == 0


TestBatcher = BatcherMachine.TestCase


def test_an_idle_batcher_sets_no_timer() -> None:
    loop = VirtualLoop()

    async def double(items: list[int]) -> list[int]:
        return [2 * item for item in items]

    batcher = AdaptiveBatcher(double, slo_s=SLO_S, clock=loop.clock)
    assert loop.run_until_complete(batcher.submit(3)) == 6
    loop.run_until_complete(asyncio.sleep(0))
    assert not [handle for handle in loop._scheduled if not handle.cancelled()]  # type: ignore[attr-defined]
    loop.close()
