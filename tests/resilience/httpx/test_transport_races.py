"""Many callers at once, and callers that are cancelled."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import anyio
import httpx
import pytest

from autoglm_throttle.resilience.httpx import AsyncGuardTransport, GuardTransport, TransportRejected
from autoglm_throttle.settings.groups.breaker import BreakerSettings
from autoglm_throttle.types import BreakerState, Outcome
from tests.loops import run
from tests.resilience.httpx.breaking_server import breaking_server
from tests.resilience.httpx.guarded_calls import URL, Guarded, Parts, call, ok, status

WAIT_S = 60.0


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with breaking_server() as url:
        yield url


@pytest.mark.parametrize("path", ["/silent", "/stalled"])
def test_cancelled_caller_is_neutral(backend: str, path: str, server: str) -> None:
    guarded = Guarded(BreakerSettings(failures=1))

    async def cancelled() -> None:
        async with httpx.AsyncClient(
            transport=AsyncGuardTransport(guarded, httpx.AsyncHTTPTransport(verify=False), name="dep")
        ) as client:
            for _ in range(3):
                with anyio.move_on_after(0.02) as scope:
                    await client.get(server + path)
                assert scope.cancelled_caught

    run(backend, cancelled)
    assert guarded.outcomes == [Outcome.NEUTRAL] * 3


def test_cancelled_probe_frees_its_slot(backend: str) -> None:
    guarded = Guarded(BreakerSettings(failures=1))
    call("sync", guarded, status(500))
    guarded.clock.advance(10.0)

    async def trying() -> None:
        async def hanging(_: httpx.Request) -> httpx.Response:
            await anyio.sleep_forever()
            raise AssertionError

        transport = AsyncGuardTransport(guarded, httpx.MockTransport(hanging), name="dep")
        async with httpx.AsyncClient(transport=transport) as client:
            with anyio.move_on_after(0.0):
                await client.get(URL)

    run(backend, trying)
    assert guarded.view().state is BreakerState.HALF_OPEN
    assert call("sync", guarded, ok).content == b"fine"
    assert guarded.view().state is BreakerState.CLOSED


def test_many_threads_make_one_probe() -> None:
    count = 32
    guarded = Guarded(BreakerSettings(failures=1))
    call("sync", guarded, status(500))
    guarded.clock.advance(10.0)
    rejected = threading.Semaphore(0)
    requested: list[httpx.Request] = []

    def trial(request: httpx.Request) -> httpx.Response:
        requested.append(request)
        for _ in range(count - 1):
            assert rejected.acquire(timeout=WAIT_S)
        return httpx.Response(200, stream=Parts(b"fine"))

    def calling(_: int) -> str:
        try:
            return client.get(URL).text
        except TransportRejected:
            rejected.release()
            return "refused"

    transport = GuardTransport(guarded, httpx.MockTransport(trial), name="dep")
    with httpx.Client(transport=transport) as client, ThreadPoolExecutor(count) as pool:
        answers = sorted(pool.map(calling, range(count)))
    assert answers == ["fine"] + ["refused"] * (count - 1)
    assert len(requested) == 1
    assert guarded.view().state is BreakerState.CLOSED


def test_many_tasks_make_one_probe(backend: str) -> None:
    count = 200
    guarded = Guarded(BreakerSettings(failures=1))
    call("sync", guarded, status(500))
    guarded.clock.advance(10.0)
    answers: list[str] = []
    requested: list[httpx.Request] = []

    async def herd() -> None:
        done = anyio.Event()

        async def trial(request: httpx.Request) -> httpx.Response:
            requested.append(request)
            await done.wait()
            return httpx.Response(200, stream=Parts(b"fine"))

        async def calling() -> None:
            try:
                answers.append((await client.get(URL)).text)
            except TransportRejected:
                answers.append("refused")
            if len(answers) == count - 1:
                done.set()

        transport = AsyncGuardTransport(guarded, httpx.MockTransport(trial), name="dep")
        async with httpx.AsyncClient(transport=transport) as client, anyio.create_task_group() as tasks:
            for _ in range(count):
                tasks.start_soon(calling)

    run(backend, herd)
    assert sorted(answers) == ["fine"] + ["refused"] * (count - 1)
    assert len(requested) == 1
