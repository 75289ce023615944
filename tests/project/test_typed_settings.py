"""The typed arguments of settings agree with the declarations of the groups."""

from __future__ import annotations

from enum import Enum
from types import NoneType
from typing import Any, get_args, get_type_hints

import pytest
from pydantic import BaseModel

from autoglm_throttle.settings import (
    BreakerSettings,
    GuardPolicy,
    PlanPolicy,
    ResourcePolicy,
    RoutePolicy,
    settings_table,
    values,
)
from autoglm_throttle.settings.groups import GROUP_OF, GROUPS
from autoglm_throttle.settings.groups.breaker import BreakerValues
from autoglm_throttle.settings.guard_policy import GuardValues
from autoglm_throttle.settings.plan_policy import PlanValues
from autoglm_throttle.settings.route_policy import ResourceValues, RouteValues
from autoglm_throttle.settings.sources import TABLES
from autoglm_throttle.types import Priority

HINTS = get_type_hints(values.SettingValues)
POLICIES: dict[str, tuple[type[Any], type[BaseModel], set[str]]] = {
    "breaker": (BreakerValues, BreakerSettings, set()),
    "guard": (GuardValues, GuardPolicy, {"name"}),
    "plan": (PlanValues, PlanPolicy, {"name"}),
    "route": (RouteValues, RoutePolicy, {"pattern"}),
    "resource": (ResourceValues, ResourcePolicy, set()),
}
"""Kind -> its typed arguments, its model, and the column that is given by position."""


def annotation(name: str) -> Any:
    return GROUPS[GROUP_OF[name]].model_fields[settings_table()[name].field].annotation


def enums(hint: Any) -> set[type[Enum]]:
    """The enums anywhere in a type."""
    if isinstance(hint, type) and issubclass(hint, Enum):
        return {hint}
    return {found for part in get_args(hint) for found in enums(part)}


def words(hint: Any) -> set[str]:
    """The texts of the literals anywhere in a type."""
    return {part for part in get_args(hint) if isinstance(part, str)}.union(*map(words, get_args(hint)))


def test_arguments_are_the_settings_and_the_tables() -> None:
    assert set(HINTS) == {*settings_table(), *TABLES}


def test_arguments_of_tests_are_all_but_the_gpu() -> None:
    assert set(get_type_hints(values.ValuesBesideGpu)) == set(HINTS) - {"gpu"}


@pytest.mark.parametrize("kind", POLICIES)
def test_arguments_of_a_policy_are_its_columns(kind: str) -> None:
    arguments, model, positional = POLICIES[kind]
    assert set(get_type_hints(arguments)) == set(model.model_fields) - positional


@pytest.mark.parametrize("name", settings_table())
def test_argument_is_none_only_where_the_setting_may_be(name: str) -> None:
    assert (NoneType in get_args(HINTS[name])) is (NoneType in get_args(annotation(name)))


@pytest.mark.parametrize("name", [name for name in settings_table() if enums(annotation(name))])
def test_argument_has_the_members_and_words_of_its_enum(name: str) -> None:
    (enum,) = enums(annotation(name))
    assert enums(HINTS[name]) == {enum}
    labels = [member.label for member in Priority] if enum is Priority else [member.value for member in enum]
    assert words(HINTS[name]) == set(labels)
