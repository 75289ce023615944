"""Results of a script call by the errors of redis-py; the client is a scripted one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from pydantic import SecretStr
from redis import exceptions as known
from redis.asyncio.sentinel import MasterNotFoundError

from autoglm_throttle.settings.groups.store import StoreSettings
from autoglm_throttle.store import script
from autoglm_throttle.store.protocol import StoreErrorKind
from autoglm_throttle.store.redis_user_limits import RedisUserLimitStore
from autoglm_throttle.store.script import RIGHTS, LuaScript, error_kind

TEXT = "return 1"
SHA = "e0e1f9fabfc9d4800c877a703b823ac0578ff8db"

LOST = "Error while reading from cache:6379 : (104, 'Connection reset by peer')"
TABLE: list[tuple[Exception, StoreErrorKind, StoreErrorKind]] = [
    (
        known.ReadOnlyError("You can't write against a read only replica."),
        StoreErrorKind.READONLY,
        StoreErrorKind.READONLY,
    ),
    (
        known.ConnectionError("The previous master is now a slave"),
        StoreErrorKind.READONLY,
        StoreErrorKind.READONLY,
    ),
    (
        known.ResponseError("Error running script: @user_script:9: -READONLY You can't"),
        StoreErrorKind.READONLY,
        StoreErrorKind.READONLY,
    ),
    (
        known.OutOfMemoryError("command not allowed when used memory > 'maxmemory'."),
        StoreErrorKind.FULL,
        StoreErrorKind.FULL,
    ),
    (
        known.ResponseError("Error running script: -OOM command not allowed"),
        StoreErrorKind.FULL,
        StoreErrorKind.FULL,
    ),
    (
        known.BusyLoadingError("Redis is loading the dataset in memory"),
        StoreErrorKind.BUSY,
        StoreErrorKind.BUSY,
    ),
    (known.ResponseError("BUSY Redis is busy running a script."), StoreErrorKind.BUSY, StoreErrorKind.BUSY),
    (known.ClusterDownError("CLUSTERDOWN Hash slot not served"), StoreErrorKind.BUSY, StoreErrorKind.BUSY),
    (known.TryAgainError("TRYAGAIN Multiple keys"), StoreErrorKind.BUSY, StoreErrorKind.BUSY),
    (known.ResponseError("MASTERDOWN Link with MASTER is down"), StoreErrorKind.BUSY, StoreErrorKind.BUSY),
    (
        known.ResponseError("NOREPLICAS Not enough good replicas to write."),
        StoreErrorKind.BUSY,
        StoreErrorKind.BUSY,
    ),
    (
        known.NoPermissionError("this user has no permissions to run 'evalsha'"),
        StoreErrorKind.FORBIDDEN,
        StoreErrorKind.FORBIDDEN,
    ),
    (
        known.ResponseError("The user executing the script can't run this command"),
        StoreErrorKind.FORBIDDEN,
        StoreErrorKind.FORBIDDEN,
    ),
    (
        known.ResponseError("ACL failure in script: User u has no permissions"),
        StoreErrorKind.FORBIDDEN,
        StoreErrorKind.FORBIDDEN,
    ),
    (
        known.AuthenticationError("invalid username-password pair"),
        StoreErrorKind.FORBIDDEN,
        StoreErrorKind.FORBIDDEN,
    ),
    (
        known.AuthenticationError("Authentication required."),
        StoreErrorKind.FORBIDDEN,
        StoreErrorKind.FORBIDDEN,
    ),
    (
        known.ResponseError("user_script:1: attempt to index a nil value"),
        StoreErrorKind.CONFUSED,
        StoreErrorKind.CONFUSED,
    ),
    (known.MaxConnectionsError(), StoreErrorKind.QUEUE_FULL, StoreErrorKind.QUEUE_FULL),
    (known.ConnectionError("Too many connections"), StoreErrorKind.QUEUE_FULL, StoreErrorKind.QUEUE_FULL),
    (known.MovedError("1 127.0.0.1:7000"), StoreErrorKind.CONFUSED, StoreErrorKind.CONFUSED),
    (known.InvalidResponse("Protocol error"), StoreErrorKind.CONFUSED, StoreErrorKind.CONFUSED),
    (ZeroDivisionError(), StoreErrorKind.CONFUSED, StoreErrorKind.CONFUSED),
    (known.ConnectionError(LOST), StoreErrorKind.UNREACHABLE, StoreErrorKind.LOST),
    (ConnectionResetError(), StoreErrorKind.UNREACHABLE, StoreErrorKind.LOST),
    (
        known.TimeoutError("Timeout reading from cache:6379"),
        StoreErrorKind.UNREACHABLE,
        StoreErrorKind.TIMEOUT,
    ),
    (TimeoutError(), StoreErrorKind.UNREACHABLE, StoreErrorKind.TIMEOUT),
    (MasterNotFoundError("No master found for 'mymaster'"), StoreErrorKind.UNREACHABLE, StoreErrorKind.LOST),
]


@pytest.mark.parametrize(("error", "before", "after"), TABLE, ids=[f"{row[0]!r:.60}" for row in TABLE])
def test_each_error_has_a_name(error: Exception, before: StoreErrorKind, after: StoreErrorKind) -> None:
    assert error_kind(error, sent=False) is before
    assert error_kind(error, sent=True) is after


class Connection:
    """Gives what the test has laid out, one for each command."""

    def __init__(self, replies: Iterator[object]) -> None:
        self.replies = replies
        self.sent: list[list[str]] = []
        self.disconnected = 0
        self.socket_timeout: float | None = 1.0

    async def send_command(self, *command: object) -> None:
        self.sent.append([str(word) for word in command])

    async def read_response(self) -> object:
        reply = next(self.replies)
        if isinstance(reply, BaseException):
            raise reply
        return reply

    async def disconnect(self, *, nowait: bool) -> None:
        self.disconnected += 1


class Client:
    """Client and pool in one."""

    def __init__(self, *replies: object, refuses: Exception | None = None) -> None:
        self.connection_pool = self
        self.replies = iter(replies)
        self.refuses = refuses
        self.connections: list[Connection] = []
        self.ensured = 0
        self.most = 99

    async def get_connection(self) -> Connection:
        if self.refuses is not None:
            raise self.refuses
        if len(self.connections) >= self.most:
            raise known.MaxConnectionsError("Too many connections")
        self.connections.append(Connection(self.replies))
        return self.connections[-1]

    async def ensure_connection(self, connection: Connection) -> None:
        self.ensured += 1
        if self.refuses is not None:
            raise self.refuses

    @property
    def sent(self) -> list[list[str]]:
        return [command for connection in self.connections for command in connection.sent]


@pytest.fixture(autouse=True)
def _no_hiredis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "_packer", lambda: None)


def yes() -> bool:
    return True


def no() -> bool:
    return False


def store_of(url: str = "redis://cache") -> RedisUserLimitStore:
    return RedisUserLimitStore(StoreSettings(redis_url=SecretStr(url)))


def script_of(client: Any, news: RedisUserLimitStore | None = None, *, cluster: bool = False) -> LuaScript:
    return LuaScript(lambda: client, TEXT, (news or store_of()).record_error, cluster=cluster)


async def send(script: LuaScript, wanted: Callable[[], bool] = yes) -> object:
    (reply,) = await script([(["k"], [7])], wanted)
    return reply


async def test_a_call_is_one_evalsha_on_a_connection_that_is_kept() -> None:
    client = Client([1], [2])
    script = script_of(client)
    assert [await send(script), await send(script)] == [[1], [2]]
    assert client.sent == [["EVALSHA", SHA, "1", "k", "7"]] * 2
    assert len(client.connections) == 1
    assert client.ensured == 1, "before it is used again it is looked at"
    assert client.connections[0].socket_timeout is None


async def test_a_server_that_does_not_know_the_script_gets_it_once() -> None:
    client = Client(known.NoScriptError("No matching script"), [1])
    assert await send(script_of(client)) == [1]
    assert client.sent == [["EVALSHA", SHA, "1", "k", "7"], ["EVAL", TEXT, "1", "k", "7"]]


async def test_a_script_that_is_never_known_is_confusing() -> None:
    client = Client(*[known.NoScriptError("No matching script")] * 3)
    assert await send(script_of(client)) is StoreErrorKind.CONFUSED
    assert len(client.sent) == 2


@pytest.mark.parametrize(
    "error",
    [
        known.TimeoutError("Timeout reading"),
        known.ConnectionError(LOST),
        known.ResponseError("OOM "),
        ValueError(),
    ],
    ids=repr,
)
async def test_possibly_executed_script_is_never_resent(error: Exception) -> None:
    client = Client(error, [1])
    assert isinstance(await send(script_of(client)), StoreErrorKind)
    assert len(client.sent) == 1


async def test_a_replica_is_left_for_the_primary_once() -> None:
    readonly = known.ReadOnlyError("You can't write against a read only replica.")
    client = Client(readonly, [1])
    assert await send(script_of(client)) == [1]
    assert client.connections[0].disconnected == 1
    client = Client(readonly, readonly, [1])
    assert await send(script_of(client)) is StoreErrorKind.READONLY
    assert len(client.sent) == 2


async def test_a_primary_found_after_the_deadline_is_asked_nothing() -> None:
    client = Client(known.ReadOnlyError("You can't write"), [1])
    assert await send(script_of(client), lambda: not client.sent) is StoreErrorKind.READONLY
    assert len(client.sent) == 1
    assert client.connections[0].disconnected == 1, "the next call finds the primary"


async def test_check_decided_while_connecting_is_not_sent() -> None:
    client = Client([1])
    script = script_of(client)
    assert await send(script, no) is StoreErrorKind.TIMEOUT
    assert client.sent == []
    assert await send(script) == [1]
    assert len(client.connections) == 1


async def test_unreachable_server_is_detected_and_connection_kept() -> None:
    client = Client([1], [2], refuses=known.ConnectionError("Error 111 connecting to cache:6379."))
    news = store_of()
    script = script_of(client, news)
    assert await send(script) is StoreErrorKind.UNREACHABLE
    assert client.sent == []
    client.refuses = None
    assert await send(script) == [1]
    client.refuses = known.ConnectionError("Error 111 connecting to cache:6379.")
    assert await send(script) is StoreErrorKind.UNREACHABLE
    client.refuses = None
    assert await send(script) == [2]
    assert len(client.connections) == 1
    news.notify(StoreErrorKind.UNREACHABLE)
    assert news.last_error == "ConnectionError: Error 111 connecting to cache:6379."


async def test_a_cancelled_call_gives_its_connection_back() -> None:
    client = Client(asyncio.CancelledError(), [2])
    script = script_of(client)
    with pytest.raises(asyncio.CancelledError):
        await send(script)
    assert await send(script) == [2]
    assert len(client.connections) == 1


async def test_a_new_client_has_new_connections() -> None:
    clients = [Client([1]), Client([2])]
    now = clients[0]
    script = LuaScript(lambda: now, TEXT, store_of().record_error, cluster=False)
    assert await send(script) == [1]
    now = clients[1]
    assert await send(script) == [2]
    assert [len(client.connections) for client in clients] == [1, 1]


async def test_ready_opens_so_many_and_each_is_used() -> None:
    client = Client([1], [2])
    script = script_of(client)
    assert await script.ready(2) is None
    assert await script.ready(2) is None
    assert len(client.connections) == 2
    client.refuses = known.AuthenticationError("WRONGPASS")
    assert await script.ready() is StoreErrorKind.FORBIDDEN


async def test_ready_opens_all_of_a_small_pool() -> None:
    client = Client([1])
    script = script_of(client)
    client.most = 1
    assert await script.ready(2) is None
    assert await send(script) == [1]
    client.most = 0
    assert await script_of(client).ready(2) is StoreErrorKind.QUEUE_FULL


async def test_rights_are_named_once(caplog: pytest.LogCaptureFixture) -> None:
    client = Client(*[known.NoPermissionError("NOPERM this user")] * 3)
    script = script_of(client)
    with caplog.at_level(logging.WARNING):
        assert [await send(script) for _ in range(3)] == [StoreErrorKind.FORBIDDEN] * 3
    assert [RIGHTS in record.getMessage() for record in caplog.records] == [True]


class Node:
    """One of a cluster: the replies to its next pipelines, a function for each."""

    def __init__(self, name: str, *rounds: Callable[[], list[object]]) -> None:
        self.name = name
        self.rounds = list(rounds)


class Pipeline:
    """Commands for one node."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.commands: list[tuple[object, ...]] = []

    def execute_command(self, *command: object) -> None:
        self.commands.append(command)

    async def execute(self, *, raise_on_error: bool) -> list[object]:
        assert not raise_on_error
        nodes = [self.cluster.get_node_from_key(str(command[3])) for command in self.commands]
        assert {node.name for node in nodes} == {nodes[0].name}, "one node's trouble is no other's"
        self.cluster.sent.append(self.commands)
        return nodes[0].rounds.pop(0)()


class Cluster:
    """A cluster's client; keys are held by the node that they begin with."""

    def __init__(self, *nodes: Node) -> None:
        self.nodes = {node.name: node for node in nodes}
        self.sent: list[list[tuple[object, ...]]] = []
        self.knows = True

    def get_node_from_key(self, key: str) -> Node:
        if key[0] not in self.nodes:
            raise known.SlotNotCoveredError("Slot 1 is not covered by the cluster")
        return self.nodes[key[0]]

    def pipeline(self) -> Pipeline:
        return Pipeline(self)

    async def initialize(self) -> None:
        if not self.knows:
            raise known.ConnectionError("Error 111 connecting to a:1.")


def fail(error: Exception) -> list[object]:
    raise error


CALLS = [(["a1"], [1]), (["b2"], [2]), (["a3"], [3])]


async def across(
    cluster: Cluster, calls: Sequence[Any] = CALLS, wanted: Callable[[], bool] = yes
) -> Sequence[object]:
    return await script_of(cluster, cluster=True)(calls, wanted)


async def test_each_node_gets_one_pipeline_and_only_unexecuted_again() -> None:
    unknown = known.NoScriptError("No matching script")
    cluster = Cluster(
        Node("a", lambda: [unknown, ["a3"]], lambda: [known.ReadOnlyError("replica")]),
        Node("b", lambda: [["b2"]]),
    )
    assert await across(cluster) == [StoreErrorKind.READONLY, ["b2"], ["a3"]]
    assert sorted(cluster.sent, key=lambda sent: (len(sent), str(sent))) == [
        [("EVAL", TEXT, 1, "a1", 1)],
        [("EVALSHA", SHA, 1, "b2", 2)],
        [("EVALSHA", SHA, 1, "a1", 1), ("EVALSHA", SHA, 1, "a3", 3)],
    ]


@pytest.mark.parametrize(
    ("error", "trouble"),
    [
        (known.ConnectionError("Error 111 connecting to 127.0.0.1:7000."), StoreErrorKind.UNREACHABLE),
        (known.RedisClusterException("Redis Cluster cannot be connected"), StoreErrorKind.UNREACHABLE),
        (known.MaxConnectionsError(), StoreErrorKind.QUEUE_FULL),
        (known.ConnectionError(LOST), StoreErrorKind.LOST),
        (known.TimeoutError("Timeout reading"), StoreErrorKind.TIMEOUT),
    ],
)
async def test_failing_node_affects_only_its_keys(error: Exception, trouble: StoreErrorKind) -> None:
    answers: list[Callable[[], list[object]]] = [lambda: fail(error), lambda: [error] * 2]
    for answer in answers:
        cluster = Cluster(Node("a", answer), Node("b", lambda: [["b2"]]))
        assert await across(cluster) == [trouble, ["b2"], trouble]


async def test_unserved_slot_affects_only_its_keys() -> None:
    assert await across(Cluster(Node("b", lambda: [["b2"]]))) == [
        StoreErrorKind.BUSY,
        ["b2"],
        StoreErrorKind.BUSY,
    ]


async def test_a_cluster_found_after_the_deadline_is_asked_nothing() -> None:
    cluster = Cluster(Node("a"), Node("b"))
    assert await across(cluster, wanted=no) == [StoreErrorKind.TIMEOUT] * 3
    assert cluster.sent == []
    cluster.knows = False
    assert await across(cluster) == [StoreErrorKind.UNREACHABLE] * 3


async def test_a_cluster_is_ready_when_it_knows_its_nodes() -> None:
    cluster = Cluster()
    script = script_of(cluster, cluster=True)
    assert await script.ready() is None
    cluster.knows = False
    assert await script.ready() is StoreErrorKind.UNREACHABLE


def test_calls_are_notified_and_probes_only_recorded() -> None:
    news = store_of()
    news.notify(None)  # nobody listens yet
    heard: list[StoreErrorKind | None] = []
    news.listen(heard.append)
    for trouble in (StoreErrorKind.LOST, None):
        news.notify(trouble)
        news.notify(trouble, is_probe=True)
    assert heard == [StoreErrorKind.LOST, None]


def test_text_is_shown_with_its_own_error() -> None:
    news = store_of()
    news.record_error(StoreErrorKind.LOST, ConnectionResetError("by peer"))
    assert news.last_error == "", "nobody knows yet what that will come to"
    news.notify(StoreErrorKind.LOST)
    assert news.last_error == "ConnectionResetError: by peer"
    news.notify(StoreErrorKind.TIMEOUT)
    assert news.last_error == "", "silence says nothing"


def test_success_clears_the_text() -> None:
    news = store_of()
    news.record_error(StoreErrorKind.LOST, EOFError("cut"))
    news.notify(StoreErrorKind.LOST)
    news.notify(None, is_probe=True)
    assert news.last_error == ""
    news.notify(StoreErrorKind.LOST)
    assert news.last_error == "", "that of yesterday explains nothing today"


def test_error_without_text_is_its_name() -> None:
    news = store_of()
    assert news.record_error(StoreErrorKind.LOST, EOFError()) == "EOFError"


def test_no_text_shows_a_secret() -> None:
    news = store_of("redis://u:hush@cache")
    news.notify(StoreErrorKind.LOST, is_probe=True)
    assert (
        news.record_error(StoreErrorKind.LOST, EOFError("cannot reach h://u:hush@h"))
        == news.last_error
        == "EOFError: cannot reach h://u:***@h"
    )
