"""One script on one client: sent once for each decision, and what goes wrong has a name.

A connection, once taken from the client's pool, is kept for the next call: taking and giving back costs more
than the call. It also tells apart what a client does not: an error before the question left, when nothing can
have been spent, and one after it.
"""

from __future__ import annotations

import asyncio
import logging
from hashlib import sha1
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from autoglm_throttle.limiting.shared.store import Trouble

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autoglm_throttle.limiting.shared.batch_codec import Words
    from autoglm_throttle.redis_client import AsyncClient

    _Connection: TypeAlias = Any

_log = logging.getLogger("autoglm_throttle")

RIGHTS: Final = "evalsha eval time lindex llen lpush lrem rpop ltrim del get set pexpire"
"""Commands that a user of the server needs for user limits, on the keys below `REDIS_PREFIX`."""

CLUSTER_RIGHTS: Final = "cluster|slots command"
"""And what the client of a cluster asks for by itself."""

_FORBIDDEN: Final = (
    "NOPERM",
    "NOAUTH",
    "WRONGPASS",
    "can't run this command",
    "can't access",
    "ACL failure",
    "No permissions",
)
_BY_TEXT: Final = (
    (_FORBIDDEN, Trouble.FORBIDDEN),
    (("READONLY", "The previous master is now a slave"), Trouble.READONLY),
    (("OOM ", "OutOfMemory"), Trouble.FULL),
    (("LOADING", "BUSY", "CLUSTERDOWN", "TRYAGAIN", "MASTERDOWN", "NOREPLICAS"), Trouble.BUSY),
)
"""Before Redis 7 an error inside a script comes wrapped into another one: only its text tells it."""


def trouble_of(error: BaseException, *, sent: bool) -> Trouble:
    """The name of an error of redis-py.

    Args:
        error: what was raised.
        sent: whether the question had left: then its units may have been spent.
    """
    from redis import exceptions as known

    text = str(error)
    for words, trouble in _BY_TEXT:
        if any(word in text for word in words):
            return trouble
    by_class = (
        ((known.AuthenticationError, known.AuthorizationError, known.NoPermissionError), Trouble.FORBIDDEN),
        (known.ReadOnlyError, Trouble.READONLY),
        (known.OutOfMemoryError, Trouble.FULL),
        (
            (known.BusyLoadingError, known.ClusterDownError, known.TryAgainError, known.SlotNotCoveredError),
            Trouble.BUSY,
        ),
        (known.RedisClusterException, Trouble.UNREACHABLE),
        ((known.TimeoutError, TimeoutError), Trouble.TIMEOUT if sent else Trouble.UNREACHABLE),
        ((known.ConnectionError, OSError), Trouble.LOST if sent else Trouble.UNREACHABLE),
    )
    return next((trouble for classes, trouble in by_class if isinstance(error, classes)), Trouble.CONFUSED)


class RedisScript:
    """Sends calls of one script, each at most once unless it is certain that it did not run.

    Args:
        client: makes the client of the running loop, or gives the one that is there.
        text: the script.
        cluster: whether the calls need a cluster's pipeline.
    """

    def __init__(self, client: Callable[[], AsyncClient], text: str, *, cluster: bool) -> None:
        self._client = client
        self._text = text
        self._sha = sha1(text.encode(), usedforsecurity=False).hexdigest()
        self._cluster = cluster
        self._pack = _packer()
        self._idle: list[_Connection] = []
        self._of: AsyncClient = None
        self.last_error: str = ""
        """Text of the newest error of the server or its client; for a log line."""
        self._said_rights = False

    async def __call__(self, calls: Sequence[Words], due: float) -> Sequence[object]:
        """Send all calls; for each its reply, or a `Trouble`."""
        if self._cluster:
            return await self._across(calls)
        return [await self._single(words, due) for words in calls]

    async def ready(self, connections: int = 1) -> Trouble | None:
        """Have so many connections, open and idle; None if they are there."""
        try:
            client = self._client()
            if self._cluster:
                await client.initialize()
                return None
            opened: list[_Connection] = []
            try:
                while len(opened) < connections:
                    opened.append(await self._connection(client))
            finally:
                if client is self._of:
                    self._idle += opened
        except Exception as error:  # noqa: BLE001 - whatever a client raises, the caller needs its name
            return self._named(error, sent=False)
        return None

    async def _single(self, words: Words, due: float) -> object:
        sent = False
        again = True
        while True:
            client = self._client()
            try:
                connection = await self._connection(client)
            except Exception as error:  # noqa: BLE001 - whatever a client raises, the caller needs its name
                return self._named(error, sent=False)
            try:
                sent = True
                return await self._ask(connection, words)
            except Exception as error:  # noqa: BLE001
                trouble = self._named(error, sent=sent)
            finally:
                if client is self._of:
                    self._idle.append(connection)
            if trouble is not Trouble.READONLY or not again or asyncio.get_running_loop().time() >= due:
                return trouble
            again = False
            await self._look_again()

    async def _connection(self, client: AsyncClient) -> _Connection:
        """A connection that is open and has nothing unread."""
        pool = client.connection_pool
        if client is not self._of:
            self._of, self._idle = client, []
        if self._idle:
            connection: _Connection = self._idle.pop()
            try:
                await pool.ensure_connection(connection)
            except BaseException:
                self._idle.append(connection)
                raise
            return connection
        connection = await pool.get_connection()
        # Its own timeout would cost a task for each call; calls that take too long are given up by the batch.
        connection.socket_timeout = None
        return connection

    async def _ask(self, connection: _Connection, words: Words) -> object:
        from redis.exceptions import NoScriptError

        keys, arguments = words
        try:
            await self._send(connection, ("EVALSHA", self._sha, len(keys), *keys, *arguments))
            return await connection.read_response()
        except NoScriptError:  # it did not run: the server was restarted, flushed, or promoted
            await self._send(connection, ("EVAL", self._text, len(keys), *keys, *arguments))
            return await connection.read_response()

    async def _send(self, connection: _Connection, command: tuple[str | int, ...]) -> None:
        if self._pack is None:
            await connection.send_command(*command)
        else:
            await connection.send_packed_command(self._pack(command))

    async def _look_again(self) -> None:
        """The primary is another server now: connect anew, by name."""
        for connection in self._idle:
            await connection.disconnect(nowait=True)

    async def _across(self, calls: Sequence[Words]) -> Sequence[object]:
        from redis.exceptions import NoScriptError

        try:
            replies = await self._pipeline("EVALSHA", self._sha, calls)
            unknown = [place for place, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
            if unknown:  # those did not run
                healed = await self._pipeline("EVAL", self._text, [calls[place] for place in unknown])
                for place, reply in zip(unknown, healed, strict=True):
                    replies[place] = reply
        except Exception as error:  # noqa: BLE001 - whatever a client raises, the caller needs its name
            sent = not _refused(error)
            return [self._named(error, sent=sent)] * len(calls)
        return [
            self._named(reply, sent=not _refused(reply)) if isinstance(reply, Exception) else reply
            for reply in replies
        ]

    async def _pipeline(self, command: str, script: str, calls: Sequence[Words]) -> list[object]:
        pipeline = self._client().pipeline()
        for keys, arguments in calls:  # its own evalsha() refuses, though the server would not
            pipeline.execute_command(command, script, len(keys), *keys, *arguments)
        replies: list[object] = await pipeline.execute(raise_on_error=False)
        return replies

    def _named(self, error: BaseException, *, sent: bool) -> Trouble:
        self.last_error = f"{type(error).__name__}: {error}"
        trouble = trouble_of(error, sent=sent)
        if trouble is Trouble.FORBIDDEN and not self._said_rights:
            self._said_rights = True
            rights = f"{RIGHTS} {CLUSTER_RIGHTS}" if self._cluster else RIGHTS
            _log.warning(
                "the Redis server forbids what user limits need (%s); "
                "its user needs these rights on the keys below REDIS_PREFIX: %s",
                error,
                rights,
            )
        return trouble


def _refused(error: BaseException) -> bool:
    """Whether a cluster's client never came so far as to send: its pool does not say it otherwise."""
    from redis.exceptions import RedisClusterException

    return isinstance(error, RedisClusterException) or "connecting to" in str(error)


def _packer() -> Callable[[tuple[str | int, ...]], bytes] | None:
    """The packer of hiredis where it is installed: 5 microseconds for 64 keys instead of 60."""
    try:
        from hiredis import pack_command
    except ImportError:
        return None
    return cast("Callable[[tuple[str | int, ...]], bytes]", pack_command)
