"""Settings of the limits of single users, and their notation, ``100/minute;5/second``.

It is the notation of the ``limits`` package. That parser knows no short units, accepts a limit of zero,
and reads ``5/0 second`` as ``5/second``; here short units are allowed and the others are rejected.
"""

import re
from collections.abc import Iterable
from typing import Annotated, ClassVar, Final

from limits import parse_many

from autoglm_throttle.settings.field_types import FieldType, FieldTypeError, number, whole
from autoglm_throttle.settings.groups.base import Group
from autoglm_throttle.types import UNITS_AT_MOST, UserLimit

Limits = tuple[UserLimit, ...]

EXAMPLE: Final = "100/minute;5/second"
LIMITS_AT_MOST: Final = 4  # every request checks all of its user's limits: bounds the work per request
WINDOW_AT_MOST_S: Final = 366 * 86_400  # longer windows need a database, not the memory of a process
TEXT_AT_MOST: Final = 200  # characters; four limits need fewer than 120
_SHORT: Final = {
    **dict.fromkeys(("s", "sec"), "second"),
    **dict.fromkeys(("m", "min"), "minute"),
    **dict.fromkeys(("h", "hr"), "hour"),
    "d": "day",
}
_NAMED_S: Final = {86_400: "day", 3600: "hour", 60: "minute", 1: "second"}
_NO_WINDOW: Final = r"(?i)(?:/|per)\s*0+\s*[a-z]"


def parse_user_limits(text: str) -> tuple[UserLimit, ...]:
    """Parse one to four limits in their order: ``100/minute``, ``1000/s;10 per 2 second``.

    Raises:
        ValueError: not the notation, a limit of 0 or above `UNITS_AT_MOST`, more than four limits,
            two limits with one window, a window above a year. The text names the problem and an example.
    """
    if len(text) > TEXT_AT_MOST:
        raise FieldTypeError(f"longer than {TEXT_AT_MOST} characters, for example {EXAMPLE}")
    long_form = re.sub(r"[A-Za-z]+", lambda word: _SHORT.get(word[0].lower(), word[0]), text.strip())
    try:
        items = parse_many(long_form)
    except ValueError:
        raise FieldTypeError(
            f"for example {EXAMPLE}; whole numbers only: say 30/minute, not 0.5/second"
        ) from None
    # The parser of `limits` reads 5/0 second as 5/second.
    if re.search(_NO_WINDOW, long_form):
        raise FieldTypeError(f"a window of 0 does not exist, for example {EXAMPLE}")
    return _checked((item.amount, item.get_expiry()) for item in items)


def user_limits_text(limits: tuple[UserLimit, ...]) -> str:
    """Format limits in the notation that ``parse_user_limits`` reads."""
    return ";".join(f"{limit.limit}/{_window_text(limit.window_s)}" for limit in limits)


def _checked(pairs: Iterable[tuple[int, int]]) -> tuple[UserLimit, ...]:
    limits = tuple(UserLimit(f"user-{window_s}s", limit, window_s) for limit, window_s in pairs)
    windows = [limit.window_s for limit in limits]
    if not 1 <= len(limits) <= LIMITS_AT_MOST:
        raise FieldTypeError(f"one to {LIMITS_AT_MOST} limits, not {len(limits)}")
    if any(not 1 <= limit.limit <= UNITS_AT_MOST for limit in limits):
        raise FieldTypeError(f"a limit is a whole number from 1 to {UNITS_AT_MOST}, for example {EXAMPLE}")
    if any(not 1 <= window_s <= WINDOW_AT_MOST_S for window_s in windows):
        raise FieldTypeError(f"a window is 1 second to {WINDOW_AT_MOST_S // 86_400} days long")
    if len(set(windows)) < len(windows):
        raise FieldTypeError("two limits have one window; keep the smaller one")
    return limits


def _window_text(window_s: int) -> str:
    unit_s = next(unit_s for unit_s in _NAMED_S if window_s % unit_s == 0)
    count = window_s // unit_s
    return _NAMED_S[unit_s] if count == 1 else f"{count} {_NAMED_S[unit_s]}"


def _user_limits(raw: object) -> tuple[UserLimit, ...]:
    """Parse the notation, ``off``, or limits made in code, renamed to their standard names."""
    if isinstance(raw, str):
        return () if raw.strip().lower() == "off" else parse_user_limits(raw)
    if not isinstance(raw, (tuple, list)) or not all(isinstance(limit, UserLimit) for limit in raw):
        raise FieldTypeError
    pairs = [(limit.limit, limit.window_s) for limit in raw]
    if not all(type(number) is int for pair in pairs for number in pair):
        raise FieldTypeError("limit and window are whole numbers")
    return _checked(pairs) if raw else ()


USER_LIMITS: Final = FieldType(
    "one to four limits in the notation of the limits package, or off",
    EXAMPLE,
    _user_limits,
    text=lambda limits: user_limits_text(limits) or "off",
)


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
