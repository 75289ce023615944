"""Valid demands, and parsing of priorities."""

from __future__ import annotations

import importlib
import math
from collections.abc import Collection
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import autoglm_throttle
import autoglm_throttle.testing
from autoglm_throttle.types import Decision, Demand, LimitStatus, Priority, Reason, Rejected


@pytest.mark.parametrize(
    ("stated", "priority", "known"),
    [
        ("1", Priority.HIGH, True),
        ("2", Priority.MID, True),
        ("3", Priority.LOW, True),
        ("high", Priority.HIGH, True),
        (" MID\t", Priority.MID, True),
        ("Low", Priority.LOW, True),
        ("0", Priority.LOW, False),
        ("4", Priority.LOW, False),
        ("", Priority.LOW, False),
        ("1.0", Priority.LOW, False),
        ("highest", Priority.LOW, False),
        ("\u0661", Priority.LOW, False),
    ],
)
def test_one_is_high_two_is_mid_anything_else_is_low(stated: str, priority: Priority, known: bool) -> None:
    assert Priority.parse(stated) is priority
    assert Priority.knows(stated) is known


@given(stated=st.text())
def test_no_text_breaks_a_priority(stated: str) -> None:
    assert Priority.parse(stated) is Priority.LOW or Priority.knows(stated)


def test_the_most_important_comes_first() -> None:
    assert sorted(Priority) == [Priority.HIGH, Priority.MID, Priority.LOW]
    assert [priority.label for priority in Priority] == ["high", "mid", "low"]


@pytest.mark.parametrize("priority", Priority)
def test_demand_returns_the_priority_it_was_made_with(priority: Priority) -> None:
    assert Demand(priority).priority is priority


def test_reason_is_found_by_its_text() -> None:
    assert dict.fromkeys(Reason).keys() == {reason.value for reason in Reason}
    assert all(reason.value in frozenset(Reason) for reason in Reason)


@pytest.mark.parametrize("cost", [0.0, -1.0, math.nan, math.inf, -math.inf])
def test_a_cost_that_is_none_is_an_error(cost: float) -> None:
    with pytest.raises(ValueError, match="cost must be a finite number above 0"):
        Demand(cost=cost)


def test_demand_has_defaults_for_unstated_fields() -> None:
    demand = Demand()
    assert (demand.priority, demand.user, demand.cost) == (Priority.MID, "", 1.0)
    assert (demand.plan, demand.route, demand.address, demand.group) == (None, None, "", "")
    assert repr(Demand(Priority.LOW, "07f3", 2.5)) == "Demand(low, user='07f3', cost=2.5)"


def test_a_decision_lists_the_deciding_limit_first() -> None:
    other = LimitStatus("address-60s", 1000, 60, 999, 60.0)
    decision = Decision(
        True, Reason.OK, "", "user-60s", 100, 99, reset_after_s=60.0, window_s=60, others=(other,)
    )
    assert decision.limits == (LimitStatus("user-60s", 100, 60, 99, 60.0), other)
    assert Decision(False, Reason.RATE, "rate:low", "low", 100.0, 0.5, 0.005).limits == ()


def test_raised_rejection_carries_its_decision() -> None:
    decision = Decision(False, Reason.USER, "user:user-60s")
    error = Rejected(decision)
    assert error.decision is decision
    assert str(error) == "user:user-60s"


@pytest.mark.parametrize("slo_s", [0.0, -1.0, float("nan"), float("inf")])
def test_an_objective_is_a_finite_number_of_seconds_above_0(slo_s: float) -> None:
    with pytest.raises(ValueError, match="slo_s must be a finite number above 0"):
        Demand(slo_s=slo_s)
    assert Demand(slo_s=0.5).slo_s == 0.5
    assert Demand().slo_s is None


@pytest.mark.parametrize("name", ["user", "address", "group"])
def test_an_identity_that_is_no_text_is_an_error(name: str) -> None:
    """It would fail as a key during a decision, with a token and a slot already taken."""
    wrong: dict[str, Any] = {name: ["ann"]}
    with pytest.raises(TypeError, match="must be texts"):
        Demand(**wrong)


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("autoglm_throttle", " ".join(autoglm_throttle._MODULES.values()).split()),
        ("autoglm_throttle.testing", " ".join(autoglm_throttle.testing._MODULES.values()).split()),
    ],
    ids=["package", "testing"],
)
def test_lazy_names_are_exported_and_no_others(module: str, names: Collection[str]) -> None:
    loaded = importlib.import_module(module)
    assert names
    for name in names:
        assert name in loaded.__all__
        assert getattr(loaded, name).__name__ == name
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = loaded.Nothing
