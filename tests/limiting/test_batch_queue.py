"""The queue of batches against a plain list of the waiting items."""

from __future__ import annotations

import math

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from autoglm_throttle.limiting.batch_queue import AGED_SHARE, BatchItem, ItemQueue
from autoglm_throttle.types import Priority

SIZE = 6


def item(
    name: str,
    priority: Priority = Priority.MID,
    cost: float = 1.0,
    arrived_s: float = 0.0,
    within_s: float = 10.0,
) -> BatchItem[str]:
    return BatchItem(name, priority, cost, arrived_s, arrived_s + within_s)


def names(items: list[BatchItem[str]]) -> str:
    return " ".join(one.payload for one in items)


def filled(*items: BatchItem[str], size: int = 100) -> ItemQueue[str]:
    queue: ItemQueue[str] = ItemQueue(size)
    for one in items:
        assert queue.push(one) is None
    return queue


def instantly(_: float) -> float:
    return 0.0


class ItemQueueMachine(RuleBasedStateMachine):
    """Every item that was pushed is taken, dropped, evicted or removed, once."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: ItemQueue[str] = ItemQueue(SIZE)
        self.waiting: list[BatchItem[str]] = []
        self.now = 0.0
        self.count = 0

    @rule(
        priority=st.sampled_from(Priority),
        cost=st.sampled_from((0.5, 1.0, 3.0)),
        within_s=st.sampled_from((0.5, 1.0, 4.0)),
    )
    def push(self, priority: Priority, cost: float, within_s: float) -> None:
        self.count += 1
        new = item(str(self.count), priority, cost, self.now, within_s)
        evicted = self.queue.push(new)
        lowest = max((one.priority for one in self.waiting), default=Priority.HIGH)
        if len(self.waiting) < SIZE:
            assert evicted is None
        elif lowest <= priority:
            assert evicted is new
            return
        else:
            assert evicted is [one for one in self.waiting if one.priority == lowest][-1]
            self.waiting.remove(evicted)
        self.waiting.append(new)

    @rule(seconds=st.sampled_from((0.1, 0.4, 1.5)))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.waiting))
        assert self.queue.remove(one)
        assert not self.queue.remove(one)
        self.waiting.remove(one)

    @rule()
    def clear(self) -> None:
        assert sorted(names(self.queue.clear()).split()) == sorted(names(self.waiting).split())
        self.waiting = []

    @rule(at_most=st.sampled_from((1.0, 2.5, 8.0)), per_cost_s=st.sampled_from((0.0, 0.2)))
    def take(self, at_most: float, per_cost_s: float) -> None:
        def predict(cost: float) -> float:
            return per_cost_s * cost

        batch, late = self.queue.take(at_most, self.now, predict)
        cost = sum(one.cost for one in batch)
        assert cost <= at_most or len(batch) == 1
        for one in batch:
            assert self.now + predict(cost) <= one.deadline_s
        for one in late:  # it would have been late in a batch of all that wait, up to the target
            most = max(one.cost, min(at_most, sum(each.cost for each in self.waiting)))
            assert self.now + predict(most) > one.deadline_s
        # Apart from the aged one, no item was passed by a less important one, or by one with more time.
        ranks = [(one.priority, one.deadline_s, one.number) for one in batch]
        assert ranks == sorted(ranks) or ranks[1:] == sorted(ranks[1:])
        for one in [*batch, *late]:
            self.waiting.remove(one)
        if not batch:
            assert not self.waiting

    @invariant()
    def views_agree(self) -> None:
        assert len(self.queue) == len(self.waiting)
        assert self.queue.cost == pytest.approx(sum(one.cost for one in self.waiting))
        assert self.queue.oldest_s() == min((one.arrived_s for one in self.waiting), default=math.inf)
        earliest_s = min((one.deadline_s for one in self.waiting), default=math.inf)
        assert self.queue.earliest_deadline_s() == earliest_s


TestItemQueue = ItemQueueMachine.TestCase
TestItemQueue.settings = settings(deadline=None, stateful_step_count=30)


def test_take_orders_by_priority_deadline_and_arrival() -> None:
    queue = filled(
        item("low", Priority.LOW, within_s=1.0),
        item("second"),
        item("third"),
        item("first", within_s=5.0),
        item("high", Priority.HIGH, within_s=50.0),
    )
    batch, _ = queue.take(5.0, 0.0, instantly)
    assert names(batch) == "high first second third low"


def test_item_above_the_target_is_taken_alone() -> None:
    queue = filled(item("one"), item("large", cost=9.0), item("two"))
    taken = [names(queue.take(4.0, 0.0, instantly)[0]) for _ in range(3)]
    assert taken == ["one", "large", "two"]


def test_one_aged_item_is_taken_before_more_important_ones() -> None:
    aged = [item(f"low{number}", Priority.LOW, within_s=2.0) for number in range(3)]
    now = 2.0 * AGED_SHARE
    queue = filled(*aged, *(item(f"high{number}", Priority.HIGH, arrived_s=now) for number in range(9)))
    taken = [names(queue.take(3.0, now, instantly)[0]) for _ in range(3)]
    assert taken == ["low0 high0 high1", "low1 high2 high3", "low2 high4 high5"]


def test_aged_item_that_would_be_late_is_dropped() -> None:
    queue = filled(item("late", within_s=2.0), item("other", arrived_s=1.5))
    batch, late = queue.take(3.0, 1.5, lambda cost: 0.3 * cost)
    assert (names(batch), names(late)) == ("other", "late")


def test_dropped_items_leave_time_for_the_ones_behind_them() -> None:
    queue = filled(*(item(f"old{number}", within_s=3.5) for number in range(4)), item("new", within_s=9.0))
    batch, late = queue.take(8.0, 1.0, lambda cost: cost)
    assert (names(late), names(batch)) == ("old0 old1 old2", "old3 new")
