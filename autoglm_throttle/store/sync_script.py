"""A Lua script on a synchronous connection of its own, for a background thread."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from hashlib import sha1
from typing import Any

SyncClient = Any
"""A synchronous client of redis-py: single, Sentinel or cluster."""


class SyncScript:
    """Runs one script, counts its calls, and opens a new connection after each failure.

    Args:
        connect: creates a synchronous client without retries. It is called by the thread, at the first call.
        text: the script.
    """

    def __init__(self, connect: Callable[[], SyncClient], text: str) -> None:
        self.calls: int = 0
        """Round trips started."""
        self.failures: int = 0
        """Failures of the thread: round trips without an answer, and a thread that could not be started."""
        self.last_error: str | None = None
        """Text of the newest failure, kept after a recovery."""
        self._connect = connect
        self._text = text
        self._sha = sha1(text.encode(), usedforsecurity=False).hexdigest()
        self._client: SyncClient | None = None

    @property
    def is_connected(self) -> bool:
        """Whether a call has created a client since the start or the last failure."""
        return self._client is not None

    def call(self, keys: Sequence[str], arguments: Sequence[str | int]) -> Any:  # noqa: ANN401 - any reply
        """Run the script once.

        Raises:
            Exception: of the client; the call may have been executed.
        """
        from redis.exceptions import NoScriptError

        self.calls += 1
        client = self._client
        if client is None:
            client = self._client = self._connect()
        try:
            return client.evalsha(self._sha, len(keys), *keys, *arguments)
        except NoScriptError:  # restarted server or SCRIPT FLUSH: nothing has run
            return client.eval(self._text, len(keys), *keys, *arguments)

    def record_failure(self, error: BaseException) -> None:
        """Count a failure, and close the connection."""
        self.failures += 1
        self.last_error = f"{type(error).__name__}: {error}"
        self.close()

    def close(self) -> None:
        """Close the connection; the next call opens another."""
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(Exception):  # it may be broken already
                client.close()
