"""What is said once about the settings."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Final

from autoglm_throttle.journal.line import Line
from autoglm_throttle.limiting.shared.store import WORST_WINDOW
from autoglm_throttle.settings import Problem

_LIMITS: Final = frozenset({"policy", "rate_high_rps", "rate_mid_rps", "rate_low_rps", "user_limit"})
"""What the first line says of every service."""

MOST_CHARACTERS: Final = 60
"""Of one setting in that line; the whole stands among its keys."""


def configured(values: Mapping[str, str], chosen: Collection[str]) -> Line:
    """The line that says once what is in force.

    Args:
        values: all settings as they would be written; what is secret must be masked already.
        chosen: the names of those that are no defaults. They stand in the sentence, and the limits do.
    """
    told = (f"{name}={_short(text)}" for name, text in values.items() if name in _LIMITS or name in chosen)
    text = f"the limits in force: {', '.join(told)}"
    return Line("config", logging.INFO, text, {"settings": dict(values)})


def _short(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 2]}.."


def approximate(kind: str) -> Line:
    """The line that says once that a store does not count exactly."""
    worst = f"up to {WORST_WINDOW:g} times a limit may pass in one window"
    text = f"{kind} counts user limits approximately: {worst}"
    return Line("config", logging.WARNING, text, {"setting": "USER_STORAGE"})


def configured_oddly(problem: Problem) -> Line:
    """The line for a setting that is allowed and that nobody can have meant."""
    return Line("config", logging.WARNING, str(problem), {"setting": problem.variable})
