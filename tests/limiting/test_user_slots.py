"""Slots of users in memory: as many requests in progress as a plain model of sets allows."""

from __future__ import annotations

import random

import pytest

from autoglm_throttle.limiting.user_limits import LimitSets
from autoglm_throttle.limiting.user_slots import SlottedUserLimits
from autoglm_throttle.types import CONCURRENCY, SLOT_HOLD_S, Decision, Demand, Reason, SlotLimit, UserLimit

MINUTE = UserLimit("user-60s", 30, 60)
ANN = Demand(user="ann")


def sets_of(*limits: UserLimit, prefix: str = "") -> LimitSets:
    return LimitSets([limits] * 3, by_plan={}, by_route={}, address_factor=2.0, prefix=prefix)


def slotted(slots: int, *limits: UserLimit, processes: int = 1) -> SlottedUserLimits:
    (of_users,) = sets_of(SlotLimit(CONCURRENCY, slots, SLOT_HOLD_S), prefix="concurrency.")
    return SlottedUserLimits(sets_of(*limits), 100, of_users, processes)


def is_admitted(limits: SlottedUserLimits, demand: Demand, now: float = 0.0) -> bool:
    return not isinstance(limits.hit(demand, now), Decision)


@pytest.mark.parametrize("seed", range(20))
def test_as_many_are_in_progress_as_a_plain_model_allows(seed: int) -> None:
    rng = random.Random(seed)
    limits, now = slotted(3, MINUTE), 0.0
    in_progress: list[tuple[Demand, float]] = []
    charged: list[tuple[Demand, float]] = []
    for _ in range(400):
        now += rng.choice((0.0, 0.1, 5.0))
        if in_progress and rng.random() < 0.5:
            demand, at = ended = in_progress.pop(rng.randrange(len(in_progress)))
            if rng.random() < 0.3:
                limits.give_back(demand, at, now)
                charged.remove(ended)
            else:
                limits.release(demand, None, now - at)
            continue
        demand = Demand(user=rng.choice("ab"), address=rng.choice(("", "x")), holds_slot=rng.random() < 0.9)
        of_user = [each for each, _ in in_progress if each.user == demand.user and each.holds_slot]
        of_address = [each for each, _ in in_progress if each.address == "x" and each.holds_slot]
        has_slot = len(of_user) < 3 and (not demand.address or len(of_address) < 6)
        counted = [each for each, at in charged if each.user == demand.user and now - at < 60.0]
        by_address = [each for each, at in charged if each.address == "x" and now - at < 60.0]
        has_units = len(counted) < 30 and (not demand.address or len(by_address) < 60)
        fits = has_units and (has_slot or not demand.holds_slot)
        units_at_once = rng.random() < 0.5
        verdict = limits.hit_units(demand, 1, now) if units_at_once else limits.hit(demand, now)
        assert isinstance(verdict, Decision) is not fits, (demand, now)
        if fits:
            in_progress.append((demand, now))
            charged.append((demand, now))
    for demand, _ in in_progress:
        limits.release(demand, None, 0.0)
    assert limits._users == limits._addresses == {}


def test_rejection_names_the_slots_and_an_expected_wait() -> None:
    limits = slotted(2)
    assert [is_admitted(limits, ANN) for _ in range(3)] == [True, True, False]
    rejected = limits.hit(ANN, 0.0)
    assert isinstance(rejected, Decision)
    assert (rejected.reason, rejected.detail) == (Reason.CONCURRENCY, "concurrency:user")
    assert (rejected.policy, rejected.limit, rejected.remaining) == ("concurrency", 2, 0)
    assert rejected.retry_after_s == 1.0
    limits.release(ANN, None, 100.0)
    assert is_admitted(limits, ANN)
    rejected = limits.hit(ANN, 0.0)
    assert isinstance(rejected, Decision)
    assert rejected.retry_after_s == pytest.approx(5.0), "a tenth of 100 s, of one slot of two"


def test_address_has_more_slots_than_a_user() -> None:
    limits = slotted(1)
    users = [Demand(user=user, address="x") for user in "abc"]
    assert [is_admitted(limits, each) for each in users] == [True, True, False]
    rejected = limits.hit(users[2], 0.0)
    assert isinstance(rejected, Decision)
    assert (rejected.detail, rejected.policy) == ("concurrency:address", "address-concurrency")


def test_request_without_a_slot_of_the_service_needs_none() -> None:
    limits, event = slotted(1), Demand(user="ann", holds_slot=False)
    assert all(is_admitted(limits, event) for _ in range(3))
    assert is_admitted(limits, ANN)


def test_rejected_request_takes_neither_units_nor_a_slot() -> None:
    limits = slotted(1, UserLimit("user-60s", 1, 60))
    assert is_admitted(limits, ANN)
    assert not is_admitted(limits, ANN)  # for want of a slot
    limits.give_back(ANN, 0.0, 0.0)
    assert is_admitted(limits, ANN)
    limits.release(ANN, None, 0.0)
    assert not is_admitted(limits, ANN)  # for want of units
    assert limits._users == limits._addresses == {}


@pytest.mark.parametrize(("processes", "slots"), [(2, 3), (3, 2), (9, 1)])
def test_one_of_several_processes_has_its_share(processes: int, slots: int) -> None:
    limits = slotted(5, processes=processes)
    assert [is_admitted(limits, ANN) for _ in range(5)].count(True) == slots
