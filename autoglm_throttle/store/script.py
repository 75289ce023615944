"""Runs Lua scripts: of an event loop once for each batch, of a thread once for each call. Classifies errors.

A connection, once taken from the client's pool, is reused for the next call: taking and returning it costs
more than the call. A client does not separate two errors, this module does: one before the call was sent,
when nothing can have been spent, and one after it.
"""

from __future__ import annotations

import asyncio
import contextlib
from hashlib import sha1
from importlib import resources
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from autoglm_throttle.events import LOGGER, plain
from autoglm_throttle.store.protocol import StoreErrorKind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autoglm_throttle.store.client import AsyncClient, SyncClient
    from autoglm_throttle.store.protocol import ScriptArguments

    _Connection: TypeAlias = Any
    _Pipeline: TypeAlias = Any

# Commands that the server must permit for user limits, on the keys below `REDIS_PREFIX`.
RIGHTS: Final = "evalsha eval time lindex llen lpush lrem rpop ltrim del get set pexpire"

CLUSTER_RIGHTS: Final = "cluster|slots command"  # Commands that the client of a cluster needs for itself

MOST_CHARACTERS: Final = 300  # Of an error in a log line

# Before Redis 7 an error inside a script is wrapped into another one: only its text identifies it.
_BY_TEXT: Final = (
    (("NOPERM", "NOAUTH", "WRONGPASS", "can't run this command"), StoreErrorKind.FORBIDDEN),
    (("can't access", "ACL failure", "No permissions"), StoreErrorKind.FORBIDDEN),
    (("READONLY", "The previous master is now a slave"), StoreErrorKind.READONLY),
    (("OOM ", "OutOfMemory"), StoreErrorKind.FULL),
    (("LOADING", "BUSY", "CLUSTERDOWN", "TRYAGAIN", "MASTERDOWN", "NOREPLICAS"), StoreErrorKind.BUSY),
)

# Classes of redis-py and of Python by name: the nearest base class in the table decides.
_BY_CLASS: Final = {
    name: kind
    for kind, names in (
        (StoreErrorKind.FORBIDDEN, "AuthenticationError AuthorizationError NoPermissionError"),
        (StoreErrorKind.QUEUE_FULL, "MaxConnectionsError"),  # our own pool; the client may be the user's
        (StoreErrorKind.READONLY, "ReadOnlyError"),
        (StoreErrorKind.FULL, "OutOfMemoryError"),
        (StoreErrorKind.BUSY, "BusyLoadingError ClusterDownError TryAgainError SlotNotCoveredError"),
        (StoreErrorKind.UNREACHABLE, "RedisClusterException"),
        (StoreErrorKind.TIMEOUT, "TimeoutError"),
        (StoreErrorKind.LOST, "ConnectionError OSError"),
    )
    for name in names.split()
}


def error_kind(error: BaseException, *, sent: bool) -> StoreErrorKind:
    """Classify an error of redis-py; once the call was ``sent`` its units may have been spent.

    A pool, such as that of a cluster's client, reports by its text alone that a call was not sent.
    """
    text = str(error)
    for phrases, kind in _BY_TEXT:
        if any(phrase in text for phrase in phrases):
            return kind
    if text == "Too many connections":  # in some releases a mere ConnectionError
        return StoreErrorKind.QUEUE_FULL
    names = (base.__name__ for base in type(error).__mro__)
    kind = next((_BY_CLASS[name] for name in names if name in _BY_CLASS), StoreErrorKind.CONFUSED)
    if kind in {StoreErrorKind.TIMEOUT, StoreErrorKind.LOST} and (not sent or "connecting to" in text):
        return StoreErrorKind.UNREACHABLE
    return kind


def error_text(error: BaseException) -> str:
    """Return the class and the text of an error, printable and of bounded length: the server may write it."""
    return plain(f"{type(error).__name__}: {error}".removesuffix(": ")[:MOST_CHARACTERS])


class LuaScript:
    """Sends calls of one script, each at most once unless it is certain that it did not run.

    ``client`` returns the client of the running loop; ``record_error`` records an error and returns its text.
    """

    def __init__(
        self,
        client: Callable[[], AsyncClient],
        text: str,
        record_error: Callable[[StoreErrorKind, BaseException], str],
        *,
        cluster: bool,
    ) -> None:
        self._client = client
        self._text = text
        self._sha = sha1(text.encode(), usedforsecurity=False).hexdigest()
        self._record_text = record_error
        self.cluster: bool = cluster
        self._pack = _packer()
        self._idle: list[_Connection] = []
        self._idle_client: AsyncClient = None
        self._rights_logged = False

    async def __call__(
        self, calls: Sequence[ScriptArguments], wanted: Callable[[], bool]
    ) -> Sequence[object]:
        """Send one call, or several to a cluster, each with keys of one partition; return replies or errors.

        Once a connection is open, or the nodes are known, ``wanted`` tells whether they may still be sent: a
        request that was decided without the store meanwhile must not be charged. Else each reads `TIMEOUT`.
        """
        if self.cluster:
            return await self._send_to_cluster(calls, wanted)
        kind = StoreErrorKind.TIMEOUT
        for attempt in (1, 2):
            client, connection = self._client(), None
            try:
                connection = await self._connection(client)
                if not wanted():
                    break
                return [await self._evaluate(connection, calls[0])]
            except Exception as error:  # noqa: BLE001 - a client may raise anything
                kind = self._record_error(error, sent=connection is not None)
            finally:
                if connection is not None and client is self._idle_client:
                    self._idle.append(connection)
            # The only error that is retried: a replica rejects the first write, so nothing was spent.
            if connection is None or kind is not StoreErrorKind.READONLY:
                break
            if attempt == 1:
                await self._disconnect_idle()
        return [kind]

    async def _disconnect_idle(self) -> None:
        for connection in self._idle:  # after a failover: the next call resolves the primary by name
            await connection.disconnect(nowait=True)

    async def ready(self, connections: int = 1) -> StoreErrorKind | None:
        """Open idle connections, as far as the client's pool permits; None on success."""
        opened: list[_Connection] = []
        try:
            client = self._client()
            if self.cluster:
                await client.initialize()
                return None
            try:
                while len(opened) < connections:
                    opened.append(await self._connection(client))
            finally:
                if client is self._idle_client:
                    self._idle += opened
        except Exception as error:  # noqa: BLE001 - a client may raise anything
            kind = self._record_error(error, sent=False)
            return None if kind is StoreErrorKind.QUEUE_FULL and opened else kind
        return None

    async def _connection(self, client: AsyncClient) -> _Connection:
        """Return a connection that is open and has nothing unread."""
        pool = client.connection_pool
        if client is not self._idle_client:
            self._idle_client, self._idle = client, []
        if self._idle:
            connection: _Connection = self._idle.pop()
            try:
                await pool.ensure_connection(connection)
            except BaseException:
                self._idle.append(connection)
                raise
            return connection
        connection = await pool.get_connection()
        # Its own timeout would cost a task for each call; the batch abandons calls that take too long.
        connection.socket_timeout = None
        return connection

    async def _evaluate(self, connection: _Connection, call: ScriptArguments) -> object:
        from redis.exceptions import NoScriptError

        keys, arguments = call
        command: tuple[str | int, ...] = ("EVALSHA", self._sha, len(keys), *keys, *arguments)
        while True:
            if self._pack is None:
                await connection.send_command(*command)
            else:
                await connection.send_packed_command(self._pack(command))
            try:
                return await connection.read_response()
            except NoScriptError:  # it did not run: the server was restarted, flushed, or promoted
                if command[0] == "EVAL":
                    raise
                command = ("EVAL", self._text, *command[2:])

    async def _send_to_cluster(
        self, calls: Sequence[ScriptArguments], wanted: Callable[[], bool]
    ) -> Sequence[object]:
        """Send one pipeline to each node: in a common one, a lost node fails the calls of the others, too."""
        client = self._client()
        try:
            await client.initialize()
        except Exception as error:  # noqa: BLE001 - a client may raise anything
            return [self._record_error(error, sent=False)] * len(calls)
        if not wanted():
            return [StoreErrorKind.TIMEOUT] * len(calls)
        replies: list[object] = [StoreErrorKind.CONFUSED] * len(calls)
        nodes: dict[str, list[int]] = {}
        for place, (keys, _) in enumerate(calls):
            try:
                node = client.get_node_from_key(keys[0])
            except Exception as error:  # noqa: BLE001 - no node has its slot
                replies[place] = self._record_error(error, sent=False)
            else:
                nodes.setdefault(node.name, []).append(place)

        async def send_to_node(places: list[int]) -> None:
            answers = await self._to_node(client, [calls[place] for place in places])
            for place, answer in zip(places, answers, strict=True):
                replies[place] = answer

        await asyncio.gather(*map(send_to_node, nodes.values()))
        return replies

    async def _to_node(self, client: AsyncClient, calls: Sequence[ScriptArguments]) -> list[object]:
        try:
            replies = await _fill(client.pipeline(), "EVALSHA", self._sha, calls).execute(
                raise_on_error=False
            )
            unknown = _unknown(replies)
            if unknown:
                pipeline = _fill(client.pipeline(), "EVAL", self._text, [calls[place] for place in unknown])
                retried = await pipeline.execute(raise_on_error=False)
                for place, reply in zip(unknown, retried, strict=True):
                    replies[place] = reply
        except Exception as error:  # noqa: BLE001 - a client may raise anything
            replies = [error] * len(calls)
        return [
            self._record_error(reply, sent=True) if isinstance(reply, Exception) else reply
            for reply in replies
        ]

    def _record_error(self, error: BaseException, *, sent: bool) -> StoreErrorKind:
        kind = error_kind(error, sent=sent)
        text = self._record_text(kind, error)
        if kind is StoreErrorKind.FORBIDDEN and not self._rights_logged:
            self._rights_logged = True
            LOGGER.warning(
                "the Redis server forbids what user limits need (%s); "
                "its user needs these rights on the keys below REDIS_PREFIX: %s",
                text,
                f"{RIGHTS} {CLUSTER_RIGHTS}" if self.cluster else RIGHTS,
            )
        return kind


class SyncScript:
    """Runs the script of a file in a thread, counts its calls, and connects again after each failure."""

    def __init__(self, connect: Callable[[], SyncClient], file: str, rights: str) -> None:
        self.calls: int = 0  # Round trips started
        # Failures of the thread: round trips without an answer, and a thread that could not be started.
        self.failures: int = 0
        self.last_error: str | None = None  # Text of the newest failure, kept after a recovery
        self._connect = connect
        self._text = text = resources.files(__package__).joinpath(file).read_text("utf-8")
        self._rights = rights
        self._sha = sha1(text.encode(), usedforsecurity=False).hexdigest()
        self._client: SyncClient | None = None

    @property
    def is_connected(self) -> bool:
        """Whether a call has created a client since the start or the last failure."""
        return self._client is not None

    def call(self, keys: Sequence[str], arguments: Sequence[str | int]) -> Any:  # noqa: ANN401 - any reply
        """Run the script once. After an exception of the client the call may have been executed."""
        from redis.exceptions import NoScriptError

        self.calls += 1
        client = self._client
        if client is None:
            client = self._client = self._connect()
        try:
            return client.evalsha(self._sha, len(keys), *keys, *arguments)
        except NoScriptError:  # restarted server or SCRIPT FLUSH: nothing has run
            return client.eval(self._text, len(keys), *keys, *arguments)

    def call_all(
        self, calls: Sequence[tuple[Sequence[str], Sequence[str | int]]], *, cluster: bool
    ) -> list[Any]:
        """Run the script for each call, in one round trip; an error reply stands in its place.

        A cluster gets one call after another: its pipelines ask the server for the keys of each call. After
        an exception of the connection each call may have been executed.
        """
        if not cluster:
            return self._pipeline("EVALSHA", self._sha, calls)
        from redis.exceptions import ResponseError

        replies: list[Any] = []
        for keys, arguments in calls:
            try:
                replies.append(self.call(keys, arguments))
            except ResponseError as error:
                replies.append(error)
        return replies

    def _pipeline(self, command: str, script: str, calls: Sequence[Any]) -> list[Any]:
        self.calls += 1
        self._client = self._client or self._connect()
        pipeline = _fill(self._client.pipeline(transaction=False), command, script, calls)
        replies: list[Any] = pipeline.execute(raise_on_error=False)
        unknown = _unknown(replies)
        if unknown:
            again = self._pipeline("EVAL", self._text, [calls[place] for place in unknown])
            for place, reply in zip(unknown, again, strict=True):
                replies[place] = reply
        return replies

    def record_failure(self, error: BaseException) -> str:
        """Count a failure, close the connection and return the error's text with missing rights."""
        self.failures += 1
        self.last_error = text = error_text(error)
        self.close()
        is_forbidden = error_kind(error, sent=True) is StoreErrorKind.FORBIDDEN
        return f"{text}; it needs the rights: {self._rights}" if is_forbidden else text

    def close(self) -> None:
        """Close the connection; the next call opens another."""
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(Exception):  # it may be broken already
                client.close()


def _fill(pipeline: _Pipeline, command: str, script: str, calls: Sequence[Any]) -> _Pipeline:
    """Add calls of a script to a pipeline of either client."""
    for keys, arguments in calls:  # its own evalsha() raises in a cluster; the server accepts it
        pipeline.execute_command(command, script, len(keys), *keys, *arguments)
    return pipeline


def _unknown(replies: Sequence[object]) -> list[int]:
    """Return the places of calls that have not run: the server was restarted, or its scripts flushed."""
    from redis.exceptions import NoScriptError

    return [place for place, reply in enumerate(replies) if isinstance(reply, NoScriptError)]


def _packer() -> Callable[[tuple[str | int, ...]], bytes] | None:
    """Return the packer of hiredis if installed: 5 microseconds for 64 keys instead of 60."""
    try:
        from hiredis import pack_command
    except ImportError:
        return None
    return cast("Callable[[tuple[str | int, ...]], bytes]", pack_command)
