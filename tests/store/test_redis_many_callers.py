"""Many concurrent calls from the start: the connections suffice for them and for the handshake."""

from __future__ import annotations

import asyncio

import pytest
from pydantic import SecretStr

from autoglm_throttle.settings.groups.store import StoreSettings
from autoglm_throttle.store.client import CONNECTIONS, max_connections
from autoglm_throttle.store.protocol import StoreCharge, StoreErrorKind
from autoglm_throttle.store.redis_user_limits import RedisUserLimitStore
from autoglm_throttle.types import UserLimit
from tests.store.cluster import Cluster3
from tests.store.server import RedisServer
from tests.store.store_checks import charged

LIMITS = (UserLimit("user-60s", 10, 60),)


@pytest.mark.parametrize(
    ("in_flight", "connections"), [(1, CONNECTIONS), (2, CONNECTIONS), (3, 6), (64, 128)]
)
def test_a_probe_finds_a_connection_beside_each_call(in_flight: int, connections: int) -> None:
    assert max_connections(StoreSettings(redis_in_flight=in_flight)) == connections


async def crowd(url: str, prefix: str) -> None:
    settings = StoreSettings(
        redis_url=SecretStr(url),
        redis_prefix=prefix,
        redis_deadline_s=5.0,
        redis_connect_s=5.0,
        redis_in_flight=8,
    ).model_copy(update={"redis_batch_keys": 2})
    window = RedisUserLimitStore(settings)
    heard: list[StoreErrorKind | None] = []
    window.listen(heard.append)
    greeting, *answers = await asyncio.gather(
        window.probe(),
        *(charged(window, StoreCharge("user", LIMITS, f"{user:016x}", 1)) for user in range(100)),
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
