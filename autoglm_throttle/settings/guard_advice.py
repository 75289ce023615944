"""Advice on breaker settings that are allowed but probably not intended."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from autoglm_throttle.settings.breaker_settings import BREAKER_FIELD_TYPES, BREAKER_PREFIX
from autoglm_throttle.settings.field import SettingSource
from autoglm_throttle.settings.fields import SETTINGS
from autoglm_throttle.settings.guard_checks import breaker_of
from autoglm_throttle.settings.problems import Problem
from autoglm_throttle.types import BreakerMode, Policy, TooManyRequestsMode, TripRule

if TYPE_CHECKING:
    from autoglm_throttle.settings.settings import Settings

_Values = Mapping[str, Any]


def _opens_by(*trips: TripRule) -> Callable[[_Values], bool]:
    return lambda figures: not figures["trip"].isdisjoint(trips)


_by_rate: Final = _opens_by(TripRule.FAILURE_RATE, TripRule.SLOW_RATE)
_A_RATE: Final = "failure_rate or slow_rate in {trip}"
_CONSECUTIVE: Final = (_opens_by(TripRule.CONSECUTIVE), "consecutive in {trip}")

USED_IF: Final[Mapping[str, tuple[Callable[[_Values], bool], str]]] = {
    "failures": _CONSECUTIVE,
    "failure_window_s": _CONSECUTIVE,
    "window": (_by_rate, _A_RATE),
    "window_s": (_by_rate, _A_RATE),
    "min_calls": (_by_rate, _A_RATE),
    "failure_rate": (_opens_by(TripRule.FAILURE_RATE), "failure_rate in {trip}"),
    "slow_rate": (_opens_by(TripRule.SLOW_RATE), "slow_rate in {trip}"),
    "slow_is": (
        lambda figures: figures["slow_call_s"] is not None or figures["first_item_s"] is not None,
        "{slow_call_s} or {first_item_s}",
    ),
    "ramp_step_s": (lambda figures: bool(figures["ramp"]), "{ramp}"),
    "open_max_s": (
        lambda figures: figures["backoff"] > 1 or figures["on_429"] is TooManyRequestsMode.OPEN,
        "{backoff} above 1",
    ),
}
"""Key -> whether another value makes it effective, and the condition in words."""


@dataclass(frozen=True)
class GuardAdvice:
    """Values that work, but probably not as intended."""

    reported_keys: tuple[str, ...]
    """The advice stands under the first of these keys that was written."""
    applies: Callable[[_Values], bool]
    message: str
    hint: str


def _timeout_before_slow(values: _Values) -> bool:
    limit_s, slow_s = values["timeout_s"], values["slow_call_s"]
    return None not in {limit_s, slow_s} and slow_s >= limit_s


GUARD_ADVICE: Final = (
    GuardAdvice(
        ("mode",),
        lambda figures: figures["mode"] is BreakerMode.METRICS_ONLY,
        "is metrics_only: no call is rejected, rejections are only counted",
        "enforce is the default",
    ),
    GuardAdvice(
        ("mode",),
        lambda figures: figures["mode"] is BreakerMode.DISABLED,
        "is disabled: no failure opens anything",
        "enforce is the default",
    ),
    GuardAdvice(
        ("backoff",),
        lambda figures: figures["backoff"] > 1 and figures["open_max_s"] is None,
        "prolongs the open period without end",
        "set {open_max_s}, for example 5m",
    ),
    GuardAdvice(
        ("window",),
        lambda figures: figures["window_s"] is not None,
        "has no effect beside {window_s}",
        "leave one of them out",
    ),
    GuardAdvice(
        ("slow_call_s", "timeout_s"),
        _timeout_before_slow,
        "never finds a slow coroutine: {timeout_s} ends it before {slow_call_s}",
        "raise {timeout_s}, or lower {slow_call_s}",
    ),
)


def guard_advice(settings: Settings) -> list[Problem]:
    """Collect the advice on breaker settings, of all guards or of one."""
    defaults = {key: getattr(settings, BREAKER_PREFIX + key) for key in BREAKER_FIELD_TYPES}
    written = {
        key for key in defaults if settings.source_of(BREAKER_PREFIX + key) is not SettingSource.DEFAULT
    }
    by_guard = {name: breaker_of(settings, name) for name in settings.guards}
    variables = {key: (BREAKER_PREFIX + key).upper() for key in BREAKER_FIELD_TYPES}
    problems = []
    for key, message, hint in _applicable_advice(defaults, written, variables):
        problems.append(Problem(SETTINGS[BREAKER_PREFIX + key].variable, message, hint))
    for key, message in _unused_keys([defaults, *by_guard.values()], written, variables):
        problems.append(Problem(SETTINGS[BREAKER_PREFIX + key].variable, message, "or of a guard"))
    for name, values in by_guard.items():
        problems += _advice_for_guard(settings, name, values, variables)
    return problems


def _advice_for_guard(
    settings: Settings, name: str, values: _Values, variables: Mapping[str, str]
) -> list[Problem]:
    policy = settings.guards[name]
    own = policy.explicit_fields()
    names = {key: key if key in own else variable for key, variable in variables.items()}
    texts = list(_applicable_advice(values, own, names))
    texts += [(key, message, "") for key, message in _unused_keys([values], own, names)]
    if policy.shed_above == 1:
        texts.append(("shed_above", "is 1: no load exceeds it", "then leave the guard core"))
    elif policy.shed_above is not None and settings.policy is Policy.FIXED:
        texts.append(("shed_above", "has no effect with POLICY=fixed", "no load is known under it"))
    return [Problem(settings.guard_place(name, key), message, hint) for key, message, hint in texts]


def _applicable_advice(
    values: _Values, written: Collection[str], names: Mapping[str, str]
) -> Iterator[tuple[str, str, str]]:
    for advice in GUARD_ADVICE:
        reported_key = next((key for key in advice.reported_keys if key in written), None)
        if reported_key is not None and advice.applies(values):
            yield reported_key, advice.message.format(**names), advice.hint.format(**names)


def _unused_keys(
    guards: Collection[_Values], written: Collection[str], names: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    for key, (is_used, needed) in USED_IF.items():
        if key in written and not any(map(is_used, guards)):
            yield key, f"has no effect without {needed.format(**names)}"
