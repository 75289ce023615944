"""A request to a Cluster that needs two servers: both answer within its one deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence

import pytest
from pydantic import SecretStr

from autoglm_throttle.settings.groups.store import StoreSettings
from autoglm_throttle.store.protocol import (
    SPLIT,
    VALUES,
    Answer,
    ScriptArguments,
    StoreCharge,
    StoreErrorKind,
)
from autoglm_throttle.store.redis_user_limits import RedisUserLimitStore
from autoglm_throttle.types import UserLimit
from tests.store.batches import ManualLoop
from tests.store.store_checks import charged

DEADLINE_S = StoreSettings().redis_deadline_s
LIMITS = (UserLimit("user-60s", 10, 60),)
CHARGES = [StoreCharge(kind, LIMITS, f"{number:016x}", 1) for number, kind in ((1, "user"), (2, "address"))]
ALLOWED = [1_000_000, 0, 9, 60, 7]


class Servers:
    """Answer each check on command."""

    cluster = True

    def __init__(self) -> None:
        self.waiting: list[asyncio.Future[Sequence[object]]] = []
        self.keys: list[str] = []

    async def __call__(
        self, calls: Sequence[ScriptArguments], wanted: Callable[[], bool]
    ) -> Sequence[object]:
        (call,) = calls
        self.keys += call[0]
        self.waiting.append(asyncio.get_running_loop().create_future())
        return await self.waiting[-1]

    def allow(self) -> None:
        self.waiting.pop(0).set_result([ALLOWED])


@pytest.fixture
def loop() -> Iterator[ManualLoop]:
    loop = ManualLoop()
    yield loop
    loop.end()


@pytest.fixture
def servers() -> Servers:
    return Servers()


@pytest.fixture
def asked(loop: ManualLoop, servers: Servers) -> asyncio.Task[Answer | StoreErrorKind]:
    """A request whose user and address lie on different servers, at the time 100."""
    window = RedisUserLimitStore(StoreSettings(redis_url=SecretStr("redis+cluster://cache")))
    assert window.protocol.build_check(CHARGES).tag == SPLIT
    batch = loop.act(window.batch)
    batch.script = servers
    task = loop.create_task(charged(window, *CHARGES))
    loop.settle()
    assert len(servers.waiting) == 1
    return task


def test_both_have_answered_in_time(
    asked: asyncio.Task[Answer | StoreErrorKind], loop: ManualLoop, servers: Servers
) -> None:
    for _ in CHARGES:
        loop.move(DEADLINE_S * 0.4)
        servers.allow()
        loop.settle()
    answer = asked.result()
    assert not isinstance(answer, StoreErrorKind)
    assert list(answer[::VALUES]) == [0, 0]
    assert [key.split(":")[4] for key in servers.keys] == ["address", "user"]


def test_second_server_gets_the_remaining_deadline(
    asked: asyncio.Task[Answer | StoreErrorKind], loop: ManualLoop, servers: Servers
) -> None:
    loop.move(DEADLINE_S * 0.9)
    servers.allow()
    loop.settle()
    assert not asked.done()
    loop.move(DEADLINE_S * 0.1)
    assert asked.result() is StoreErrorKind.TIMEOUT
    assert servers.keys[2:] == servers.keys[:1], "what the first has granted goes back"
