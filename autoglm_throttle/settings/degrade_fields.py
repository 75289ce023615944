"""Settings of degradation: the load thresholds of fallbacks, and the maximum age of stale responses."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from pydantic_settings import SettingsConfigDict

from autoglm_throttle.settings.breaker_fields import BreakerFields
from autoglm_throttle.settings.field import CHOSEN, FOUNDING, setting
from autoglm_throttle.settings.field_types import Number

LOAD: Final = Number(0.01, 1, "share")
"""A load as seen by the controller: 1 is the full capacity of the service."""

AGE: Final = Number(0.001, 31_536_000, "s")
"""The age of a cached response: up to a year, as in HTTP caches."""


class DegradationSettings(BreakerFields):
    """Declarations of the settings of degradation."""

    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(defer_build=True)

    degrade_shed_at: Annotated[float, LOAD] = setting(
        0.80, "Load above which features that are not core are shed.", FOUNDING, starred=True
    )
    degrade_stale_at: Annotated[float, LOAD] = setting(
        0.90,
        "Load above which core features are answered from the stale cache, if it has a response.",
        FOUNDING,
    )
    degrade_static_at: Annotated[float, LOAD] = setting(
        0.95, "Load above which they are answered by their static fallback, where there is one.", FOUNDING
    )
    degrade_fallback_timeout_s: Annotated[float, Number(0.001, 3600, "s")] = setting(
        1.0, "Longest time that a dynamic fallback may take.", CHOSEN
    )
    degrade_max_stale_s: Annotated[float, AGE] = setting(
        60.0, "Age up to which a cached response may replace a new one.", CHOSEN
    )
