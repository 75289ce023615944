"""Permissions that shared breakers need, and errors that the next call would repeat."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

SCRIPT_RIGHTS: Final = (
    "evalsha eval time hmget hset del pexpire publish zadd zcount zrem zremrangebyscore zscore"
)
"""Redis commands that the script needs, on the keys and the channel below ``REDIS_PREFIX``."""

RIGHTS: Final = f"{SCRIPT_RIGHTS} subscribe ping"
"""Redis commands that shared breakers need."""

_FORBIDDEN: Final = (
    *("NOPERM", "NOAUTH", "WRONGPASS", "No permissions", "ACL failure"),
    *("can't run this command", "can't access"),
)
"""Texts of missing permissions: before Redis 7 a script error is wrapped, and only its text identifies it."""

_FINAL: Final = frozenset(
    {
        "AuthenticationError",
        "AuthorizationError",
        "ConnectionRefusedError",
        "FileNotFoundError",
        "MasterNotFoundError",
        "NoPermissionError",
        "RedisClusterException",
    }
)
"""Errors that the next call would repeat; by name, since redis may not be installed.

``ConnectionRefusedError`` and ``FileNotFoundError`` mean that a server or its socket cannot be reached.
"""


def is_final(error: BaseException) -> bool:
    """Whether the next call would fail in the same way: no connection possible, missing permission."""
    return is_forbidden(error) or any(
        kind.__name__ in _FINAL for cause in _causes(error) for kind in type(cause).__mro__
    )


def explain(error: BaseException) -> str:
    """Describe an error in one line; after a missing permission with all that are needed."""
    text = f"{type(error).__name__}: {error}"
    if not is_forbidden(error):
        return text
    return f"{text}; missing permissions, needed: {RIGHTS}, and its channels below the prefix (&...)"


def is_forbidden(error: BaseException) -> bool:
    """Whether the server denies the user a permission."""
    return type(error).__name__ == "NoPermissionError" or any(word in str(error) for word in _FORBIDDEN)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
