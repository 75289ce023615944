"""Real servers as fixtures. Those of the session start when a test first asks for them."""

from __future__ import annotations

import secrets
from collections.abc import Generator, Iterator
from typing import Any

import pytest

from tests.stores.server import MISSING, Binary, RedisServer, binaries, newest


@pytest.fixture(
    scope="session", params=binaries() or (None,), ids=lambda binary: binary.name if binary else "none"
)
def redis_server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    """A server of each kind found on this machine, one after the other; it is shared: leave it as it was."""
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
def own_server() -> Iterator[RedisServer]:
    """A server of the newest kind for this test alone, which may kill it."""
    with RedisServer(newest()) as server:
        yield server


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What a server has written stands in the report of the test that failed with it."""
    report = yield
    arguments: dict[str, Any] = getattr(item, "funcargs", {})
    for name, server in arguments.items():
        if report.failed and isinstance(server, RedisServer):
            report.sections.append((f"output of {name}", server.output))
    return report
