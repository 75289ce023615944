"""Rules as the table writes them: the names of the settings, and their values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autoglm_throttle.model import Mode, On429, SlowIs, StreamSettle, Trip
from autoglm_throttle.resilience.rules import Rules

_COUNTS = ("failures", "half_open_max", "success_threshold", "window", "min_calls", "max_in_flight")
_WORDS: dict[str, Callable[[str], Any]] = {
    "trip": lambda text: frozenset(map(Trip, text.split(","))),
    "ramp": lambda text: tuple(map(float, text.split(","))),
    "slow_is": SlowIs,
    "mode": Mode,
    "on_429": On429,
    "stream_settle": StreamSettle,
    **dict.fromkeys(_COUNTS, int),
}


def rules(text: str) -> Rules:
    """The rules that a row says, all others as they are by default."""
    pairs = (word.partition("=") for word in text.split())
    return Rules(**{name: _WORDS.get(name, float)(value) for name, _, value in pairs})
