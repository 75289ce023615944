"""Which limits a demand is held to, and what the sets are called."""

from __future__ import annotations

import pytest

from autoglm_throttle.limiting.user_limits import LimitSets
from autoglm_throttle.types import UNITS_AT_MOST, Demand, Priority, UserLimit
from tests.limiting.windows import Limits, per


def sets(*by_priority: Limits, factor: float = 2.0) -> LimitSets:
    return LimitSets(
        by_priority,
        by_plan={"gold": per(40), "free": None, "staff": ()},
        by_route={"chat": per(5), "plain": None, "open": ()},
        address_factor=factor,
    )


def name_of(tested: LimitSets, demand: Demand) -> str | None:
    found = tested.of(demand)
    return None if found is None else found.name


@pytest.mark.parametrize(
    ("plan", "route", "name"),
    [
        (None, None, "user"),
        ("gold", None, "plan-gold"),
        ("free", None, "user"),
        ("staff", None, None),
        ("staff", "chat", "route-chat"),
        ("gold", "plain", "plan-gold"),
        ("gold", "open", None),
        ("never heard of", "never heard of", "user"),
    ],
)
def test_route_before_plan_before_priority(plan: str | None, route: str | None, name: str | None) -> None:
    assert name_of(sets(per(3), per(2), per(1)), Demand(plan=plan, route=route)) == name


@pytest.mark.parametrize(
    ("limits", "names"),
    [
        ((per(1), per(1), per(1)), ["user", "user", "user"]),
        ((per(3), per(2), per(1)), ["user-high", "user", "user-low"]),
        ((per(1), per(2), per(1)), ["user-high-low", "user", "user-high-low"]),
        ((per(2), per(2), per(1)), ["user", "user", "user-low"]),
        ((per(3), (), per(3)), ["user-high-low", None, "user-high-low"]),
        (((), (), ()), [None, None, None]),
    ],
)
def test_the_set_of_mid_is_that_of_users_in_general(limits: tuple[Limits, ...], names: list[str]) -> None:
    tested = sets(*limits)
    assert [name_of(tested, Demand(priority)) for priority in Priority] == names


def test_each_set_is_there_once_and_none_is_called_like_another() -> None:
    tested = sets(per(1), per(2), per(1))
    names = [each.name for each in tested]
    assert sorted(names) == ["plan-gold", "route-chat", "user", "user-high-low"]
    assert len({id(each) for each in tested}) == len(names)


def test_an_address_may_take_a_multiple_rounded_up_and_never_more_than_can_be_counted() -> None:
    limits = (UserLimit("user-1s", 3, 1), UserLimit("user-60s", UNITS_AT_MOST - 1, 60))
    found = sets(limits, limits, limits, factor=1.5).of(Demand())
    assert found is not None
    assert found.users == limits
    assert found.addresses == (UserLimit("address-1s", 5, 1), UserLimit("address-60s", UNITS_AT_MOST, 60))


def test_whether_the_priority_alone_decides() -> None:
    assert not sets(per(1), per(1), per(1)).plain
    alone = LimitSets([per(1)] * 3, by_plan={"free": None}, by_route={}, address_factor=1.0)
    assert alone.plain
    assert name_of(alone, Demand(plan="free")) == "user"


def test_the_same_sets_with_other_limits() -> None:
    tested = sets(per(30), per(20), ())
    halved = tested.map(lambda limits: tuple(UserLimit(x.name, x.limit // 2, x.window_s) for x in limits))
    for demand, units in (
        (Demand(Priority.HIGH), 15),
        (Demand(), 10),
        (Demand(plan="gold"), 20),
        (Demand(route="chat"), 2),
    ):
        found, before = halved.of(demand), tested.of(demand)
        assert found is not None
        assert before is not None
        assert (found.name, found.users[0].limit) == (before.name, units)
        assert found.addresses[0].limit == before.addresses[0].limit // 2
    assert halved.of(Demand(Priority.LOW)) is None
    assert halved.of(Demand(plan="staff")) is None
    assert before is not None
    assert before.users[0].limit == 5, "what it was made of stays as it was"
    assert len(list(halved)) == len(list(tested))
