"""Policies and settings are frozen, compare by what is set, and report each problem once."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from autoglm_throttle.settings import (
    BreakerSettings,
    ConfigError,
    GuardPolicy,
    PlanPolicy,
    RoutePolicy,
    Settings,
)

SECRET = "hunter2hunter2hunter2"
SETTINGS = Settings(plans={"gold": {"user_limit": "5/s"}}, guards={"db": {"failures": 3}}, key_secret=SECRET)


def problems(**values: Any) -> set[str]:
    """Return the places of the problems of settings."""
    with pytest.raises(ConfigError) as caught:
        Settings(**values)
    return {problem.variable for problem in caught.value.problems}


class Outer(BaseModel):
    """A user's model with a field of ours."""

    throttle: Settings


def test_errors_of_pydantic_show_no_value() -> None:
    for model, values in (
        (Settings, {"key_secret": SECRET, "slo_s": "bad"}),
        (Outer, {"throttle": {"key_secret": SECRET, "slo_s": "bad"}}),
    ):
        with pytest.raises((ValidationError, ConfigError)) as caught:
            model.model_validate(values)
        assert SECRET not in str(caught.value)


@pytest.mark.parametrize("part", [SETTINGS, SETTINGS.callers, SETTINGS.guards["db"], RoutePolicy("/a")])
def test_field_cannot_be_set(part: Any) -> None:
    with pytest.raises(AttributeError, match="settings are frozen") as caught:
        part.key_secret = SECRET
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("table", ["plans", "guards"])
def test_table_cannot_be_changed_and_can_be_copied(table: str) -> None:
    policies: Any = getattr(SETTINGS, table)
    for change in (
        lambda: policies.__setitem__("a", None),
        lambda: policies.pop("gold", None),
        policies.clear,
        lambda: policies.update(a=1),
        lambda: policies.setdefault("a", 1),
    ):
        with pytest.raises(TypeError, match="frozen"):
            change()
    assert copy.deepcopy(policies) == pickle.loads(pickle.dumps(policies)) == policies
    assert len(policies) == 1


def test_guards_with_other_explicit_values_are_not_equal() -> None:
    default = BreakerSettings().failures
    assert BreakerSettings(failures=default) != BreakerSettings()
    assert GuardPolicy("a", failures=default) != GuardPolicy("a")
    assert (
        len({GuardPolicy("a", failures=3), GuardPolicy("a", failures=3), GuardPolicy("a", failures=4)}) == 2
    )
    assert Settings(breaker_failures=default) == Settings()
    assert Settings(guards=[GuardPolicy("a", failures=default)]) != Settings(guards=[GuardPolicy("a")])
    assert object() != SETTINGS


def test_name_of_a_route_with_wrong_methods_is_not_compared() -> None:
    routes = [{"pattern": "/a"}, {"pattern": "/a", "methods": "P OST"}]
    assert problems(routes=routes) == {"routes[1].methods"}


@pytest.mark.parametrize("column", [{"cost": 0}, {"priority": "hi"}, {"user_limit": "5/x"}])
def test_exempt_route_with_a_wrong_column_has_both_problems(column: dict[str, object]) -> None:
    (name,) = column
    table = {"pattern": "/a", "exempt": True, **column}
    assert problems(routes=[table]) == {"routes[0].exempt", f"routes[0].{name}"}


@pytest.mark.parametrize("table", ["plans", "guards"])
def test_name_is_no_key_of_a_named_table(table: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Settings(**{table: {"a": {"nme": 1, "name": "a"}}})  # type: ignore[arg-type]  # wrong on purpose
    assert {problem.variable for problem in caught.value.problems} == {f"{table}.a.nme", f"{table}.a.name"}
    assert not any(
        "mean name" in problem.hint or " name," in problem.hint for problem in caught.value.problems
    )


def test_positional_argument_is_given_once() -> None:
    for make in (
        lambda: RoutePolicy("/a", pattern="/b"),  # type: ignore[misc]  # wrong on purpose
        lambda: PlanPolicy("a", "b"),  # type: ignore[call-arg]  # wrong on purpose
        lambda: BreakerSettings(3),  # type: ignore[call-arg]  # wrong on purpose
    ):
        with pytest.raises(TypeError, match="positional arguments of"):
            make()


@pytest.mark.parametrize("raw", [None, [1], "a"])
def test_policy_from_no_table_is_an_error_of_pydantic(raw: object) -> None:
    with pytest.raises(ValidationError):
        GuardPolicy.model_validate(raw)


def test_message_of_a_huge_list_is_short() -> None:
    for values in (
        {"trusted_proxies": "a," * 500_000},
        {"exempt_paths": "a," * 50_000},
        {"x" * 1_000_000: 1},
    ):
        with pytest.raises(ConfigError) as caught:
            Settings(**values)
        assert len(str(caught.value)) < 10_000
