"""One connection on which the script of shared breakers runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final

from autoglm_throttle.resilience.shared.wire import Words, script

SCRIPT_RIGHTS: Final = (
    "evalsha eval time hmget hset del pexpire publish zadd zcount zrem zremrangebyscore zscore"
)
"""What a user of the server needs for the script, on the keys and the channel below ``REDIS_PREFIX``."""

RIGHTS: Final = f"{SCRIPT_RIGHTS} subscribe ping"
"""All that shared breakers need."""

_FORBIDDEN: Final = (
    *("NOPERM", "NOAUTH", "WRONGPASS", "No permissions", "ACL failure"),
    *("can't run this command", "can't access"),
)
"""Before Redis 7 an error inside a script comes wrapped into another one: only its text tells it."""

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
"""By name, since redis need not be there: the next call would find the same. The third and fourth are why a
server or its socket cannot be reached at all."""

SyncClient = Any
"""A synchronous client of redis-py: single, Sentinel or cluster."""


class Scripts:
    """Calls the script; a connection that failed is not used again.

    Args:
        connect: makes a synchronous client without retries.
    """

    def __init__(self, connect: Callable[[], SyncClient]) -> None:
        self.calls: int = 0
        """Round trips that were begun."""
        self._connect = connect
        self._text, self._sha = script()
        self._client: SyncClient | None = None
        self._left_behind: list[SyncClient] = []

    def __call__(self, words: Words) -> Any:  # noqa: ANN401 - whatever a server sends
        """Run the script once.

        Raises:
            Exception: whatever a client raises; the call may have been carried out.
        """
        from redis.exceptions import NoScriptError

        keys, arguments = words
        self.calls += 1
        if self._client is None:
            self._client = self._connect()
        try:
            return self._client.evalsha(self._sha, len(keys), *keys, *arguments)
        except NoScriptError:  # it was restarted, or told to forget: nothing has run
            return self._client.eval(self._text, len(keys), *keys, *arguments)

    def close(self) -> None:
        """Let go of the connection; the next call makes another."""
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(Exception):  # it is broken already
                client.close()

    def forget(self) -> None:
        """In a forked process: leave the connection to the parent."""
        self._left_behind.append(self._client)  # kept: to finish it would speak on the parent's connection
        self._client = None


def final(error: BaseException) -> bool:
    """Whether the next call would fail in the same way: a refused connection, a missing right."""
    return forbidden(error) or any(
        kind.__name__ in _FINAL for cause in _causes(error) for kind in type(cause).__mro__
    )


def explained(error: BaseException) -> str:
    """An error in one line; where a right is missing, with all that are needed."""
    text = f"{type(error).__name__}: {error}"
    if not forbidden(error):
        return text
    return f"{text}; it needs the rights: {RIGHTS}, and its channels below the prefix (&...)"


def forbidden(error: BaseException) -> bool:
    """Whether the server knows its user and says no."""
    return type(error).__name__ == "NoPermissionError" or any(word in str(error) for word in _FORBIDDEN)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
