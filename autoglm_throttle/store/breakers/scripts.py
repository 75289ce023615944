"""A connection that runs the script of shared breakers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final

from autoglm_throttle.store.breakers.protocol import ScriptArguments, load_script

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

SyncClient = Any
"""A synchronous client of redis-py: single, Sentinel or cluster."""


class Scripts:
    """Runs the script; a failed connection is not reused.

    Args:
        connect: creates a synchronous client without retries.
    """

    def __init__(self, connect: Callable[[], SyncClient]) -> None:
        self.calls: int = 0
        """Round trips started."""
        self._connect = connect
        self._text, self._sha = load_script()
        self._client: SyncClient | None = None
        self._parent_clients: list[SyncClient] = []

    def __call__(self, script_arguments: ScriptArguments) -> Any:  # noqa: ANN401 - any type that a server sends
        """Run the script once.

        Raises:
            Exception: of the client; the call may have been executed.
        """
        from redis.exceptions import NoScriptError

        keys, arguments = script_arguments
        self.calls += 1
        if self._client is None:
            self._client = self._connect()
        try:
            return self._client.evalsha(self._sha, len(keys), *keys, *arguments)
        except NoScriptError:  # restarted or SCRIPT FLUSH: nothing has run
            return self._client.eval(self._text, len(keys), *keys, *arguments)

    def close(self) -> None:
        """Close the connection; the next call opens another."""
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(Exception):  # it may be broken already
                client.close()

    def reset_after_fork(self) -> None:
        """Reset in a forked child: the connection belongs to the parent."""
        self._parent_clients.append(self._client)  # kept: closing would write to the parent's socket
        self._client = None


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
