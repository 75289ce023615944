"""Many concurrent calls from the start: the connections suffice for them and for the handshake."""

from __future__ import annotations

import asyncio

import pytest

from autoglm_throttle.admission.factory import redis_clients
from autoglm_throttle.settings import Settings
from autoglm_throttle.store.batch_rules import BatchRules
from autoglm_throttle.store.client import CONNECTIONS, RedisClients, RedisOptions
from autoglm_throttle.store.redis_user_limits import RedisUserLimitStore
from autoglm_throttle.store.user_limit_store import StoreCharge, StoreErrorKind
from autoglm_throttle.store.window_protocol import WindowProtocol
from autoglm_throttle.types import UserLimit
from tests.store.cluster import Cluster3
from tests.store.server import RedisServer

LIMITS = (UserLimit("user-60s", 10, 60),)


@pytest.mark.parametrize(
    ("in_flight", "connections"), [(1, CONNECTIONS), (2, CONNECTIONS), (3, 6), (64, 128)]
)
def test_a_probe_finds_a_connection_beside_each_call(in_flight: int, connections: int) -> None:
    settings = Settings(redis_url="redis://cache", redis_in_flight=in_flight)
    assert redis_clients(settings).options.connections == connections


async def crowd(url: str, prefix: str) -> None:
    options = RedisOptions(url, connect_s=5.0, in_flight=8)
    rules = BatchRules(deadline_s=5.0, in_flight=8, batch_keys=2)
    window = RedisUserLimitStore(RedisClients(options), WindowProtocol(prefix, "default", 16), rules)
    heard: list[StoreErrorKind | None] = []
    window.listen(heard.append)
    greeting, *answers = await asyncio.gather(
        window.probe(),
        *(window.charge([StoreCharge("user", LIMITS, f"{user:016x}", 1)]) for user in range(100)),
    )
    assert greeting is None
    assert [answer for answer in answers if isinstance(answer, StoreErrorKind)] == [], window.last_error
    assert set(heard) == {None}


@pytest.mark.server
async def test_many_callers_at_start_are_answered(own_server: RedisServer, redis_prefix: str) -> None:
    await crowd(own_server.url, redis_prefix)
    assert 8 < int(own_server.info("clients")["connected_clients"]) <= 17


@pytest.mark.server
async def test_many_callers_at_start_of_cluster_are_answered(
    redis_cluster: Cluster3, redis_prefix: str
) -> None:
    await crowd(redis_cluster.url, redis_prefix)
