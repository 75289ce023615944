"""Log events of the configuration, each logged once."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Final

from autoglm_throttle.events.log_event import LogEvent
from autoglm_throttle.settings import Problem

_LIMITS: Final = frozenset({"policy", "rate_high_rps", "rate_mid_rps", "rate_low_rps", "user_limit"})
"""Settings named in the first event of every service."""

MOST_CHARACTERS: Final = 60
"""Maximum length of one setting in that event's text; its keys have the full value."""


def configured(values: Mapping[str, str], chosen: Collection[str]) -> LogEvent:
    """Build the event, logged once, of the configuration in force.

    Args:
        values: all settings as they would be written; secrets must be masked already.
        chosen: the names of settings without their default. The text has these and the limits.
    """
    parts = (f"{name}={_short(text)}" for name, text in values.items() if name in _LIMITS or name in chosen)
    text = f"the limits in force: {', '.join(parts)}"
    return LogEvent("config", logging.INFO, text, {"settings": dict(values)})


def _short(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 2]}.."


def configuration_advice(problem: Problem) -> LogEvent:
    """Build the event of an allowed but probably unintended setting."""
    return LogEvent("config", logging.WARNING, str(problem), {"setting": problem.variable})
