"""Settings of the limits of single users."""

from typing import Annotated, ClassVar

from autoglm_throttle.settings.field_types import number, whole
from autoglm_throttle.settings.groups.base import Group
from autoglm_throttle.settings.user_limits import USER_LIMITS
from autoglm_throttle.types import UserLimit

Limits = tuple[UserLimit, ...]


class UserSettings(Group):
    """Settings of the limits of single users."""

    environment: ClassVar[str] = "USER_LIMIT* USER_LIMIT_HIGH USER_LIMIT_MID USER_LIMIT_LOW MAX_USERS"

    user_limit: Annotated[Limits, USER_LIMITS] = ()
    """Limit of one user; off until set, because behind an unknown proxy all users share one address."""
    user_limit_high: Annotated[Limits, USER_LIMITS] | None = None
    """Replaces USER_LIMIT for requests of priority high."""
    user_limit_mid: Annotated[Limits, USER_LIMITS] | None = None
    """Replaces USER_LIMIT for requests of priority mid."""
    user_limit_low: Annotated[Limits, USER_LIMITS] | None = None
    """Replaces USER_LIMIT for requests of priority low."""
    max_users: Annotated[int, whole(100, 10_000_000, "users")] = 100_000
    """Maximum of users tracked at once; above it idle users are evicted first, exhausted users never."""
    address_factor: Annotated[float, number(1, 1_000_000, "x user limit")] = 10.0
    """Limit of one address with unverified keys, as a multiple of the user limit, so that inventing keys
    gains nothing."""

    @property
    def by_priority(self) -> tuple[Limits, ...]:
        """The user limits for high, mid and low; an empty tuple means none."""
        own = (self.user_limit_high, self.user_limit_mid, self.user_limit_low)
        return tuple(self.user_limit if limits is None else limits for limits in own)
