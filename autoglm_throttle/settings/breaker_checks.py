"""Checks of several settings of one breaker, independent of their sources."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, NamedTuple

from autoglm_throttle.settings.field_types import plain
from autoglm_throttle.settings.problems import Problem
from autoglm_throttle.types import Criticality, TripRule

_RATES: Final = frozenset({TripRule.FAILURE_RATE, TripRule.SLOW_RATE})


class BreakerCheck(NamedTuple):
    """Values that contradict each other."""

    needs: tuple[str, ...]
    is_violated: Callable[..., bool]
    """Gets the values of ``needs`` in their order."""
    messages: Mapping[str, tuple[str, str]]
    """Key -> message and hint if that key was written; the problem stands under the first written key.

    ``{key}`` becomes the name and the value of another key, ``{key.name}`` the name alone.
    """


class _NamedValue(NamedTuple):
    name: str
    value: Any

    def __str__(self) -> str:
        return f"{self.name}, {plain(self.value)}"


CHECKS: Final = (
    BreakerCheck(
        ("open_max_s", "open_s"),
        lambda most, usual: most is not None and most < usual,
        {
            "open_max_s": ("must be at least {open_s}", "or lower {open_s.name}"),
            "open_s": ("must be at most {open_max_s}", "or raise {open_max_s.name}"),
        },
    ),
    BreakerCheck(
        ("trial_lease_s", "timeout_s"),
        lambda lease, limit: None not in {limit, lease} and limit > lease,
        {
            "trial_lease_s": (
                "must be at least {timeout_s}",
                "else a probe call within its time limit loses its slot",
            ),
            "timeout_s": ("must be at most {trial_lease_s}", "or raise {trial_lease_s.name}"),
        },
    ),
    BreakerCheck(
        ("trip", "window", "window_s", "min_calls"),
        lambda trip, window, window_s, least: bool(_RATES & trip) and window_s is None and least > window,
        {
            "min_calls": ("must be at most {window}", "else no rate is ever evaluated"),
            "window": ("must be at least {min_calls}", "or lower {min_calls.name}"),
            "trip": (
                "has a rate that is never evaluated: {window} is less than {min_calls}",
                "lower {min_calls.name}, or raise {window.name}",
            ),
        },
    ),
    BreakerCheck(
        ("trip", "slow_call_s", "first_item_s"),
        lambda trip, call, item: TripRule.SLOW_RATE in trip and call is None and item is None,
        {"trip": ("needs {slow_call_s.name} with slow_rate", "for streams {first_item_s.name}")},
    ),
    BreakerCheck(
        ("shed_above", "criticality"),
        lambda above, criticality: above is not None and criticality is not Criticality.NON_CORE,
        {"shed_above": ("needs the criticality non_core beside it", "core features are never shed")},
    ),
    BreakerCheck(
        ("shed_above", "margin"),
        lambda above, margin: above is not None and above <= margin,
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
    for needs, is_violated, messages in CHECKS:
        reported_key = next((key for key in messages if key in given), None)
        if reported_key is None or not values.keys() >= set(needs):
            continue
        if is_violated(*(values[key] for key in needs)):
            named = {key: _NamedValue(name_of(key), values[key]) for key in needs}
            message, hint = (text.format(**named) for text in messages[reported_key])
            problems.append(Problem(reported_key, message, hint))
    return problems
