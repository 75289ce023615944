"""The script on fakeredis, and on each server of this machine."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import fakeredis
import pytest
import redis

from tests.contract.script_store import ScriptStore
from tests.store.server import RedisServer


@pytest.fixture(scope="session")
def fake_store() -> ScriptStore:
    return ScriptStore(fakeredis.FakeRedis(), "fake")


@pytest.fixture(scope="session")
def store(redis_server: RedisServer) -> Iterator[ScriptStore]:
    with redis.Redis.from_url(redis_server.url) as client:
        yield ScriptStore(client, f"t{secrets.token_hex(4)}")
