"""Parser of the rules in the table: names of settings, and their values."""

from __future__ import annotations

from autoglm_throttle.settings.groups.breaker import BreakerSettings


def _pairs(text: str) -> dict[str, str]:
    return {name: value for name, _, value in (text.partition("=") for text in text.split())}


def rules(text: str) -> BreakerSettings:
    """Parse the rules of a row; all others have their defaults."""
    reports = {name: value for name, value in _pairs(text).items() if name in BreakerSettings.model_fields}
    return BreakerSettings(**reports)  # type: ignore[arg-type]  # the settings parse texts, too


def others(text: str) -> dict[str, str]:
    """Parse the other options of the guard in a row, such as ``classify`` and ``fallback``."""
    return {name: value for name, value in _pairs(text).items() if name not in BreakerSettings.model_fields}
