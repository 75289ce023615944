"""Parser of the rules in the table: names of settings, and their values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from autoglm_throttle.resilience.breaker_rules import BreakerRules
from autoglm_throttle.types import BreakerMode, SlowCallMode, StreamSettleMode, TooManyRequestsMode, TripRule

_COUNTS = ("failures", "half_open_max", "success_threshold", "window", "min_calls", "max_in_flight")
_PARSERS: dict[str, Callable[[str], Any]] = {
    "trip": lambda text: frozenset(map(TripRule, text.split(","))),
    "ramp": lambda text: tuple(map(float, text.split(","))),
    "slow_is": SlowCallMode,
    "mode": BreakerMode,
    "on_429": TooManyRequestsMode,
    "stream_settle": StreamSettleMode,
    **dict.fromkeys(_COUNTS, int),
}
_NAMES = {field.name for field in fields(BreakerRules)}


def _pairs(text: str) -> dict[str, str]:
    return {name: value for name, _, value in (text.partition("=") for text in text.split())}


def rules(text: str) -> BreakerRules:
    """Parse the rules of a row; all others have their defaults."""
    reports = {name: value for name, value in _pairs(text).items() if name in _NAMES}
    return BreakerRules(**{name: _PARSERS.get(name, float)(value) for name, value in reports.items()})


def others(text: str) -> dict[str, str]:
    """Parse the other options of the guard in a row, such as ``classify`` and ``fallback``."""
    return {name: value for name, value in _pairs(text).items() if name not in _NAMES}
