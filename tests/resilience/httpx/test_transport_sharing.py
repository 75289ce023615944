"""Requests for the same thing wait for one call of it, where the user or the load wants that."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import anyio
import httpx
import pytest

from autoglm_throttle.resilience.fallback import Fallback
from autoglm_throttle.resilience.feature_executor import FeatureExecutor
from autoglm_throttle.resilience.http.answer import HttpAnswer
from autoglm_throttle.resilience.httpx import AsyncGuardTransport, GuardTransport, TransportRejected
from autoglm_throttle.settings.groups.breaker import BreakerSettings
from autoglm_throttle.types import BreakerCause, BreakerState, FallbackKind, GuardRejection, Outcome
from tests.loops import run
from tests.resilience.httpx.guarded_calls import FACES, URL, Guarded, Parts, call, status

faces = pytest.mark.parametrize("face", FACES)

ALWAYS = Fallback(stale=True, coalesce="always")
REJECTION = GuardRejection("behind", BreakerState.OPEN, BreakerCause.FAILURES, 3.0)
WAIT_S = 60.0
MANY = 5


class Upstream:
    """Answers each request when it is told to, with the same answer."""

    def __init__(self, make: Callable[[], httpx.Response]) -> None:
        self.make = make
        self.requested: list[httpx.Request] = []
        self.go = anyio.Event()

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requested.append(request)
        await self.go.wait()
        return self.make()


def sized(body: bytes = b"live", **headers: str) -> Callable[[], httpx.Response]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda: httpx.Response(
        200, headers={"content-length": str(len(body)), **named}, stream=Parts(body[:2], body[2:])
    )


async def together(guarded: Guarded, upstream: Upstream, headers: list[dict[str, str]]) -> list[str]:
    """Return the results of concurrent requests: text, or the name of the exception."""
    transport = AsyncGuardTransport(guarded, guarded.inner(upstream), name="dep")
    answers = [""] * len(headers)
    async with httpx.AsyncClient(transport=transport) as client:

        async def request(number: int) -> None:
            try:
                response = await client.get(URL, headers=headers[number])
                answers[number] = response.text + response.headers.get("x-degraded", "")
            except httpx.HTTPError as error:
                answers[number] = type(error).__name__

        async with anyio.create_task_group() as tasks:
            for number in range(len(headers)):
                tasks.start_soon(request, number)
            await anyio.wait_all_tasks_blocked()
            upstream.go.set()
    return answers


def in_threads(
    guarded: Guarded, make: Callable[[], httpx.Response], headers: list[dict[str, str]]
) -> tuple[list[str], int]:
    """Return the results of threads; the calls end when all threads wait."""
    requested: list[httpx.Request] = []
    done: list[str] = []
    go = threading.Event()

    def upstream(request: httpx.Request) -> httpx.Response:
        requested.append(request)
        assert go.wait(WAIT_S)
        return make()

    def request(own: dict[str, str]) -> None:
        try:
            response = client.get(URL, headers=own)
            done.append(response.text + response.headers.get("x-degraded", ""))
        except httpx.HTTPError as error:
            done.append(type(error).__name__)

    transport = GuardTransport(guarded, guarded.inner(upstream), name="dep")
    with httpx.Client(transport=transport) as client, ThreadPoolExecutor(len(headers)) as pool:
        tasks = [pool.submit(request, own) for own in headers]
        pause = threading.Event()
        for _ in range(int(WAIT_S / 0.001)):
            if len(requested) + waiting(guarded) + len(done) == len(headers):
                break
            pause.wait(0.001)
        go.set()
        for each in tasks:
            each.result(WAIT_S)
    return done, len(requested)


def waiting(guarded: Guarded) -> int:
    """How many threads wait for the call of another."""
    circuit = guarded.circuits.get("dep")
    served = None if circuit is None else circuit.executor
    if not isinstance(served, FeatureExecutor):
        return 0
    return served.single_flight.waiting


def gathered(
    face: str,
    guarded: Guarded,
    make: Callable[[], httpx.Response],
    headers: list[dict[str, str]] | None = None,
) -> tuple[list[str], int]:
    """The answers, and how many calls were made for them."""
    wanted = headers or [{}] * MANY
    if face == "sync":
        return in_threads(guarded, make, wanted)
    found: list[list[str]] = []
    made: list[int] = []

    async def task() -> None:
        upstream = Upstream(make)
        found.append(await together(guarded, upstream, wanted))
        made.append(len(upstream.requested))

    run(face, task)
    return found[0], made[0]


@faces
def test_one_call_serves_all(face: str) -> None:
    guarded = Guarded(fallback=ALWAYS)
    assert gathered(face, guarded, sized()) == (["live"] * MANY, 1)
    assert guarded.outcomes == [Outcome.SUCCESS]
    assert guarded.counted == []


@faces
def test_by_default_each_makes_its_own(face: str) -> None:
    assert gathered(face, Guarded(fallback=Fallback(stale=True)), sized()) == (["live"] * MANY, MANY)


@faces
def test_under_load_they_share(face: str) -> None:
    guarded = Guarded(fallback=Fallback(stale=True))
    guarded.loaded(0.92)
    call("sync", guarded, status(404), url=URL + "/other")
    assert gathered(face, guarded, sized()) == (["live"] * MANY, 1)


@pytest.mark.parametrize(
    "make",
    [
        sized(cache_control="no-store"),
        sized(cache_control="private"),
        sized(vary="*"),
        sized(b"x" * 1001),
        sized(set_cookie="session=1"),
        lambda: httpx.Response(200, stream=Parts(*[b"of no known length"] * 100)),
        lambda: httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=Parts(b"data: 1")),
        lambda: httpx.Response(404, headers={"content-length": "4"}, stream=Parts(b"none")),
    ],
)
@faces
def test_an_answer_for_one_is_not_shared(face: str, make: Callable[[], httpx.Response]) -> None:
    answers, made = gathered(face, Guarded(fallback=ALWAYS), make)
    assert made == MANY
    assert len(set(answers)) == 1


@faces
def test_an_answer_that_varies_is_shared_with_those_it_fits(face: str) -> None:
    """Whichever comes first: one call for those like it, and one each for the others."""
    headers = [{"accept": "a"}, {"accept": "a"}, {"accept": "b"}, {"accept": "b"}]
    assert gathered(face, Guarded(fallback=ALWAYS), sized(vary="accept"), headers) == (["live"] * 4, 3)


@faces
def test_requests_with_credentials_are_not_shared(face: str) -> None:
    names = ("authorization", "cookie", "x-api-key")
    headers: list[dict[str, str]] = [{}, *({name: "ann"} for name in names)]
    assert gathered(face, Guarded(fallback=ALWAYS), sized(), headers) == (["live"] * 4, 4)


@faces
def test_body_sent_with_headers_is_shared(face: str) -> None:
    guarded = Guarded(fallback=ALWAYS)
    assert gathered(face, guarded, lambda: httpx.Response(200, content=b"live")) == (["live"] * MANY, 1)


def failing_body() -> httpx.Response:
    return httpx.Response(200, headers={"content-length": "9"}, stream=Parts(b"live", httpx.ReadError("cut")))


@faces
def test_one_failure_is_the_failure_of_all(face: str) -> None:
    guarded = Guarded(fallback=ALWAYS)
    assert gathered(face, guarded, failing_body) == (["ReadError"] * MANY, 1)
    assert guarded.outcomes == [Outcome.FAILURE]


@faces
def test_body_broken_before_delivery_has_a_fallback(face: str) -> None:
    guarded = Guarded(fallback=Fallback(stale=True, static=HttpAnswer(body=b"so "), coalesce="always"))
    assert gathered(face, guarded, failing_body) == (["so static; cause=error"] * MANY, 1)


@faces
def test_a_failing_status_sends_all_to_the_fallback(face: str) -> None:
    guarded = Guarded(fallback=Fallback(stale=True, static=HttpAnswer(body=b"so "), coalesce="always"))
    busy = lambda: httpx.Response(503, stream=Parts(b"busy"))  # noqa: E731
    assert gathered(face, guarded, busy) == (["so static; cause=error"] * MANY, 1)
    assert guarded.outcomes == [Outcome.FAILURE]


@pytest.mark.parametrize(
    ("headers", "text"),
    [({}, "busy"), ({"cache-control": "no-store", "retry-after": "7"}, ""), ({"set-cookie": "a=b"}, "")],
)
@faces
def test_failing_status_is_shared(face: str, headers: dict[str, str], text: str) -> None:
    """FIELD 7: each waiter called the failing origin again. A private body is for the first alone."""
    busy = lambda: httpx.Response(503, headers=headers, stream=Parts(b"bu", b"sy"))  # noqa: E731
    guarded = Guarded(BreakerSettings(failures=100), ALWAYS)
    answers, made = gathered(face, guarded, busy)
    assert made == 1
    assert sorted(answers) == [text] * (MANY - 1) + ["busy"]


@faces
def test_body_of_unknown_length_is_shared(face: str) -> None:
    """FIELD 7: only a body with a Content-Length was shared."""
    unknown = lambda: httpx.Response(200, stream=Parts(b"un", b"known"))  # noqa: E731
    assert gathered(face, Guarded(fallback=ALWAYS), unknown) == (["unknown"] * MANY, 1)


@faces
def test_caller_with_cached_response_does_not_wait(face: str) -> None:
    guarded = Guarded(fallback=ALWAYS)
    kept = httpx.Response(200, text="kept ")
    call("sync", guarded, lambda _: kept)
    answers, made = gathered(face, guarded, sized())
    assert sorted(answers) == ["kept stale; cause=refresh"] * (MANY - 1) + ["live"]
    assert made == 1
    assert guarded.counted == [("dep", FallbackKind.STALE, "refresh")] * (MANY - 1)


@faces
def test_rejection_by_an_inner_guard_is_shared(face: str) -> None:
    guarded = Guarded(fallback=ALWAYS)

    def rejecting() -> httpx.Response:
        raise TransportRejected(REJECTION, httpx.Request("GET", "http://behind.test/"))

    assert gathered(face, guarded, rejecting) == (["TransportRejected"] * MANY, 1)
    assert guarded.outcomes == [Outcome.NEUTRAL]


def test_cancelled_leader_is_replaced(backend: str) -> None:
    guarded = Guarded(fallback=ALWAYS)
    upstream = Upstream(sized())
    answers: list[str] = []

    async def task() -> None:
        transport = AsyncGuardTransport(guarded, guarded.inner(upstream), name="dep")
        async with httpx.AsyncClient(transport=transport) as client:

            async def request() -> None:
                answers.append((await client.get(URL)).text)

            async with anyio.create_task_group() as outer:
                async with anyio.create_task_group() as leading:
                    leading.start_soon(request)
                    await anyio.wait_all_tasks_blocked()
                    for _ in range(2):
                        outer.start_soon(request)
                    await anyio.wait_all_tasks_blocked()
                    leading.cancel_scope.cancel()
                upstream.go.set()

    run(backend, task)
    assert answers == ["live"] * 2
    assert len(upstream.requested) == 2
    assert guarded.outcomes == [Outcome.NEUTRAL, Outcome.SUCCESS]


def test_an_age_is_that_of_the_call_that_was_made(backend: str) -> None:
    guarded = Guarded(fallback=ALWAYS)
    ages: list[str] = []

    def late() -> httpx.Response:
        guarded.clock.advance(3.0)
        return sized(age="7")()

    async def task() -> None:
        upstream = Upstream(late)
        transport = AsyncGuardTransport(guarded, guarded.inner(upstream), name="dep")
        async with httpx.AsyncClient(transport=transport) as client:

            async def request() -> None:
                ages.append((await client.get(URL)).headers["age"])

            async with anyio.create_task_group() as tasks:
                for _ in range(3):
                    tasks.start_soon(request)
                await anyio.wait_all_tasks_blocked()
                upstream.go.set()

    run(backend, task)
    assert sorted(ages) == ["10", "10", "7"]
