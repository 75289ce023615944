"""The windows in memory and those of the script decide alike while time goes forward.

Requests come at multiples of 1/64 s, which are exact in seconds and in microseconds. A sub-bucket may end
between two of them; then the memory's seconds are compared to the microsecond.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.limiting.decisions import decision_of
from autoglm_throttle.limiting.user_limits import NO_LIMIT, LimitSets, UserLimits
from autoglm_throttle.store.protocol import VALUES, Answer, StoreCharge
from autoglm_throttle.types import Decision, Demand, Priority, UserLimit
from tests.contract.reference import Reference
from tests.contract.script_store import SECOND, ScriptStore, limit

TICK_US = SECOND // 64
START_US = 1_000_000 * SECOND
USERS = ("07f3a9b1c2d3e4f5", "1111111111111111")
ADDRESSES = ("", "2222222222222222", "3333333333333333")
FACTOR = 2.0


@dataclass(frozen=True)
class Story:
    limits: tuple[UserLimit, ...]
    steps: tuple[tuple[int, int, int, int, bool], ...]
    """Ticks that pass, caller, address, units, whether they are given back at the next step."""


limits_of_a_user = st.lists(
    st.builds(limit, st.integers(1, 25), st.sampled_from([60, 61, 90, 3600]), exact=st.booleans()),
    min_size=1,
    max_size=3,
    unique_by=lambda one: one.window_s,
).map(tuple)
ticks = st.sampled_from([0, 0, 1, 63, 64, 65, 30 * 64, 60 * 64, 61 * 64]) | st.integers(0, 400)
stories = st.builds(
    Story,
    limits_of_a_user,
    st.lists(
        st.tuples(ticks, st.integers(0, 1), st.integers(0, 2), st.integers(1, 30), st.booleans()),
        min_size=1,
        max_size=30,
    ).map(tuple),
)


class Both:
    """The same demands in memory, in the script and in the log."""

    def __init__(self, store: ScriptStore, limits: tuple[UserLimit, ...]) -> None:
        self.store = store.fresh()
        self.reference = Reference()
        sets = LimitSets((limits,) * 3, by_plan={}, by_route={}, address_factor=FACTOR)
        self.memory = UserLimits(sets, max_users=100)
        (self.set,) = sets

    def charges(self, demand: Demand, units: int) -> tuple[StoreCharge, ...]:
        mine = StoreCharge("user", self.set.users, demand.user, units)
        if not demand.address:
            return (mine,)
        return (mine, StoreCharge("address", self.set.addresses, demand.address, units))

    def hit(self, demand: Demand, units: int, clock: int) -> tuple[Answer, tuple[StoreCharge, ...], Decision]:
        charges = self.charges(demand, units)
        ask = self.store.wire.build_check(charges)
        (answer,) = self.store.call([ask], clock)
        assert [answer] == self.reference.call([ask], clock)
        verdict = self.memory.hit(demand, clock / SECOND)
        assert verdict != NO_LIMIT
        return answer, charges, decision_of(verdict)

    def give_back(
        self, demand: Demand, charges: tuple[StoreCharge, ...], answer: Answer, at: int, clock: int
    ) -> None:
        self.memory.give_back(demand, at / SECOND, clock / SECOND)
        settlement = self.store.wire.build_refund(self.store.wire.build_check(charges), answer)
        self.store.call([settlement], clock)
        self.reference.call([settlement], clock)


def compare(answer: Answer, charges: Sequence[StoreCharge], decision: Decision) -> None:
    by_name = {}
    names = [one.name for charge in charges for one in charge.limits]
    for place, name in enumerate(names):
        by_name[name] = answer[place * VALUES : (place + 1) * VALUES]
    assert decision.allowed == (not any(wait for wait, *_ in by_name.values()))
    if not decision.allowed:
        waits = [wait for wait, *_ in by_name.values() if wait]
        longest = math.inf if -1 in waits else max(waits) / SECOND
        assert decision.retry_after_s == longest or abs(decision.retry_after_s - longest) < 0.6e-6
    for state in decision.limits:
        wait, remaining, reset, _ = by_name[state.name]
        assert state.remaining == remaining
        if reset or wait:
            assert abs(state.reset_s * SECOND - reset) < 0.6


def play(store: ScriptStore, story: Story) -> None:
    both, clock = Both(store, story.limits), START_US
    undo = None
    for passed, user, address, units, regretted in story.steps:
        clock += passed * TICK_US
        if undo is not None:
            both.give_back(*undo, clock)
        demand = Demand(Priority.MID, USERS[user], units, address=ADDRESSES[address])
        answer, charges, decision = both.hit(demand, units, clock)
        compare(answer, charges, decision)
        undo = (demand, charges, answer, clock) if decision.allowed and regretted else None


@pytest.mark.slow
@given(story=stories)
def test_on_fakeredis(fake_store: ScriptStore, story: Story) -> None:
    play(fake_store, story)


@given(story=stories)
def test_on_servers(store: ScriptStore, story: Story) -> None:
    play(store, story)
