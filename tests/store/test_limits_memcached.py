"""User limits on memcached, over real sockets: the installed one, and one that can hang and die."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from secrets import token_hex

import pytest

from autoglm_throttle.store.limits_window import LimitsWindow
from autoglm_throttle.store.user_limit_store import Answer, StoreErrorKind
from autoglm_throttle.types import UserLimit
from tests.store.memcached_server import MemcachedServer
from tests.store.storages import BEN, PATIENT_S, allowed, ask, charge, listened

MEMCACHED = shutil.which("memcached")


def real_memcached() -> Iterator[str]:
    """The server that is installed here, as a process of its own."""
    assert MEMCACHED is not None
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [MEMCACHED, "-l", "127.0.0.1", "-p", str(port), "-u", "nobody"]
    with subprocess.Popen(command) as process:
        try:
            ends_s = time.monotonic() + PATIENT_S
            while time.monotonic() < ends_s and process.poll() is None:
                try:
                    socket.create_connection(("127.0.0.1", port)).close()
                    break
                except OSError:
                    threading.Event().wait(0.01)
            yield f"async+memcached://127.0.0.1:{port}"
        finally:
            process.kill()


@pytest.fixture(scope="module", params=["small", *(["real"] if MEMCACHED else [])])
def memcached(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URI of a memcached: our small one, and the real one where it is installed."""
    if request.param == "real":
        yield from real_memcached()
        return
    if MEMCACHED is None:
        with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            print("\nno memcached on PATH: only a small one of our own is asked")
    with MemcachedServer() as server:
        yield server.uri


@pytest.fixture
def server() -> Iterator[MemcachedServer]:
    with MemcachedServer() as server:
        yield server


WIDE = (UserLimit("user-86400s", 20, 86_400),)


@pytest.fixture
def shared(memcached: str) -> LimitsWindow:
    return LimitsWindow(memcached, PATIENT_S, prefix=token_hex(4))


async def test_memcached_counts(shared: LimitsWindow) -> None:
    assert shared.approximate
    rows = [(await ask(shared, charge(limits=WIDE)))[0] for _ in range(22)]
    assert [row[0] for row in rows] == [1] * 20 + [0] * 2
    assert [row[1] for row in rows] == [*range(19, -1, -1), 0, 0]
    assert rows[0][3] > 0
    assert 0 < rows[21][2] <= rows[20][2] <= 2 * 86_400_000_000
    assert (await ask(shared, charge(BEN, 20, WIDE)))[0][:2] == (1, 0)


async def test_memcached_concurrency_is_bounded(shared: LimitsWindow) -> None:
    answers = await asyncio.gather(*(ask(shared, charge(limits=WIDE)) for _ in range(60)))
    admitted = sum(rows[0][0] for rows in answers)
    assert 1 <= admitted <= 20  # of those who race, `limits` may refuse more than it must
    assert not await allowed(shared, charge(units=20, limits=WIDE))


async def test_memcached_is_shared_by_processes(memcached: str, shared: LimitsWindow) -> None:
    beside = LimitsWindow(memcached, PATIENT_S, prefix=shared.root.partition(":")[0])
    for n in range(20):
        assert await allowed((shared, beside)[n % 2], charge(limits=WIDE))
    assert not await allowed(shared, charge(limits=WIDE))
    assert not await allowed(beside, charge(limits=WIDE))


def test_connections_to_memcached_end_with_their_loop(server: MemcachedServer) -> None:
    window = LimitsWindow(server.uri, PATIENT_S)
    for n in range(3):
        asyncio.run(ask(window, charge(limits=WIDE)))
        assert server.wait_until_left()
        assert server.opened == n + 1


async def lost(window: LimitsWindow) -> list[StoreErrorKind]:
    """The error while the server is unavailable."""
    answers: list[Answer | StoreErrorKind] = [await window.charge([charge(limits=WIDE)]) for _ in range(3)]
    return [answer for answer in answers if isinstance(answer, StoreErrorKind)]


@pytest.mark.parametrize("away", [MemcachedServer.kill, MemcachedServer.hang])
async def test_memcached_loss_and_recovery_are_detected(
    server: MemcachedServer, away: Callable[[MemcachedServer], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autoglm_throttle.store.limits_window.CONNECT_S", 0.1)
    window = LimitsWindow(server.uri, PATIENT_S)
    heard = listened(window)
    assert await allowed(window, charge(limits=WIDE))
    window.deadline_s = 0.02
    away(server)
    said = await lost(window)
    assert set(said) <= {StoreErrorKind.TIMEOUT, StoreErrorKind.LOST, StoreErrorKind.UNREACHABLE}
    assert (len(said), len(heard)) == (3, 4)
    window.disconnect()
    assert await window.probe() is not None
    restarted = away is MemcachedServer.kill
    if restarted:
        server.start()
    else:
        server.resume()
    monkeypatch.setattr("autoglm_throttle.store.limits_window.CONNECT_S", PATIENT_S)
    window.deadline_s = PATIENT_S
    assert await window.probe() is None
    left = (await ask(window, charge(limits=WIDE)))[0][1]
    assert left == 19 if restarted else left < 19
