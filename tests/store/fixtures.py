"""Real servers as fixtures. Those of the session start when a test first asks for them."""

from __future__ import annotations

import secrets
from collections.abc import Generator, Iterator
from typing import Any

import pytest

from tests.store.cluster import Cluster3
from tests.store.proxy import SlowProxy
from tests.store.sentinel import SentinelPair
from tests.store.server import MISSING, Binary, RedisServer, binaries, newest


def _kinds() -> Iterator[pytest.ParameterSet]:
    """The server programs found, all but the newest for slow tests; None where there are none."""
    for binary in binaries():
        marks = () if binary == newest() else pytest.mark.slow
        yield pytest.param(binary, id=binary.name, marks=marks)
    if not binaries():
        yield pytest.param(None, id="none")


KINDS = list(_kinds())
SEVERAL = {"redis_cluster", "redis_sentinel", "own_sentinel"}


@pytest.fixture(scope="session", params=KINDS)
def redis_server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    """A server of each kind found on this machine, one after the other; it is shared: leave it as it was."""
    binary: Binary | None = request.param
    assert binary is not None, MISSING
    with RedisServer(binary) as server:
        yield server


@pytest.fixture(params=KINDS)
def each_server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    """A server of each kind found, for this test alone, which may kill it."""
    binary: Binary | None = request.param
    assert binary is not None, MISSING
    with RedisServer(binary) as server:
        yield server


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """Address of `redis_server`."""
    return redis_server.url


@pytest.fixture
def redis_prefix() -> str:
    """A prefix of keys that no other test has."""
    return f"t{secrets.token_hex(4)}"


@pytest.fixture
def restricted(redis_server: RedisServer, redis_prefix: str) -> Iterator[str]:
    """Address of `redis_server` for one who may do what user limits need, under its prefix, and no more."""
    from autoglm_throttle.store.script import RIGHTS

    rights = [f"+{right}" for right in RIGHTS.split()]
    redis_server.command("ACL", "SETUSER", redis_prefix, "on", ">pw", f"~{redis_prefix}:*", *rights)
    yield redis_server.url_as(redis_prefix, "pw")
    redis_server.command("ACL", "DELUSER", redis_prefix)


@pytest.fixture
def own_server() -> Iterator[RedisServer]:
    """A server of the newest kind for this test alone, which may kill it."""
    with RedisServer(newest()) as server:
        yield server


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[Cluster3]:
    """A Cluster of three, of the newest kind; it is shared: leave it as it was."""
    with Cluster3(newest()) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def redis_sentinel() -> Iterator[SentinelPair]:
    """A Sentinel with a primary and a replica, of the newest kind; it is shared: leave it as it was."""
    with SentinelPair(newest()) as pair:
        yield pair


@pytest.fixture
def own_sentinel() -> Iterator[SentinelPair]:
    """The same for this test alone, which may kill the primary."""
    with SentinelPair(newest()) as pair:
        yield pair


@pytest.fixture
def slow_proxy(own_server: RedisServer) -> Iterator[SlowProxy]:
    """A proxy in front of `own_server`, not slow yet."""
    with SlowProxy(own_server.port) as proxy:
        yield proxy


@pytest.fixture
def tls_proxy(own_server: RedisServer) -> Iterator[SlowProxy]:
    """`own_server` behind TLS: the servers in wheels are built without it, and to a client it is the same."""
    with SlowProxy(own_server.port, tls=True) as proxy:
        yield proxy


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that asks for several servers together is slow."""
    for item in items:
        if not SEVERAL.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """The output of a server is part of the report of the test that failed with it."""
    report = yield
    arguments: dict[str, Any] = getattr(item, "funcargs", {})
    for name, server in arguments.items():
        for part in _servers(server) if report.failed else ():
            report.sections.append((f"output of {name} on port {part.port}", part.output))
    return report


def _servers(fixture: object) -> list[RedisServer]:
    match fixture:
        case RedisServer():
            return [fixture]
        case Cluster3():
            return fixture.nodes
        case SentinelPair():
            return [fixture.primary, fixture.replica, fixture.sentinel]
        case _:
            return []
