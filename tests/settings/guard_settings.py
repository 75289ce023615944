"""The settings of one guard's breaker, as a throttle reads them."""

from __future__ import annotations

from autoglm_throttle import BreakerSettings, Settings
from autoglm_throttle.settings import checks


def breaker_of(settings: Settings, name: str, own: BreakerSettings | None = None) -> BreakerSettings:
    """Return the settings of the guard of that name."""
    return checks.breaker_of(settings.guards, settings.breaker, name, own)
