"""Waiters of a shared call keep their own time limits, and do not wait again after a failed wait."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from weakref import ref

import anyio
import anyio.lowlevel
import httpx
import pytest

from autoglm_throttle.resilience.calls import GuardedAttempt
from autoglm_throttle.resilience.fallback import Fallback
from autoglm_throttle.resilience.feature_executor import FeatureExecutor
from autoglm_throttle.resilience.http.body import GuardedBody
from autoglm_throttle.resilience.http.cache import UNSHARED_S, CacheRequest
from autoglm_throttle.resilience.http.call import HttpCall
from autoglm_throttle.resilience.httpx import AsyncGuardTransport
from autoglm_throttle.settings.groups.breaker import BreakerSettings
from autoglm_throttle.types import Outcome
from tests.loops import run
from tests.resilience.httpx.guarded_calls import FACES, URL, Guarded, Parts, call
from tests.resilience.httpx.test_transport_sharing import sized

ALWAYS = Fallback(stale=True, coalesce="always")
SHORT_S = 0.01
LONG_S = 60.0


def made_call(guarded: Guarded, request: httpx.Request) -> HttpCall:
    """Return the call that a transport makes of a request."""
    circuit = guarded.guard("dep").circuit
    executor = circuit.executor
    assert isinstance(executor, FeatureExecutor)
    assert executor.responses is not None
    made = HttpCall(circuit, request, lambda _: None, GuardedBody)
    made.use_cache(executor.responses, None, None)
    return made


class Dependency:
    """Hangs at its first call until that is given up, by the limit of its request, and answers the others."""

    def __init__(self, calls: list[int]) -> None:
        self.calls = calls
        self.go = anyio.Event()

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        self.calls.append(len(self.calls))
        if len(self.calls) > 1:
            await anyio.lowlevel.checkpoint()
            return sized()()
        with anyio.move_on_after(request.extensions["timeout"]["read"]):
            await self.go.wait()
            return sized(b"late")()
        raise httpx.ReadTimeout("no answer", request=request)


async def one(
    client: httpx.AsyncClient,
    answers: list[str],
    timeout_s: float | None,
    dependency: Dependency | None = None,
) -> None:
    try:
        answers.append((await client.get(URL, timeout=timeout_s)).text)
    except httpx.ReadTimeout:
        answers.append("timeout")
    if dependency is not None:
        dependency.go.set()


def test_impatient_caller_does_not_wait_for_patient_one(backend: str) -> None:
    """The first waits for ever; the second gives up waiting, and makes a call of its own."""
    answers: list[str] = []
    calls: list[int] = []

    async def task() -> None:
        dependency = Dependency(calls)
        transport = AsyncGuardTransport(Guarded(fallback=ALWAYS), httpx.MockTransport(dependency), name="dep")
        async with httpx.AsyncClient(transport=transport) as client, anyio.create_task_group() as tasks:
            tasks.start_soon(one, client, answers, None)
            await anyio.wait_all_tasks_blocked()
            with anyio.fail_after(LONG_S):
                await one(client, answers, SHORT_S, dependency)

    run(backend, task)
    assert answers == ["live", "late"]
    assert len(calls) == 2


def test_the_guards_own_limit_is_one_to_waiting(backend: str) -> None:
    """It stops the first one, whose time-out is that of all: it would be for each of them."""
    guarded = Guarded(BreakerSettings(timeout_s=SHORT_S), ALWAYS)
    answers: list[str] = []
    calls: list[int] = []

    async def task() -> None:
        dependency = Dependency(calls)
        transport = AsyncGuardTransport(guarded, httpx.MockTransport(dependency), name="dep")
        async with httpx.AsyncClient(transport=transport) as client, anyio.create_task_group() as tasks:
            tasks.start_soon(one, client, answers, None)
            await anyio.wait_all_tasks_blocked()
            assert made_call(guarded, httpx.Request("GET", URL)).limits == (SHORT_S,) * 4

    run(backend, task)
    assert answers == ["timeout"]


def test_patient_caller_keeps_its_own_timeout(backend: str) -> None:
    answers: list[str] = []
    calls: list[int] = []
    guarded = Guarded(fallback=ALWAYS)

    async def task() -> None:
        dependency = Dependency(calls)
        transport = AsyncGuardTransport(guarded, httpx.MockTransport(dependency), name="dep")
        async with httpx.AsyncClient(transport=transport) as client, anyio.create_task_group() as tasks:
            tasks.start_soon(one, client, answers, SHORT_S)
            await anyio.wait_all_tasks_blocked()
            for _ in range(3):
                tasks.start_soon(one, client, answers, LONG_S)

    run(backend, task)
    assert sorted(answers) == ["live"] * 3 + ["timeout"]
    assert len(calls) == 2
    assert guarded.outcomes == [Outcome.FAILURE, Outcome.SUCCESS]


@pytest.mark.parametrize(
    ("guard_s", "own", "limits"),
    [
        (None, {}, (inf, inf, inf, inf)),
        (None, {"read": None}, (inf, inf, inf, inf)),
        (None, {"connect": 1.0}, (inf, 1.0, inf, inf)),
        (2.0, {"read": 1.0}, (1.0, 2.0, 2.0, 2.0)),
        (2.0, {"read": 3.0, "pool": None}, (2.0, 2.0, 2.0, 2.0)),
    ],
)
@pytest.mark.parametrize("late", [True, False])
def test_timeout_is_shared_with_limits_no_longer(
    guard_s: float | None, own: dict[str, float | None], limits: tuple[float, ...], late: bool
) -> None:
    """A time-out is for callers whose limits are no longer; any other error is for all."""
    guarded = Guarded(BreakerSettings(timeout_s=guard_s), ALWAYS)
    made = made_call(guarded, httpx.Request("GET", URL, extensions={"timeout": own}))
    assert made.limits == limits
    assert made.cache_request is not None
    error = httpx.ReadTimeout("late") if late else httpx.ReadError("broken")
    assert made._result(GuardedAttempt(error=error), None).limits == (limits if late else ())


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize(
    ("answer", "waits"),
    [
        (lambda: httpx.Response(200, stream=Parts(b"of no known length")), True),
        (lambda: httpx.Response(200, stream=Parts(b"of no known length" * 100)), False),
        (lambda: httpx.Response(200, headers={"cache-control": "private"}, content=b"mine"), False),
        (lambda: httpx.Response(404), False),
        (lambda: httpx.Response(503), True),
        (sized(), True),
    ],
)
def test_private_response_stops_sharing_for_a_while(
    face: str, answer: Callable[[], httpx.Response], waits: bool
) -> None:
    guarded = Guarded(BreakerSettings(failures=100), ALWAYS)
    call(face, guarded, lambda _: answer())
    circuit = guarded.guard("dep").circuit
    assert isinstance(circuit.executor, FeatureExecutor)
    responses = circuit.executor.responses
    assert responses is not None
    route = ref(guarded.inner(None)), "vectors.test", "None", "None"
    mine, other = (
        CacheRequest("GET", URL, (), None, route),
        CacheRequest("GET", URL + "?q=2", (), None, route),
    )
    assert responses.is_unshareable(mine) is not waits
    assert not responses.is_unshareable(other)
    guarded.clock.advance(UNSHARED_S)
    assert responses.is_unshareable(mine) is not waits
    guarded.clock.advance(0.25)
    assert not responses.is_unshareable(mine)
