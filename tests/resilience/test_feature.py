"""Valid fallbacks and features, and rejection of invalid ones with all problems at once."""

from __future__ import annotations

import asyncio
import functools
import math
import threading
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from autoglm_throttle.resilience.fallback import UNSET, Fallback, Feature
from autoglm_throttle.types import Criticality, FallbackContext


async def later(context: FallbackContext) -> str:
    """An asynchronous fallback."""
    await asyncio.sleep(0)
    return context.name


def at_once(context: FallbackContext) -> str:
    """A plain fallback."""
    return context.name


class Later:
    """An object that is called like a coroutine function."""

    async def __call__(self, context: FallbackContext) -> str:
        return await later(context)


class AtOnce:
    """An object that is called like a function."""

    def __call__(self, context: FallbackContext) -> str:
        return at_once(context)


@pytest.mark.parametrize(
    ("given", "faults"),
    [
        ({}, ["give one of static, dynamic and stale"]),
        ({"static": 1, "dynamic": 5}, ["dynamic must be callable, is 5"]),
        ({"static": 1, "under_load": True}, ["under_load needs dynamic"]),
        ({"dynamic": at_once, "shared_value": True}, ["shared_value needs static or stale"]),
        ({"stale": True, "coalesce": "never"}, ["coalesce must be 'load' or 'always', is 'never'"]),
        ({"static": 1, "coalesce": "always"}, ["coalesce needs stale"]),
        ({"static": 1, "key": str}, ["key needs stale"]),
        ({"stale": True, "key": "id"}, ["key must be callable, is 'id'"]),
        ({"static": 1, "max_stale_s": 5.0}, ["max_stale_s needs stale"]),
        ({"stale": True, "max_stale_s": 0.0}, ["max_stale_s must be above 0 and finite, is 0.0"]),
        ({"stale": True, "max_stale_s": math.inf}, ["max_stale_s must be above 0 and finite, is inf"]),
        ({"stale": True, "max_stale_s": math.nan}, ["max_stale_s must be above 0 and finite, is nan"]),
        ({"under_load": True, "key": str}, ["give one of", "under_load needs dynamic", "key needs stale"]),
    ],
)
def test_impossible_fallback_is_invalid(given: dict[str, Any], faults: list[str]) -> None:
    with pytest.raises(ValueError, match=r"^Fallback: ") as caught:
        Fallback(**given)
    assert all(fault in str(caught.value) for fault in faults)
    assert str(caught.value).count("; ") == len(faults) - 1


def test_uncopyable_static_value_is_invalid_unless_shared() -> None:
    lock = threading.Lock()
    with pytest.raises(ValueError, match=r"static cannot be copied .* set shared_value"):
        Fallback(static=lock)
    assert Fallback(static=lock, shared_value=True).static is lock


@pytest.mark.parametrize(
    "given",
    [
        {"static": None},
        {"dynamic": at_once, "under_load": True},
        {"stale": True, "key": str, "max_stale_s": 0.5, "coalesce": "always", "shared_value": True},
        {"static": [], "dynamic": later, "stale": True, "on_value": False},
    ],
)
def test_a_fallback_that_can_work_is_taken(given: dict[str, Any]) -> None:
    fallback = Fallback(**given)
    assert {name: getattr(fallback, name) for name in given} == given


def test_none_is_a_value_and_unset_is_not() -> None:
    assert Fallback(static=None).static is None
    assert Fallback(stale=True).static is UNSET
    assert repr(UNSET) == "UNSET"


@pytest.mark.parametrize(
    ("dynamic", "asynchronous"),
    [
        (None, False),
        (at_once, False),
        (later, True),
        (functools.partial(at_once), False),
        (functools.partial(functools.partial(later)), True),
        (AtOnce(), False),
        (Later(), True),
        (functools.partial(Later()), True),
    ],
)
def test_an_asynchronous_fallback_is_known_as_such(dynamic: Any, asynchronous: bool) -> None:
    assert Fallback(static=1, dynamic=dynamic).asynchronous is asynchronous


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"name": ""}, "name must not be empty"),
        ({"shed_above": 0.0}, "shed_above must be above 0 and at most 1, is 0.0"),
        ({"shed_above": 1.01}, "shed_above must be above 0 and at most 1, is 1.01"),
        ({"shed_above": math.nan}, "shed_above must be above 0 and at most 1, is nan"),
        ({"shed_above": 0.5, "criticality": Criticality.CORE}, "a core feature is never shed"),
    ],
)
def test_impossible_feature_is_invalid(given: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValueError, match=r"^Feature ") as caught:
        Feature(**{"name": "related", "criticality": Criticality.NON_CORE} | given)
    assert fault in str(caught.value)
    assert ";" not in str(caught.value)


def test_feature_defaults_to_core_without_fallback() -> None:
    feature = Feature("related")
    assert (feature.criticality, feature.fallback, feature.shed_above) == (Criticality.CORE, None, None)
    with pytest.raises(FrozenInstanceError):
        feature.name = "other"  # type: ignore[misc]
    assert Feature("related", Criticality.NON_CORE, shed_above=1.0).shed_above == 1.0
