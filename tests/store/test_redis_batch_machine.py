"""Any order of checks, cancellations, answers and failures on one batch."""

from __future__ import annotations

import asyncio

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from autoglm_throttle.settings.groups.store import StoreSettings
from autoglm_throttle.store.protocol import StoreErrorKind
from autoglm_throttle.store.running_time import GRAIN_S
from tests.store.batches import Number, Plant

DEADLINE_S = StoreSettings().redis_deadline_s


class Batches(RuleBasedStateMachine):
    """Callers come, leave, and are answered, rejected, late, or disconnected, in any order."""

    @initialize(in_flight=st.integers(1, 3), split=st.booleans(), queue=st.sampled_from([3, 4096]))
    def begin(self, in_flight: int, *, split: bool, queue: int) -> None:
        self.in_flight = in_flight
        self.plant = Plant(split=split, redis_in_flight=in_flight, redis_batch_keys=4, redis_queue=queue)
        self.asked: dict[int, asyncio.Future[list[int] | StoreErrorKind]] = {}
        self.asked_at: dict[int, float] = {}
        self.gone_unsent: set[int] = set()
        self.stalled = 0.0

    def sent(self) -> set[int]:
        return set(self.plant.server.seen)

    @rule(tags=st.lists(st.integers(0, 2), min_size=1, max_size=6), keys=st.integers(1, 3))
    def ask(self, tags: list[int], keys: int) -> None:
        start = len(self.asked)
        entries = [Number(start + place, keys, tag) for place, tag in enumerate(tags)]
        at = self.plant.loop.now - self.stalled
        for entry, future in zip(entries, self.plant.together(*entries), strict=True):
            self.asked[entry.name] = future
            self.asked_at[entry.name] = at

    def waiting(self) -> list[int]:
        return [name for name, future in self.asked.items() if not future.done()]

    @precondition(lambda self: self.waiting())
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.waiting()))
        if name not in self.sent():
            self.gone_unsent.add(name)
        self.asked[name].cancel()
        self.plant.loop.settle()

    @precondition(lambda self: self.plant.server.open)
    @rule(data=st.data(), trouble=st.sampled_from([None, None, StoreErrorKind.BUSY, StoreErrorKind.TIMEOUT]))
    def reply(self, data: st.DataObject, trouble: StoreErrorKind | None) -> None:
        call = data.draw(st.sampled_from(self.plant.server.open))
        before = len(self.plant.reports)
        futures = [self.asked[name] for names in call.names for name in names if name >= 0]
        missed = any(not future.cancelled() for future in futures) and all(f.done() for f in futures)
        silent = missed and trouble in {None, StoreErrorKind.TIMEOUT}
        call.answer() if trouble is None else call.refuse(*[trouble] * len(call.calls))
        self.plant.loop.settle()
        assert self.plant.reports[before:] == ([] if silent else [trouble])

    @rule(milliseconds=st.sampled_from([1, 24, 50, 70]))
    def wait(self, milliseconds: int) -> None:
        for _ in range(milliseconds):
            self.plant.loop.move(0.001)

    @rule(seconds=st.sampled_from([0.004, 0.052, 0.3, 1.1]))
    def stall(self, seconds: float) -> None:
        """The loop itself is held up."""
        self.plant.loop.stall(seconds)
        self.stalled += seconds

    @rule()
    def drop(self) -> None:
        self.plant.loop.act(self.plant.batch.abort)
        self.plant.loop.settle()

    @invariant()
    def calls_in_flight_are_few(self) -> None:
        assert self.plant.server.most_open <= self.in_flight

    @invariant()
    def nothing_is_sent_twice(self) -> None:
        assert len(self.plant.server.seen) == len(self.sent())

    @invariant()
    def who_left_before_is_not_sent(self) -> None:
        assert not self.gone_unsent & self.sent()

    @invariant()
    def answers_are_ones_own(self) -> None:
        for name, future in self.asked.items():
            if future.done() and not future.cancelled():
                assert future.result() == [name] or isinstance(future.result(), StoreErrorKind)

    @invariant()
    def nobody_waits_longer_than_the_deadline_and_what_the_loop_was_held_up(self) -> None:
        now = self.plant.loop.now - self.stalled
        longest = DEADLINE_S + GRAIN_S + 0.0015
        assert all(now - self.asked_at[name] < longest for name in self.waiting())

    @invariant()
    def only_what_was_granted_is_taken_back(self) -> None:
        for name in self.sent():
            if name < 0:
                asked = -1 - name
                assert asked in self.sent()
                assert self.asked[asked].cancelled()

    def teardown(self) -> None:
        if not hasattr(self, "plant"):
            return
        self.plant.answer_all()
        for _ in range(3):
            self.plant.loop.move(0.02)
            self.plant.answer_all()
        assert self.waiting() == []
        granted_and_left = {
            name for name, future in self.asked.items() if future.cancelled() and name in self.sent()
        }
        assert {-1 - name for name in self.sent() if name < 0} <= granted_and_left
        health = self.plant.batch.stats()
        assert health.waiting == 0
        assert health.sent == sum(name >= 0 for name in self.plant.server.seen)
        self.plant.loop.end()


Batches.TestCase.settings = settings(stateful_step_count=25)
TestBatches = Batches.TestCase
