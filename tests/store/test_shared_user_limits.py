"""User limits shared through a store: checks, deny cache, outages and refunds."""

import math
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from autoglm_throttle.limiting.user_limits import NO_LIMIT
from autoglm_throttle.store.health import HealthState
from autoglm_throttle.store.protocol import StoreErrorKind, WindowEntry
from autoglm_throttle.types import Decision, Demand, Priority, Reason, StoreFailureMode, UserLimit
from tests.limiting.windows import SlidingWindow
from tests.store.scripted_store import denied, granted
from tests.store.shared_user_limits import (
    ALICE,
    BOB,
    MAX_USERS,
    MINUTE,
    SECOND,
    Question,
    Shared,
    answer_of,
    numbers,
)


def test_a_demand_without_limits_is_not_asked_about() -> None:
    assert Shared().windows.hit(ALICE, 0.0) == NO_LIMIT
    assert Shared(MINUTE, plans={"gold": ()}).windows.hit(Demand(user="x", plan="gold"), 0.0) == NO_LIMIT


def test_check_charges_user_and_wider_address_limits() -> None:
    shared = Shared(MINUTE)
    (charge,) = shared.question(ALICE, 0.0).entry.charges
    assert (charge.kind, charge.user, charge.units, charge.limits) == ("user", "a" * 16, 1, (MINUTE,))
    user, address = shared.question(Demand(user="u", address="v", cost=2.5), 0.0).entry.charges
    assert (user.kind, user.units, address.kind, address.user, address.units) == (
        "user",
        3,
        "address",
        "v",
        3,
    )
    assert address.limits == (UserLimit("address-60s", 20, 60),)


def test_checks_of_callers_are_kept_and_forgotten_one_at_a_time() -> None:
    shared = Shared(MINUTE)
    users = [Demand(user=f"{number:016x}") for number in range(MAX_USERS + 1)]
    first, *others = (shared.question(user, 0.0).entry for user in users[:MAX_USERS])
    assert shared.question(users[0], 1.0).entry is first
    shared.question(users[-1], 2.0)
    assert [shared.question(user, 3.0).entry for user in users[1:MAX_USERS]] == others
    assert shared.question(users[0], 4.0).entry is not first
    assert shared.question(Demand(user=users[5].user, cost=2), 5.0).entry.charges[0].units == 2


def test_each_set_of_limits_has_names_of_its_own_in_the_store() -> None:
    shared = Shared(MINUTE, plans={"gold": (SECOND,)})
    user, address = shared.question(Demand(user="u", address="v", plan="gold"), 0.0).entry.charges
    assert (user.kind, address.kind) == ("plan-gold", "plan-gold-address")


def test_an_answer_becomes_the_numbers_of_a_decision() -> None:
    shared = Shared(MINUTE)
    decision = shared.hit(ALICE, 0.0, [0, 4, 30_500_000, 1])
    assert numbers(decision) == (True, Reason.OK, "user-60s", 4, 0.0)
    assert (decision.limit, decision.window_s, decision.reset_after_s) == (10, 60, 30.5)
    decision = shared.hit(BOB, 0.0, [1_500_000, 0, 30_500_000, 0])
    assert numbers(decision) == (False, Reason.USER, "user-60s", 0, 1.5)
    assert decision.detail == "user:user-60s"


def test_longest_rejection_or_least_remaining_limit_decides() -> None:
    both = (MINUTE, SECOND)
    decision = Shared(*both).hit(ALICE, 0.0, [0, 9, 60_000_000, 1, 0, 1, 1_000_000, 1])
    assert numbers(decision) == (True, Reason.OK, "user-1s", 1, 0.0)
    assert [(state.name, state.remaining) for state in decision.others] == [("user-60s", 9)]
    decision = Shared(*both).hit(ALICE, 0.0, [50_000_000, 0, 60_000_000, 1, 500_000, 0, 1_000_000, 1])
    assert numbers(decision) == (False, Reason.USER, "user-60s", 0, 50.0)
    assert [(state.name, state.remaining) for state in decision.others] == [("user-1s", 0)]
    decision = Shared(*both).hit(ALICE, 0.0, [0, 8, 60_000_000, 1, 500_000, 0, 1_000_000, 1])
    assert numbers(decision) == (False, Reason.USER, "user-1s", 0, 0.5)


def test_cost_above_limit_is_too_large_and_asked_once() -> None:
    shared = Shared(MINUTE)
    demand = Demand(user="u", cost=11)
    decision = shared.hit(demand, 0.0, [-1, 10, 0, 0])
    assert numbers(decision) == (False, Reason.TOO_LARGE, "user-60s", 10, math.inf)
    assert shared.known(demand, 3600.0).reason is Reason.TOO_LARGE


def test_longer_rejection_of_user_and_address_decides() -> None:
    demand = Demand(user="u", address="v")
    allowed = Shared(MINUTE).hit(demand, 0.0, [*granted(5), *granted(15)])
    assert [(state.name, state.remaining) for state in allowed.limits] == [
        ("user-60s", 5),
        ("address-60s", 15),
    ]
    by_address = Shared(MINUTE).hit(demand, 0.0, [*granted(6), *denied(9_000_000)])
    assert numbers(by_address) == (False, Reason.USER, "address-60s", 0, 9.0)
    by_user = Shared(MINUTE).hit(demand, 0.0, [*denied(9_500_000), *denied(9_000_000)])
    assert by_user.policy == "user-60s"


def test_denial_is_cached_until_store_may_allow() -> None:
    shared = Shared(MINUTE)
    shared.hit(ALICE, 10.0, denied(5_000_000))
    again = shared.known(ALICE, 10.5)
    assert numbers(again) == (False, Reason.USER, "user-60s", 0, 4.5)
    assert shared.windows.view().deny_cache_hits == 1
    assert isinstance(shared.windows.hit(BOB, 10.5), WindowEntry)
    assert isinstance(shared.windows.hit(ALICE, 11.0), WindowEntry)


def test_refund_to_store_ends_the_cached_denial() -> None:
    shared = Shared(MINUTE)
    question = shared.question(ALICE, 0.0)
    answer = granted(0)
    assert question.resolve(answer, 0.0).allowed
    shared.hit(ALICE, 0.0, denied())
    question.undo(0.1)
    assert shared.store.given_back == [(tuple(question.entry.charges), answer)]
    assert isinstance(shared.windows.hit(ALICE, 0.1), WindowEntry)
    question.undo(0.2)
    assert len(shared.store.given_back) == 1


def test_rejected_check_refunds_nothing_and_stays_cached() -> None:
    shared = Shared(MINUTE)
    question = shared.question(ALICE, 0.0)
    question.resolve(denied(), 0.0)
    question.undo(0.0)
    assert not shared.store.given_back
    assert not shared.known(ALICE, 0.5).allowed


@pytest.mark.parametrize("error", list(StoreErrorKind))
def test_without_the_store_each_process_goes_by_its_share(error: StoreErrorKind) -> None:
    shared = Shared(MINUTE, processes=4)
    decisions = [shared.hit(ALICE, 0.0, error) for _ in range(4)]
    assert [decision.allowed for decision in decisions] == [True, True, True, False]
    assert decisions[-1].reason is Reason.USER
    assert decisions[-1].limit == 3
    assert shared.windows.view().fallbacks[error] == 4
    assert shared.windows.store_health.state is HealthState.UP


def test_allow_mode_admits_all_without_store() -> None:
    shared = Shared(MINUTE, on_error=StoreFailureMode.ALLOW)
    assert all(shared.hit(ALICE, 0.0, StoreErrorKind.TIMEOUT).allowed for _ in range(50))
    assert shared.hit(ALICE, 0.0, StoreErrorKind.TIMEOUT).limits == ()


def test_deny_mode_rejects_all_until_next_probe() -> None:
    shared = Shared(MINUTE, on_error=StoreFailureMode.DENY)
    shared.lose(5.0)
    decision = shared.known(ALICE, 5.25)
    assert numbers(decision) == (False, Reason.STORE, "store", 0.0, 0.75)
    assert decision.detail == "store:unreachable"


def test_rejection_during_a_call_allows_immediate_retry() -> None:
    """A single late answer is no outage: there is no probe to wait for."""
    decision = Shared(MINUTE, on_error=StoreFailureMode.DENY).hit(ALICE, 0.0, StoreErrorKind.TIMEOUT)
    assert numbers(decision) == (False, Reason.STORE, "store", 0.0, 0.0)


def test_outage_sends_no_checks_and_one_probe() -> None:
    shared = Shared(MINUTE)
    shared.lose(0.0)
    assert shared.store.dropped == 1
    assert shared.known(ALICE, 0.5).allowed
    assert not shared.probe_due()
    shared.known(ALICE, 1.0)
    assert shared.probe_due()
    shared.windows.probe_due = False
    shared.known(ALICE, 1.1)
    assert not shared.probe_due()
    shared.end_probe(None, 1.2)
    assert shared.windows.store_health.state is HealthState.UP
    assert isinstance(shared.windows.hit(ALICE, 1.2), WindowEntry)
    assert [event.event for event in shared.windows.events] == ["store_lost", "store_recovered"]


def test_store_reported_silent_waits_for_probe() -> None:
    shared = Shared(MINUTE)
    shared.windows.report_failure(1.0)
    assert shared.probe_due()
    shared.windows.probe_due = False
    assert shared.known(ALICE, 1.0).allowed
    shared.windows.report_failure(1.01)
    assert not shared.probe_due()
    shared.end_probe(None, 1.02)
    assert shared.windows.events == []
    assert isinstance(shared.windows.hit(ALICE, 1.03), WindowEntry)


@pytest.mark.parametrize("error", StoreErrorKind)
def test_listener_is_notified_of_silence_not_of_denial(
    error: StoreErrorKind,
) -> None:
    shared = Shared(MINUTE, failures=1)
    told: list[float] = []
    shared.windows.on_store_lost = told.append
    shared.end_call(error, 3.0)
    silent = error in {StoreErrorKind.TIMEOUT, StoreErrorKind.UNREACHABLE, StoreErrorKind.LOST}
    assert told == ([3.0] if silent else [])


def test_unsupported_loop_decides_locally_without_store_error() -> None:
    shared = Shared(MINUTE)
    shared.askable = False
    assert shared.known(ALICE, 0.0).remaining == 9
    assert shared.windows.view().fallbacks[StoreErrorKind.LOOP] == 1
    assert shared.windows.store_health.state is HealthState.UP


def test_local_charge_is_refunded_locally() -> None:
    shared = Shared(UserLimit("user-60s", 1, 60))
    assert not shared.windows.give_back(ALICE, 0.0, 0.0)
    question = shared.question(ALICE, 0.0)
    assert question.resolve(StoreErrorKind.TIMEOUT, 0.5).allowed
    question.undo(0.6)
    assert shared.hit(ALICE, 0.7, StoreErrorKind.TIMEOUT).allowed
    refused_here = shared.question(ALICE, 0.7)
    assert not refused_here.resolve(StoreErrorKind.TIMEOUT, 0.7).allowed
    refused_here.undo(0.7)
    assert not shared.hit(ALICE, 0.8, StoreErrorKind.TIMEOUT).allowed
    assert not shared.store.given_back


def test_charge_without_check_is_refunded_by_instant() -> None:
    shared = Shared(UserLimit("user-60s", 1, 60))
    shared.lose(0.0)
    assert shared.known(ALICE, 0.0).allowed
    assert shared.windows.give_back(ALICE, 0.0, 0.1)
    assert shared.known(ALICE, 0.2).allowed


def test_idle_users_of_an_outage_are_forgotten() -> None:
    shared = Shared(MINUTE)
    shared.windows.sweep(0.0, 10)
    assert shared.windows.users == shared.windows.overflowed == 0
    shared.lose(0.0)
    shared.known(ALICE, 0.0)
    assert shared.windows.users == 1
    shared.windows.sweep(61.0, 10)
    assert shared.windows.users == 0
    assert shared.windows.overflowed == 0


def test_view_shows_cause_and_start() -> None:
    shared = Shared(MINUTE)
    assert shared.windows.view().cause is None
    shared.lose(7.0)
    view = shared.windows.view()
    assert (view.kind, view.state, view.cause, view.since_s) == (
        "scripted",
        HealthState.DOWN,
        StoreErrorKind.UNREACHABLE,
        7.0,
    )


steps = st.lists(
    st.tuples(st.integers(0, 64), st.sampled_from([ALICE, BOB]), st.integers(1, 4)), min_size=1, max_size=40
)


@example([(0, ALICE, 2), (0, ALICE, 4), (1, ALICE, 2), (0, ALICE, 4)])
@given(steps)
def test_decisions_equal_those_of_memory(
    trace: Sequence[tuple[int, Demand, int]],
) -> None:
    """The deny cache never rejects a check that the store would allow, and its numbers are the store's."""
    limits = (UserLimit("user-2s", 5, 2), UserLimit("user-10s", 9, 10))
    shared, memory, store = Shared(*limits), SlidingWindow(limits, 10), SlidingWindow(limits, 10)
    now = 100.0
    for ticks, who, units in trace:
        now += ticks / 64
        demand = Demand(Priority.MID, who.user, units)
        wanted = memory.hit(demand.user, units, now)
        found = shared.windows.hit(demand, now)
        if isinstance(found, WindowEntry):
            answer = answer_of(store.hit(demand.user, units, now), limits)
            found = Question(shared.windows, demand, found, now).resolve(answer, now)
        else:
            store.hit(demand.user, units, now)
        assert isinstance(found, Decision)
        assert numbers(found)[:3] == numbers(wanted)[:3]
        assert found.retry_after_s == pytest.approx(wanted.retry_after_s, abs=2e-6)
