"""Cross-field checks of one breaker's settings, independent of their sources."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from autoglm_throttle.settings.problems import Problem
from autoglm_throttle.settings.quantity import plain
from autoglm_throttle.types import Criticality, TripRule

GUARD_ONLY_KEYS: Final = frozenset({"criticality"})
"""Keys that exist only for single guards: a guard that leaves one out is checked as well."""

_RATES: Final = frozenset({TripRule.FAILURE_RATE, TripRule.SLOW_RATE})


@dataclass(frozen=True)
class CrossFieldProblem:
    """Values that contradict each other."""

    needs: tuple[str, ...]
    is_violated: Callable[[Mapping[str, Any]], bool]
    messages: Mapping[str, tuple[str, str]]
    """Key -> message and hint if that key was written; the problem stands under the first written key.

    ``{key}`` becomes the name and the value of another key, ``{key.name}`` the name alone.
    """


@dataclass(frozen=True)
class _NamedValue:
    name: str
    value: Any

    def __str__(self) -> str:
        return f"{self.name}, {plain(self.value)}"


def _ceiling_below_floor(values: Mapping[str, Any]) -> bool:
    return values["open_max_s"] is not None and values["open_max_s"] < values["open_s"]


def _never_enough_calls(values: Mapping[str, Any]) -> bool:
    by_rate = not _RATES.isdisjoint(values["trip"]) and values["window_s"] is None
    return by_rate and values["min_calls"] > values["window"]


def _nothing_is_slow(values: Mapping[str, Any]) -> bool:
    unknown = values["slow_call_s"] is None and values["first_item_s"] is None
    return unknown and TripRule.SLOW_RATE in values["trip"]


def _lease_ends_first(values: Mapping[str, Any]) -> bool:
    limit_s, lease_s = values["timeout_s"], values["trial_lease_s"]
    return None not in {limit_s, lease_s} and limit_s > lease_s


def _core_is_shed(values: Mapping[str, Any]) -> bool:
    return values["criticality"] is not Criticality.NON_CORE


def _never_taken_back(values: Mapping[str, Any]) -> bool:
    return bool(values["shed_above"] <= values["margin"])


CROSS_FIELD_PROBLEMS: Final = (
    CrossFieldProblem(
        ("open_max_s", "open_s"),
        _ceiling_below_floor,
        {
            "open_max_s": ("must be at least {open_s}", "or lower {open_s.name}"),
            "open_s": ("must be at most {open_max_s}", "or raise {open_max_s.name}"),
        },
    ),
    CrossFieldProblem(
        ("trial_lease_s", "timeout_s"),
        _lease_ends_first,
        {
            "trial_lease_s": (
                "must be at least {timeout_s}",
                "else a probe call within its time limit loses its slot",
            ),
            "timeout_s": ("must be at most {trial_lease_s}", "or raise {trial_lease_s.name}"),
        },
    ),
    CrossFieldProblem(
        ("trip", "window", "window_s", "min_calls"),
        _never_enough_calls,
        {
            "min_calls": ("must be at most {window}", "else no rate is ever evaluated"),
            "window": ("must be at least {min_calls}", "or lower {min_calls.name}"),
            "trip": (
                "has a rate that is never evaluated: {window} is less than {min_calls}",
                "lower {min_calls.name}, or raise {window.name}",
            ),
        },
    ),
    CrossFieldProblem(
        ("trip", "slow_call_s", "first_item_s"),
        _nothing_is_slow,
        {"trip": ("needs {slow_call_s.name} with slow_rate", "for streams {first_item_s.name}")},
    ),
    CrossFieldProblem(
        ("shed_above", "criticality"),
        _core_is_shed,
        {"shed_above": ("needs the criticality non_core beside it", "core features are never shed")},
    ),
    CrossFieldProblem(
        ("shed_above", "margin"),
        _never_taken_back,
        {"shed_above": ("must be above {margin}", "or lower {margin.name}")},
    ),
)


def cross_field_problems(
    values: Mapping[str, Any], given: Collection[str], name_of: Callable[[str], str] = str
) -> list[Problem]:
    """Find each contradiction, as a problem under a key that was written.

    Args:
        values: values by key; a check runs only if all keys that it needs are among them.
        given: the keys that were written at this place; problems of other places are reported there.
        name_of: maps another key to its name in messages.
    """
    problems = []
    for rule in CROSS_FIELD_PROBLEMS:
        reported_key = next((key for key in rule.messages if key in given), None)
        if reported_key is None or not values.keys() >= set(rule.needs) or not rule.is_violated(values):
            continue
        named_values = {key: _NamedValue(name_of(key), values[key]) for key in rule.needs}
        message, hint = (text.format(**named_values) for text in rule.messages[reported_key])
        problems.append(Problem(reported_key, message, hint))
    return problems
