"""One client for each loop, closed with it; no connection outlives its owner or a fork."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from typing import Any

import fakeredis
import pytest
from pydantic import SecretStr

from autoglm_throttle.settings.groups.store import StoreSettings
from autoglm_throttle.store.client import CONNECTIONS, RedisClients
from tests.store.cluster import Cluster3
from tests.store.descriptors import open_files
from tests.store.polling import until
from tests.store.sentinel import SentinelPair
from tests.store.server import RedisServer


class Client:
    """Notes that it was closed, and where."""

    def __init__(self) -> None:
        self.closed_in: list[asyncio.AbstractEventLoop] = []
        self.closed = asyncio.Event()

    async def aclose(self) -> None:
        self.closed.set()
        self.closed_in.append(asyncio.get_running_loop())


@pytest.fixture
def made() -> list[Client]:
    return []


@pytest.fixture
def clients(made: list[Client]) -> RedisClients:
    def connect() -> Client:
        made.append(Client())
        return made[-1]

    return RedisClients(StoreSettings(), connect)


async def current(clients: RedisClients) -> Any:
    return clients.current()


def test_a_loop_has_one_client_which_ends_with_it(clients: RedisClients, made: list[Client]) -> None:
    async def use() -> asyncio.AbstractEventLoop:
        assert clients.current() is clients.current() is made[-1]
        return asyncio.get_running_loop()

    loops = [asyncio.run(use()) for _ in range(2)]
    assert [client.closed_in for client in made] == [[loop] for loop in loops]
    assert len(clients) == 0
    assert clients.made == 2


def test_outside_a_loop_there_is_none(clients: RedisClients) -> None:
    with pytest.raises(RuntimeError, match="no running event loop"):
        clients.current()


def test_loops_in_threads_have_clients_of_their_own(clients: RedisClients, made: list[Client]) -> None:
    async def main() -> None:
        mine = clients.current()
        other = await asyncio.to_thread(lambda: asyncio.run(current(clients)))
        assert other is not mine
        assert other.closed_in
        assert not mine.closed_in
        assert clients.current() is mine

    asyncio.run(main())
    assert len(made) == 2


def test_a_loop_closed_by_hand_is_dropped_when_another_comes(clients: RedisClients) -> None:
    loop = asyncio.new_event_loop()
    loop.run_until_complete(current(clients))
    loop.close()
    assert len(clients) == 1
    asyncio.run(current(clients))
    assert len(clients) == 0


def test_drop_closes_each_in_its_own_loop_and_waits_for_none(
    clients: RedisClients, made: list[Client]
) -> None:
    async def main() -> None:
        first = clients.current()
        thread = threading.Thread(target=clients.close_current)
        thread.start()
        await asyncio.to_thread(thread.join)
        await first.closed.wait()
        assert first.closed_in == [asyncio.get_running_loop()]
        second = clients.current()
        assert second is not first
        clients.close_current()
        clients.close_current()
        assert not second.closed_in, "it returns at once"
        await second.closed.wait()

    asyncio.run(main())
    assert [len(client.closed_in) for client in made] == [1, 1]


def test_a_new_client_survives_the_late_end_of_the_old_one(clients: RedisClients) -> None:
    async def main() -> None:
        clients.current()
        clients.close_current()
        second = clients.current()
        for _ in range(5):
            await asyncio.sleep(0)
        assert clients.current() is second
        assert not second.closed_in

    asyncio.run(main())


def test_drop_of_a_loop_that_is_closed_already(clients: RedisClients) -> None:
    loop = asyncio.new_event_loop()
    loop.run_until_complete(current(clients))
    loop.close()
    clients.close_current()
    assert len(clients) == 0


def test_unclosable_client_is_ignored(clients: RedisClients, made: list[Client]) -> None:
    async def broken() -> None:
        raise ConnectionError

    async def main() -> None:
        clients.current().aclose = broken

    asyncio.run(main())
    assert len(clients) == 0


def test_the_text_says_where_but_no_password() -> None:
    clients = RedisClients(StoreSettings(redis_url=SecretStr("redis://u:s3cret@cache/1")))
    assert "('cache', 6379)" in str(clients.url)
    assert "s3cret" not in str(clients.url)


def test_clients_without_a_url_are_rejected() -> None:
    with pytest.raises(ValueError, match="no URL"):
        RedisClients(StoreSettings())


def test_no_synchronous_client_without_a_url(clients: RedisClients) -> None:
    with pytest.raises(ValueError, match="no URL"):
        clients.sync(1.0)


def test_without_redis_it_is_said_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis.asyncio", None)
    with pytest.raises(ImportError, match=r"pip install 'redis\[hiredis\]>=6"):
        RedisClients(StoreSettings(redis_url=SecretStr("redis://cache")))


def test_nothing_is_imported_before_it_is_needed() -> None:
    script = (
        "import sys, autoglm_throttle, autoglm_throttle.store.client, "
        "autoglm_throttle.store.redis_user_limits\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'redis', 'hiredis'}))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.server
class TestOnServers:
    """Clients of redis-py on real servers."""

    @pytest.mark.slow
    def test_a_loop_for_each_request_leaves_no_descriptor(self, own_server: RedisServer) -> None:
        clients = RedisClients(StoreSettings(redis_url=SecretStr(own_server.url), redis_connect_s=60.0))

        async def request() -> None:
            assert await clients.current().ping()

        asyncio.run(request())
        gc.collect()
        before = open_files()
        for _ in range(300):
            asyncio.run(request())
        assert open_files() <= before  # fewer: a thread of an earlier test has ended meanwhile
        assert clients.made == 301
        gc.collect()
        assert int(own_server.info("clients")["connected_clients"]) <= 2

    def test_dropped_connections_are_gone_from_the_server(self, own_server: RedisServer) -> None:
        clients = RedisClients(StoreSettings(redis_url=SecretStr(own_server.url), redis_connect_s=60.0))

        async def main() -> None:
            await asyncio.gather(*(clients.current().ping() for _ in range(3)))
            assert int(own_server.info("clients")["connected_clients"]) > 1
            clients.close_current()
            await asyncio.sleep(0.0)
            await asyncio.to_thread(
                until,
                lambda: own_server.info("clients")["connected_clients"] == "1",
                60.0,
                "connections that are gone",
            )

        asyncio.run(main())

    def test_connections_are_few_and_nothing_is_tried_again(self, own_server: RedisServer) -> None:
        from redis.exceptions import ConnectionError as RedisConnectionError

        clients = RedisClients(StoreSettings(redis_url=SecretStr(own_server.url), redis_connect_s=60.0))

        async def main() -> None:
            pool = clients.current().connection_pool
            held = [await pool.get_connection() for _ in range(CONNECTIONS)]
            assert held[0].retry.get_retries() == 0
            assert held[0].socket_timeout is None, (
                "a blocked loop is no slow server: the batch ends its calls"
            )
            with pytest.raises(RedisConnectionError, match="Too many"):
                await pool.get_connection()
            for connection in held:
                await pool.release(connection)

        asyncio.run(main())

    @pytest.mark.parametrize("where", ["url", "unix_url"])
    def test_a_synchronous_client(self, own_server: RedisServer, where: str) -> None:
        client = RedisClients(StoreSettings(redis_url=SecretStr(getattr(own_server, where)))).sync(2.0)
        assert client.set("a", 1)
        assert own_server.command("GET", "a") == "1"
        assert client.connection_pool.connection_kwargs["socket_timeout"] == 2.0
        assert client.connection_pool.connection_kwargs["retry"].get_retries() == 0
        client.close()

    async def test_a_cluster(self, redis_cluster: Cluster3, redis_prefix: str) -> None:
        clients = RedisClients(StoreSettings(redis_url=SecretStr(redis_cluster.url), redis_connect_s=60.0))
        assert clients.cluster
        assert await clients.current().set(redis_prefix, 1)
        client = clients.sync(2.0)
        assert client.get(redis_prefix) == b"1"
        client.close()

    async def test_a_sentinel(self, redis_sentinel: SentinelPair, redis_prefix: str) -> None:
        clients = RedisClients(StoreSettings(redis_url=SecretStr(redis_sentinel.url), redis_connect_s=60.0))
        assert await clients.current().set(redis_prefix, 1)
        client = clients.sync(2.0)
        assert client.get(redis_prefix) == b"1"
        client.close()

    def test_a_sentinels_connections_end_with_the_loop(self, redis_sentinel: SentinelPair) -> None:
        clients = RedisClients(StoreSettings(redis_url=SecretStr(redis_sentinel.url), redis_connect_s=60.0))

        async def main() -> None:
            assert await clients.current().ping()

        asyncio.run(main())
        before = open_files()
        for _ in range(3):
            asyncio.run(main())
        assert open_files() == before

    def test_fakeredis_may_stand_in(self) -> None:
        server = fakeredis.FakeServer()
        clients = RedisClients(StoreSettings(), lambda: fakeredis.FakeAsyncRedis(server=server))

        async def main() -> Any:
            await clients.current().set("a", 1)
            return await clients.current().get("a")

        assert asyncio.run(main()) == b"1"
        assert not clients.cluster


def test_unverified_certificate_has_no_host_check() -> None:
    clients = RedisClients(StoreSettings(redis_url=SecretStr("rediss://cache?ssl_cert_reqs=none")))

    async def main() -> dict[str, Any]:
        kwargs: dict[str, Any] = clients.current().connection_pool.connection_kwargs
        return kwargs

    kwargs = asyncio.run(main())
    assert (kwargs["ssl_cert_reqs"], kwargs["ssl_check_hostname"]) == ("none", False)
