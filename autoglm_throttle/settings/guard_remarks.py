"""Advice on breaker settings that are allowed but probably not intended."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from autoglm_throttle.model import Mode, On429, Policy, Trip
from autoglm_throttle.settings.breaker_settings import BREAKER, BREAKER_FORMS
from autoglm_throttle.settings.field import Source
from autoglm_throttle.settings.fields import SETTINGS
from autoglm_throttle.settings.guard_rules import breaker_of
from autoglm_throttle.settings.problem import Problem

if TYPE_CHECKING:
    from autoglm_throttle.settings.settings import Settings

_Figures = Mapping[str, Any]


def _opens_by(*trips: Trip) -> Callable[[_Figures], bool]:
    return lambda figures: not figures["trip"].isdisjoint(trips)


_by_share: Final = _opens_by(Trip.FAILURE_RATE, Trip.SLOW_RATE)
_A_SHARE: Final = "failure_rate or slow_rate in {trip}"
_IN_A_ROW: Final = (_opens_by(Trip.CONSECUTIVE), "consecutive in {trip}")

READ: Final[Mapping[str, tuple[Callable[[_Figures], bool], str]]] = {
    "failures": _IN_A_ROW,
    "failure_window_s": _IN_A_ROW,
    "window": (_by_share, _A_SHARE),
    "window_s": (_by_share, _A_SHARE),
    "min_calls": (_by_share, _A_SHARE),
    "failure_rate": (_opens_by(Trip.FAILURE_RATE), "failure_rate in {trip}"),
    "slow_rate": (_opens_by(Trip.SLOW_RATE), "slow_rate in {trip}"),
    "slow_is": (
        lambda figures: figures["slow_call_s"] is not None or figures["first_item_s"] is not None,
        "{slow_call_s} or {first_item_s}",
    ),
    "ramp_step_s": (lambda figures: bool(figures["ramp"]), "{ramp}"),
    "open_max_s": (
        lambda figures: figures["backoff"] > 1 or figures["on_429"] is On429.OPEN,
        "{backoff} above 1",
    ),
}
"""Key -> whether another value makes it effective, and the condition in words."""


@dataclass(frozen=True)
class Doubt:
    """Values that work, but probably not as intended."""

    blames: tuple[str, ...]
    """The advice stands under the first of these keys that was written."""
    holds: Callable[[_Figures], bool]
    message: str
    hint: str


def _cut_off_first(figures: _Figures) -> bool:
    limit_s, slow_s = figures["timeout_s"], figures["slow_call_s"]
    return None not in {limit_s, slow_s} and slow_s >= limit_s


DOUBTS: Final = (
    Doubt(
        ("mode",),
        lambda figures: figures["mode"] is Mode.METRICS_ONLY,
        "is metrics_only: nothing is refused, what would have been is counted",
        "enforce is the default",
    ),
    Doubt(
        ("mode",),
        lambda figures: figures["mode"] is Mode.DISABLED,
        "is disabled: no failure opens anything",
        "enforce is the default",
    ),
    Doubt(
        ("backoff",),
        lambda figures: figures["backoff"] > 1 and figures["open_max_s"] is None,
        "prolongs the open period without end",
        "set {open_max_s}, for example 5m",
    ),
    Doubt(
        ("window",),
        lambda figures: figures["window_s"] is not None,
        "has no effect beside {window_s}",
        "leave one of them out",
    ),
    Doubt(
        ("slow_call_s", "timeout_s"),
        _cut_off_first,
        "leaves no coroutine to be slow: {timeout_s} ends it before {slow_call_s}",
        "raise {timeout_s}, or lower {slow_call_s}",
    ),
)


def guard_advice(settings: Settings) -> list[Problem]:
    """Collect the advice on breaker settings, of all guards or of one."""
    of_all = {key: getattr(settings, BREAKER + key) for key in BREAKER_FORMS}
    written = {key for key in of_all if settings.source_of(BREAKER + key) is not Source.DEFAULT}
    of_each = {name: breaker_of(settings, name) for name in settings.guards}
    variables = {key: (BREAKER + key).upper() for key in BREAKER_FORMS}
    problems = []
    for key, message, hint in _doubts(of_all, written, variables):
        problems.append(Problem(SETTINGS[BREAKER + key].variable, message, hint))
    for key, message in _unread([of_all, *of_each.values()], written, variables):
        problems.append(Problem(SETTINGS[BREAKER + key].variable, message, "or of a guard"))
    for name, figures in of_each.items():
        problems += _of_guard(settings, name, figures, variables)
    return problems


def _of_guard(
    settings: Settings, name: str, figures: _Figures, variables: Mapping[str, str]
) -> list[Problem]:
    policy = settings.guards[name]
    own = policy.given()
    called = {key: key if key in own else variable for key, variable in variables.items()}
    told = list(_doubts(figures, own, called))
    told += [(key, message, "") for key, message in _unread([figures], own, called)]
    if policy.shed_above == 1:
        told.append(("shed_above", "is 1: no load exceeds it", "then leave the guard core"))
    elif policy.shed_above is not None and settings.policy is Policy.FIXED:
        told.append(("shed_above", "has no effect with POLICY=fixed", "no load is known under it"))
    return [Problem(settings.guard_place(name, key), message, hint) for key, message, hint in told]


def _doubts(
    figures: _Figures, written: Collection[str], called: Mapping[str, str]
) -> Iterator[tuple[str, str, str]]:
    for doubt in DOUBTS:
        blamed = next((key for key in doubt.blames if key in written), None)
        if blamed is not None and doubt.holds(figures):
            yield blamed, doubt.message.format(**called), doubt.hint.format(**called)


def _unread(
    guards: Collection[_Figures], written: Collection[str], called: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    for key, (read, needed) in READ.items():
        if key in written and not any(map(read, guards)):
            yield key, f"has no effect without {needed.format(**called)}"
