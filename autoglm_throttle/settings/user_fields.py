"""Settings of user limits."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic_settings import SettingsConfigDict

from autoglm_throttle.settings.caller_field_types import UserLimitsType
from autoglm_throttle.settings.control_fields import ControlSettings
from autoglm_throttle.settings.field import CHOSEN, setting
from autoglm_throttle.settings.field_types import Number, Whole, WithNone
from autoglm_throttle.types import UserLimit

Limits = tuple[UserLimit, ...]

_LIMITS = WithNone(UserLimitsType())


class UserLimitSettings(ControlSettings):
    """Declarations of the settings of user limits."""

    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(defer_build=True)

    user_limit: Annotated[Limits, UserLimitsType()] = setting(
        (),
        "Limit of one user; off until set, because behind an unknown proxy all users share one address.",
        CHOSEN,
        starred=True,
    )
    user_limit_high: Annotated[Limits | None, _LIMITS] = setting(
        None, "Replaces USER_LIMIT for requests of priority high.", CHOSEN
    )
    user_limit_mid: Annotated[Limits | None, _LIMITS] = setting(
        None, "Replaces USER_LIMIT for requests of priority mid.", CHOSEN
    )
    user_limit_low: Annotated[Limits | None, _LIMITS] = setting(
        None, "Replaces USER_LIMIT for requests of priority low.", CHOSEN
    )
    max_users: Annotated[int, Whole(100, 10_000_000, "users")] = setting(
        100_000,
        "Maximum of users tracked at once; above it idle users are evicted first, exhausted users never.",
        CHOSEN,
    )
    address_factor: Annotated[float, Number(1, 1_000_000, "x user limit")] = setting(
        10.0,
        "Limit of one address with unverified keys, as a multiple of the user limit, "
        "so that inventing keys gains nothing.",
        CHOSEN,
    )
