"""Which table of limits applies, and that a caller and its address are charged together or not at all."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.limiting.decisions import decision_of, latest
from autoglm_throttle.limiting.user_limits import NO_LIMIT, LimitSets, Part, UserLimits
from autoglm_throttle.store.fallback import fair_share
from autoglm_throttle.types import Decision, Demand, Priority, Reason, UserLimit
from tests.limiting.reference_log import ReferenceLog
from tests.limiting.windows import Limits, per


def windows(
    *by_priority: Limits,
    plans: Mapping[str, Limits | None] | None = None,
    routes: Mapping[str, Limits | None] | None = None,
    factor: float = 10.0,
    max_users: int = 1000,
) -> UserLimits:
    limits = by_priority if len(by_priority) == 3 else by_priority * 3
    sets = LimitSets(limits, by_plan=plans or {}, by_route=routes or {}, address_factor=factor)
    return UserLimits(sets, max_users)


def hit(tested: UserLimits, demand: Demand, now: float = 0.0) -> Decision:
    verdict = tested.hit(demand, now)
    assert verdict != NO_LIMIT
    return decision_of(verdict)


def admitted(tested: UserLimits, demand: Demand, tries: int = 50) -> int:
    return sum(hit(tested, demand).allowed for _ in range(tries))


# --- which limits ---

PLANS: dict[str, Limits | None] = {"gold": per(40), "free": None, "staff": ()}
ROUTES: dict[str, Limits | None] = {"chat": per(5), "plain": None, "open": ()}


@pytest.mark.parametrize(
    ("priority", "plan", "route", "units"),
    [
        (Priority.HIGH, None, None, 30),
        (Priority.MID, None, None, 20),
        (Priority.LOW, None, None, 10),
        (Priority.LOW, "gold", None, 40),
        (Priority.LOW, "free", None, 10),
        (Priority.LOW, "never heard of", None, 10),
        (Priority.LOW, "staff", None, None),
        (Priority.HIGH, None, "chat", 5),
        (Priority.HIGH, "gold", "chat", 5),
        (Priority.HIGH, "staff", "chat", 5),
        (Priority.HIGH, "gold", "plain", 40),
        (Priority.HIGH, "gold", "open", None),
        (Priority.MID, None, "plain", 20),
        (Priority.MID, None, "open", None),
    ],
)
def test_route_before_plan_before_priority(
    priority: Priority, plan: str | None, route: str | None, units: int | None
) -> None:
    tested = windows(per(30), per(20), per(10), plans=PLANS, routes=ROUTES)
    demand = Demand(priority, "ann", plan=plan, route=route)
    if units is None:
        assert tested.hit(demand, 0.0) == NO_LIMIT, "off lifts the limit"
    else:
        assert admitted(tested, demand) == units


@pytest.mark.parametrize(("priority", "units"), list(zip(Priority, (3, 2, None), strict=True)))
def test_each_priority_has_its_own(priority: Priority, units: int | None) -> None:
    tested = windows(per(3), per(2), ())
    if units is None:
        assert tested.hit(Demand(priority, "ann"), 0.0) == NO_LIMIT
    else:
        assert admitted(tested, Demand(priority, "ann")) == units


def test_equal_limits_are_one_limit_whatever_the_priority() -> None:
    tested = windows(per(4))
    assert [hit(tested, Demand(priority, "ann")).allowed for priority in (*Priority, *Priority)] == [
        *[True] * 4,
        *[False] * 2,
    ]
    assert tested.users == 1


def test_each_set_of_limits_counts_for_itself() -> None:
    tested = windows(per(4), plans={"gold": per(4)}, routes={"chat": per(4)})
    demands = [Demand(user="ann"), Demand(user="ann", plan="gold"), Demand(user="ann", route="chat")]
    assert [admitted(tested, demand) for demand in demands] == [4, 4, 4]
    assert tested.users == 3


@pytest.mark.parametrize(
    ("tested", "there_is"),
    [
        (windows(()), False),
        (windows((), plans={"staff": ()}, routes={"open": (), "plain": None}), False),
        (windows((), (), per(1)), True),
        (windows((), plans={"gold": per(1)}), True),
        (windows((), routes={"chat": per(1)}), True),
    ],
)
def test_whether_there_is_any_limit(tested: UserLimits, there_is: bool) -> None:
    verdict = tested.hit(Demand(plan="gold", route="chat", priority=Priority.LOW), 0.0)
    assert (verdict != NO_LIMIT) is there_is


@pytest.mark.parametrize(("cost", "units"), [(0.01, 1), (1.0, 1), (1.01, 2), (2.0, 2), (2.5, 3)])
def test_a_cost_is_rounded_up_to_whole_units(cost: float, units: int) -> None:
    assert hit(windows(per(10)), Demand(user="ann", cost=cost)).remaining == 10 - units


def test_empty_user_is_limited_as_any_other() -> None:
    assert admitted(windows(per(3)), Demand(user="")) == 3


# --- the address beside an unverified caller ---


def test_invented_keys_gain_no_more_than_the_factor() -> None:
    tested = windows(per(4), factor=2.5)
    demands = [Demand(user=f"invented {n}", address="host") for n in range(50)]
    assert sum(hit(tested, demand).allowed for demand in demands) == 10
    rejection = hit(tested, demands[0], 1.0)
    assert (rejection.reason, rejection.detail) == (Reason.USER, "user:address-60s")
    assert (rejection.policy, rejection.limit, rejection.retry_after_s) == ("address-60s", 10, 59.0)


def test_the_factor_is_rounded_up() -> None:
    tested = windows(per(3), factor=1.5)
    assert sum(hit(tested, Demand(user=str(n), address="host")).allowed for n in range(20)) == 5


def test_admission_carries_user_and_address() -> None:
    decision = hit(windows(per(4)), Demand(user="ann", address="host"))
    assert (decision.policy, decision.remaining) == ("user-60s", 3)
    assert [(state.name, state.limit, state.remaining) for state in decision.limits] == [
        ("user-60s", 4, 3),
        ("address-60s", 40, 39),
    ]


def test_rejection_by_one_charges_nothing_to_the_other() -> None:
    tested = windows(per(2), factor=2.0)
    assert admitted(tested, Demand(user="ann", address="host"), 10) == 2
    assert admitted(tested, Demand(user="ben", address="host"), 10) == 2, "ann's eight refusals cost nothing"
    assert not hit(tested, Demand(user="cid", address="host")).allowed
    assert admitted(tested, Demand(user="cid", address="elsewhere"), 10) == 2, "nor did the host's refusal"


@pytest.mark.parametrize(
    ("of_ann", "of_host", "wait", "detail"),
    [(0.0, 20.0, 50.0, "user:address-60s"), (20.0, 0.0, 50.0, "user:user-60s")],
)
def test_rejection_by_both_waits_for_the_later(
    of_ann: float, of_host: float, wait: float, detail: str
) -> None:
    tested = windows(per(2), factor=1.0)
    charges = [(of_ann, Demand(user="ann", cost=2.0)), (of_host, Demand(user="x", address="host", cost=2.0))]
    for at, demand in sorted(charges, key=lambda charge: charge[0]):
        assert hit(tested, demand, at).allowed
    demand = Demand(user="ann", address="host")
    rejection = hit(tested, demand, 30.0)
    assert (rejection.retry_after_s, rejection.detail) == (wait, detail)
    assert not hit(tested, demand, 79.9).allowed
    assert hit(tested, demand, 80.0).allowed


def test_a_host_that_invents_keys_cannot_push_others_out_of_the_table() -> None:
    tested = windows(per(3), factor=1.0, max_users=20)
    neighbours = [Demand(user=f"neighbour {n}") for n in range(10)]
    for demand in neighbours:
        assert [hit(tested, demand).allowed for _ in range(2)] == [True, True]
    assert sum(hit(tested, Demand(user=f"invented {n}", address="host")).allowed for n in range(500)) == 3
    assert tested.users == 10 + 3 + 1
    assert [admitted(tested, demand) for demand in neighbours] == [1] * 10, "all are remembered"


pairs = st.tuples(
    st.sampled_from([0.0, 0.5, 1.0 - 1e-9, 1.0, 3.0]),
    st.sampled_from(["ann", "ben", "cid"]),
    st.sampled_from(["", "host", "elsewhere"]),
    st.sampled_from([0.5, 1.0, 1.5, 3.0]),
)


@given(trace=st.lists(pairs, max_size=40), share=st.floats(0.0, 0.999))
def test_callers_and_addresses_against_two_naive_logs(
    trace: list[tuple[float, str, str, float]], share: float
) -> None:
    limits = (UserLimit("user-1s", 2, 1), UserLimit("user-5s", 4, 5))
    wide = (UserLimit("address-1s", 3, 1), UserLimit("address-5s", 6, 5))
    tested, users, addresses, now = (
        windows(limits, factor=1.5),
        ReferenceLog(limits),
        ReferenceLog(wide),
        50.0,
    )
    for gap, user, address, cost in trace:
        now += gap
        units = math.ceil(cost)
        ahead = [copy.deepcopy(users).hit(user, units, now)]
        if address:
            ahead.append(copy.deepcopy(addresses).hit(address, units, now))
        decision = hit(tested, Demand(user=user, address=address, cost=cost), now)
        assert decision.allowed is all(each.allowed for each in ahead)
        assert decision.retry_after_s == pytest.approx(max(each.retry_after_s for each in ahead), abs=1e-9)
        if decision.allowed:
            users.hit(user, units, now)
            addresses.hit(address, units, now) if address else None
        elif math.isfinite(decision.retry_after_s):
            again = Demand(user=user, address=address, cost=cost)
            early = now + min(decision.retry_after_s * share, decision.retry_after_s - 1e-7)
            assert early < now or not hit(copy.deepcopy(tested), again, early).allowed
            assert hit(copy.deepcopy(tested), again, now + decision.retry_after_s).allowed
    for name in ("ann", "ben", "cid"):
        assert all(users.most_in_any_window(name, each.window_s) <= each.limit for each in limits)
    for name in ("host", "elsewhere"):
        assert all(addresses.most_in_any_window(name, each.window_s) <= each.limit for each in wide)


# --- memory ---


def test_neighbourhoods_take_a_tenth_of_the_table_and_are_swept_with_it() -> None:
    tested = windows(per(1), max_users=50)
    for n in range(50):
        assert hit(tested, Demand(user=f"user {n}", group="full")).allowed
    shared = [hit(tested, Demand(user=f"new {n}", group=f"group {n}")).allowed for n in range(20)]
    assert shared == [True] * 6 + [False] * 14, "five neighbourhoods, and one log for all others"
    assert (tested.users, tested.overflowed) == (50, 20)
    tested.sweep(60.0, 100)
    assert tested.users == 0
    assert hit(tested, Demand(user="new 19", group="group 19"), 60.0).allowed


def test_a_large_multiple_is_counted_in_buckets_and_the_limit_itself_exactly() -> None:
    tested = windows(per(600), factor=2.0)
    demands = [Demand(user=f"user {n}", address="host", cost=500.0) for n in range(3)]
    assert [hit(tested, demand, 0.5).allowed for demand in demands] == [True, True, False]
    assert hit(tested, demands[2], 59.0).retry_after_s == 2.0, "the address's bucket leaves after 61 s"
    assert hit(tested, demands[0], 60.5).policy == "address-60s", "its user alone could again"
    assert hit(tested, demands[0], 61.0).allowed
    assert tested.give_back(demands[0], 61.0, 61.0)


# --- where only a part may be used up here, and other sizes ---


def within(
    tested: UserLimits, demand: Demand, user: Part | None, address: Part | None = None, now: float = 0.0
) -> Decision:
    parts = {"user": user, "address": address}
    verdict = tested.hit_units(demand, math.ceil(demand.cost), now, parts)
    assert verdict != NO_LIMIT
    return decision_of(verdict)


def test_of_a_user_and_its_address_only_a_part_may_be_used_up() -> None:
    tested = windows(per(10), factor=2.0)
    ann, ben = (Demand(user=name, address="host") for name in ("ann", "ben"))
    assert [within(tested, ann, (4,), (6,)).allowed for _ in range(5)] == [True] * 4 + [False]
    assert within(tested, ann, (4,), (6,)).policy == "user-60s"
    assert [within(tested, ben, None, (6,)).allowed for _ in range(3)] == [True] * 2 + [False]
    assert within(tested, ben, None, (6,)).policy == "address-60s"
    assert [state.remaining for state in hit(tested, ben).limits] == [7, 13], (
        "what was refused was not charged"
    )


def test_what_was_charged_against_a_part_is_charged_and_rounded_up_as_ever() -> None:
    tested = windows(per(10))
    assert within(tested, Demand(user="ann", cost=2.1), (5,)).remaining == 2
    assert not within(tested, Demand(user="ann", cost=2.1), (5,)).allowed
    assert within(tested, Demand(user="ann", cost=2.1), None).remaining == 4
    assert tested.give_back(Demand(user="ann", cost=2.1), 0.0, 0.0)
    assert hit(tested, Demand(user="ann")).remaining == 6


def test_where_no_limit_applies_there_is_no_part_either() -> None:
    tested = windows(per(10), plans={"staff": ()})
    demand = Demand(user="ann", address="host", plan="staff")
    assert tested.hit_units(demand, 1, 0.0, {"user": (1,)}) == NO_LIMIT
    assert tested.users == 0


@pytest.mark.parametrize("plan", [None, "gold"])
def test_every_table_is_resized_and_forgets_nothing(plan: str | None) -> None:
    plans: dict[str, Limits | None] = {"gold": per(40)} if plan else {}
    sets = LimitSets([per(40)] * 3, by_plan=plans, by_route={}, address_factor=2.0)
    tested, demand = UserLimits(sets, 50), Demand(user="ann", address="host", plan=plan)
    assert [state.limit for state in hit(tested, demand).limits] == [40, 80]
    tested.resize(sets.map(lambda limits: fair_share(limits, 10)))
    assert [(state.limit, state.remaining) for state in hit(tested, demand).limits] == [(4, 2), (8, 6)]
    assert admitted(tested, demand) == 2
    tested.resize(sets)
    assert [(state.limit, state.remaining) for state in hit(tested, demand).limits] == [(40, 35), (80, 75)]


def test_resets_of_a_waiting_request_come_closer_in_both_forms() -> None:
    tested = windows(per(5) + per(9, 3600))
    usages = tested.hit(Demand(user="ann"), 0.0)
    for verdict in (usages, decision_of(usages)):
        later = decision_of(latest(verdict, 10.0)).limits
        assert [(state.name, state.remaining, state.reset_s) for state in later] == [
            ("user-60s", 4, 50.0),
            ("user-3600s", 8, 3590.0),
        ]
    assert [state.reset_s for state in decision_of(latest(usages, 100.0)).limits] == [0.0, 3500.0]
    no_limit = decision_of(())
    assert latest(no_limit, 10.0) is no_limit
