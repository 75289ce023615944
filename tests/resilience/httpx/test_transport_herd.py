"""FIELD 7: calls that reach an origin when a thousand callers want one thing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable

import anyio
import httpx
import pytest
import trio
import trio.testing

from autoglm_throttle import BreakerSettings, Fallback
from autoglm_throttle.resilience.httpx import AsyncGuardTransport
from autoglm_throttle.testing import ManualThrottle, throttle_for_tests
from tests.resilience.httpx.guarded_calls import URL, Parts

WAITERS = 1000
ALWAYS = Fallback(stale=True, coalesce="always")


def in_virtual_time(task: Callable[[], Awaitable[None]]) -> None:
    """Run a task in a loop of trio whose clock jumps when all tasks wait."""
    trio.run(task, clock=trio.testing.MockClock(autojump_threshold=0))


def throttle_with(timeout_s: float | None = None) -> ManualThrottle:
    throttle = throttle_for_tests()
    breaker = BreakerSettings(failures=10_000, timeout_s=timeout_s)
    throttle.feature("dep", fallback=ALWAYS, breaker=breaker)
    return throttle


async def valued() -> str:
    await anyio.sleep(1.0)
    return "value"


async def failing() -> str:
    await anyio.sleep(1.0)
    raise OSError("down")


async def hanging() -> str:
    await anyio.sleep_forever()
    raise AssertionError


@pytest.mark.parametrize(
    ("answer", "timeout_s", "result"),
    [
        (valued, None, "value"),
        (failing, None, "OSError"),
        (hanging, 2.0, "GuardTimeoutError"),
        (valued, 2.0, "value"),
    ],
)
def test_one_call_of_a_function_serves_all(
    answer: Callable[[], Awaitable[str]], timeout_s: float | None, result: str
) -> None:
    throttle = throttle_with(timeout_s)
    made = 0
    results: Counter[str] = Counter()

    @throttle.guard("dep")
    async def guarded() -> str:
        nonlocal made
        made += 1
        return await answer()

    async def want() -> None:
        try:
            results[await guarded()] += 1
        except (OSError, TimeoutError) as error:
            results[type(error).__name__] += 1

    async def task() -> None:
        async with anyio.create_task_group() as group:
            for _ in range(WAITERS):
                group.start_soon(want)

    in_virtual_time(task)
    assert (made, results) == (1, {result: WAITERS})


class Origin:
    """Answers after a second, or never."""

    def __init__(self, response: Callable[[], httpx.Response] | None) -> None:
        self.calls = 0
        self.response = response

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        self.calls += 1
        if self.response is None:
            with anyio.move_on_after(request.extensions["timeout"]["read"]):
                await anyio.sleep_forever()
            raise httpx.ReadTimeout("no answer", request=request)
        await anyio.sleep(1.0)
        return self.response()


async def result_of(client: httpx.AsyncClient, timeout_s: float | None) -> str:
    try:
        response = await client.get(URL, timeout=timeout_s)
    except httpx.HTTPError as error:
        return type(error).__name__
    return f"{response.status_code} {response.text}"


@pytest.mark.parametrize(
    ("response", "limits", "result"),
    [
        (lambda: httpx.Response(200, text="value"), (None, 5.0), "200 value"),
        (lambda: httpx.Response(200, stream=Parts(b"val", b"ue")), (None, 5.0), "200 value"),
        (lambda: httpx.Response(500, text="down"), (None, 5.0), "500 down"),
        (lambda: httpx.Response(520, stream=Parts(b"do", b"wn")), (None, 5.0), "520 down"),
        (None, (2.0, 5.0), "ReadTimeout"),
        (None, (None, 5.0), "ReadTimeout"),
    ],
)
def test_one_request_serves_all(
    response: Callable[[], httpx.Response] | None, limits: tuple[float | None, float], result: str
) -> None:
    origin, (guard_s, own_s) = Origin(response), limits
    results: Counter[str] = Counter()

    async def task() -> None:
        transport = AsyncGuardTransport(throttle_with(guard_s), httpx.MockTransport(origin), name="dep")
        async with httpx.AsyncClient(transport=transport) as client:

            async def want() -> None:
                results[await result_of(client, own_s)] += 1

            async with anyio.create_task_group() as group:
                for _ in range(WAITERS):
                    group.start_soon(want)

    in_virtual_time(task)
    assert (origin.calls, results) == (1, {result: WAITERS})


@pytest.mark.parametrize(("guard_s", "own_s"), [(0.5, 5.0), (None, 0.5), (1.0, 0.5)])
@pytest.mark.parametrize("patient", [False, True], ids=["equal limits", "the first waits for ever"])
def test_a_stream_of_callers_at_a_hanging_origin(guard_s: float | None, own_s: float, patient: bool) -> None:
    """200 callers/s for 3 s: at most eight calls in all."""
    origin = Origin(None)
    results: Counter[str] = Counter()

    async def task() -> None:
        transport = AsyncGuardTransport(throttle_with(guard_s), httpx.MockTransport(origin), name="dep")
        async with httpx.AsyncClient(transport=transport) as client:

            async def want() -> None:
                results[await result_of(client, own_s)] += 1

            async with anyio.create_task_group() as group:
                if patient:
                    group.start_soon(result_of, client, None)
                for _ in range(600):
                    group.start_soon(want)
                    await anyio.sleep(1 / 200)
                await anyio.sleep(10.0)
                group.cancel_scope.cancel()

    in_virtual_time(task)
    assert origin.calls <= 8
    assert results == {"ReadTimeout": 600}
