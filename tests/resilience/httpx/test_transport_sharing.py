"""Requests for the same thing wait for one call of it, where the user or the load wants that."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import anyio
import httpx
import pytest

from autoglm_throttle.model import Outcome, Rung
from autoglm_throttle.resilience.feature import Fallback
from autoglm_throttle.resilience.http_answer import HttpAnswer
from autoglm_throttle.resilience.httpx import AsyncGuardTransport, GuardTransport, TransportRefused
from autoglm_throttle.resilience.rules import Rules
from autoglm_throttle.resilience.served import Served
from tests.loops import run
from tests.resilience.httpx.guarded_calls import URL, Guarded, Parts, call, ok, status

ALWAYS = Fallback(stale=True, coalesce="always")
WAIT_S = 20.0
MANY = 5


class Upstream:
    """Answers each request when it is told to, with the same answer."""

    def __init__(self, make: Callable[[], httpx.Response]) -> None:
        self.make = make
        self.asked: list[httpx.Request] = []
        self.go = anyio.Event()

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        await self.go.wait()
        return self.make()


def sized(body: bytes = b"live", **headers: str) -> Callable[[], httpx.Response]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda: httpx.Response(
        200, headers={"content-length": str(len(body)), **named}, stream=Parts(body[:2], body[2:])
    )


async def together(
    guarded: Guarded, upstream: Upstream, headers: list[dict[str, str]], url: str = URL
) -> list[str]:
    """What so many requests get that are under way at once: text, or the name of what was raised."""
    transport = AsyncGuardTransport(guarded, httpx.MockTransport(upstream), name="dep")
    answers = [""] * len(headers)
    async with httpx.AsyncClient(transport=transport) as client:

        async def ask(number: int) -> None:
            try:
                response = await client.get(url, headers=headers[number])
                answers[number] = response.text + response.headers.get("x-degraded", "")
            except httpx.HTTPError as error:
                answers[number] = type(error).__name__

        async with anyio.create_task_group() as tasks:
            for number in range(len(headers)):
                tasks.start_soon(ask, number)
            await anyio.wait_all_tasks_blocked()
            upstream.go.set()
    return answers


def gathered(
    backend: str,
    guarded: Guarded,
    make: Callable[[], httpx.Response],
    headers: list[dict[str, str]] | None = None,
) -> tuple[list[str], int]:
    """The answers, and how many calls were made for them."""
    found: list[list[str]] = []
    made: list[int] = []

    async def task() -> None:
        upstream = Upstream(make)
        found.append(await together(guarded, upstream, headers or [{}] * MANY))
        made.append(len(upstream.asked))

    run(backend, task)
    return found[0], made[0]


def test_one_call_serves_all(backend: str) -> None:
    guarded = Guarded(fallback=ALWAYS)
    assert gathered(backend, guarded, sized()) == (["live"] * MANY, 1)
    assert guarded.outcomes == [Outcome.SUCCESS]
    assert guarded.counted == []


def test_by_default_each_makes_its_own(backend: str) -> None:
    assert gathered(backend, Guarded(fallback=Fallback(stale=True)), sized()) == (["live"] * MANY, MANY)


def test_under_load_they_share(backend: str) -> None:
    guarded = Guarded(fallback=Fallback(stale=True))
    guarded.loaded(0.92)
    call("sync", guarded, status(404), url=URL + "/other")
    assert gathered(backend, guarded, sized()) == (["live"] * MANY, 1)


@pytest.mark.parametrize(
    "make",
    [
        sized(cache_control="no-store"),
        sized(cache_control="private"),
        sized(vary="*"),
        sized(b"x" * 1001),
        lambda: httpx.Response(200, stream=Parts(b"of no known length")),
        lambda: httpx.Response(404, headers={"content-length": "4"}, stream=Parts(b"none")),
    ],
)
def test_an_answer_for_one_is_not_shared(backend: str, make: Callable[[], httpx.Response]) -> None:
    answers, made = gathered(backend, Guarded(fallback=ALWAYS), make)
    assert made == MANY
    assert len(set(answers)) == 1


def test_an_answer_that_varies_is_shared_with_those_it_fits(backend: str) -> None:
    """Whichever comes first: one call for those like it, and one each for the others."""
    headers = [{"accept": "a"}, {"accept": "a"}, {"accept": "b"}, {"accept": "b"}]
    assert gathered(backend, Guarded(fallback=ALWAYS), sized(vary="accept"), headers) == (["live"] * 4, 3)


def test_requests_with_credentials_are_not_shared(backend: str) -> None:
    headers = [{"authorization": "ann"}, {"authorization": "bob"}]
    assert gathered(backend, Guarded(fallback=ALWAYS), sized(), headers) == (["live"] * 2, 2)


def test_a_body_that_came_with_its_headers_is_shared(backend: str) -> None:
    guarded = Guarded(fallback=ALWAYS)
    assert gathered(backend, guarded, lambda: httpx.Response(200, content=b"live")) == (["live"] * MANY, 1)


def failing_body() -> httpx.Response:
    return httpx.Response(200, headers={"content-length": "9"}, stream=Parts(b"live", httpx.ReadError("cut")))


def test_one_failure_is_the_failure_of_all(backend: str) -> None:
    guarded = Guarded(fallback=ALWAYS)
    assert gathered(backend, guarded, failing_body) == (["ReadError"] * MANY, 1)
    assert guarded.outcomes == [Outcome.FAILURE]


def test_a_body_that_breaks_before_it_is_handed_on_has_a_fallback(backend: str) -> None:
    guarded = Guarded(fallback=Fallback(stale=True, static=HttpAnswer(body=b"so "), coalesce="always"))
    assert gathered(backend, guarded, failing_body) == (["so static; cause=error"] * MANY, 1)


def test_a_failing_status_sends_all_to_the_fallback(backend: str) -> None:
    guarded = Guarded(fallback=Fallback(stale=True, static=HttpAnswer(body=b"so "), coalesce="always"))
    busy = lambda: httpx.Response(503, stream=Parts(b"busy"))  # noqa: E731
    assert gathered(backend, guarded, busy) == (["so static; cause=error"] * MANY, 1)
    assert guarded.outcomes == [Outcome.FAILURE]


def test_a_failing_status_without_a_fallback_is_each_ones_own(backend: str) -> None:
    busy = lambda: httpx.Response(503, stream=Parts(b"busy"))  # noqa: E731
    guarded = Guarded(Rules(failures=100), ALWAYS)
    assert gathered(backend, guarded, busy) == (["busy"] * MANY, MANY)


def test_who_has_an_answer_kept_does_not_wait(backend: str) -> None:
    guarded = Guarded(fallback=ALWAYS)
    kept = httpx.Response(200, text="kept ")
    call("sync", guarded, lambda _: kept)
    answers, made = gathered(backend, guarded, sized())
    assert sorted(answers) == ["kept stale; cause=refresh"] * (MANY - 1) + ["live"]
    assert made == 1
    assert guarded.counted == [("dep", Rung.STALE, "refresh")] * (MANY - 1)


def test_a_refusal_names_the_request_of_each(backend: str) -> None:
    guarded = Guarded(Rules(failures=1), ALWAYS)
    call("sync", guarded, status(500))
    refused: list[TransportRefused] = []

    async def asking() -> None:
        transport = AsyncGuardTransport(guarded, httpx.MockTransport(ok), name="dep")
        async with httpx.AsyncClient(transport=transport) as client:
            for _ in range(2):
                with pytest.raises(TransportRefused) as caught:
                    await client.get(URL)
                refused.append(caught.value)

    run(backend, asking)
    assert refused[0].request is not refused[1].request


def test_a_cancelled_leader_hands_over(backend: str) -> None:
    guarded = Guarded(fallback=ALWAYS)
    upstream = Upstream(sized())
    answers: list[str] = []

    async def task() -> None:
        transport = AsyncGuardTransport(guarded, httpx.MockTransport(upstream), name="dep")
        async with httpx.AsyncClient(transport=transport) as client:

            async def ask() -> None:
                answers.append((await client.get(URL)).text)

            async with anyio.create_task_group() as outer:
                async with anyio.create_task_group() as leading:
                    leading.start_soon(ask)
                    await anyio.wait_all_tasks_blocked()
                    for _ in range(2):
                        outer.start_soon(ask)
                    await anyio.wait_all_tasks_blocked()
                    leading.cancel_scope.cancel()
                upstream.go.set()

    run(backend, task)
    assert answers == ["live"] * 2
    assert len(upstream.asked) == 2
    assert guarded.outcomes == [Outcome.NEUTRAL, Outcome.SUCCESS]


def test_an_age_is_that_of_the_call_that_was_made(backend: str) -> None:
    guarded = Guarded(fallback=ALWAYS)
    ages: list[str] = []

    def late() -> httpx.Response:
        guarded.clock.advance(3.0)
        return sized(age="7")()

    async def task() -> None:
        upstream = Upstream(late)
        transport = AsyncGuardTransport(guarded, httpx.MockTransport(upstream), name="dep")
        async with httpx.AsyncClient(transport=transport) as client:

            async def ask() -> None:
                ages.append((await client.get(URL)).headers["age"])

            async with anyio.create_task_group() as tasks:
                for _ in range(3):
                    tasks.start_soon(ask)
                await anyio.wait_all_tasks_blocked()
                upstream.go.set()

    run(backend, task)
    assert sorted(ages) == ["10", "10", "7"]


def test_threads_share_too() -> None:
    """The call is held until all others wait; each that did not would be counted as one more call."""
    guarded = Guarded(fallback=ALWAYS)
    asked: list[httpx.Request] = []
    begun, go = threading.Event(), threading.Event()

    def upstream(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        begun.set()
        assert go.wait(WAIT_S)
        return sized()()

    transport = GuardTransport(guarded, httpx.MockTransport(upstream), name="dep")
    with httpx.Client(transport=transport) as client, ThreadPoolExecutor(MANY) as pool:
        first = pool.submit(client.get, URL)
        assert begun.wait(WAIT_S)
        others = [pool.submit(client.get, URL) for _ in range(MANY - 1)]
        assert waiting(guarded, MANY - 1)
        go.set()
        answers = [each.result(WAIT_S).text for each in (first, *others)]
    assert answers == ["live"] * MANY
    assert len(asked) == 1


def waiting(guarded: Guarded, count: int) -> bool:
    """Wait until so many threads wait for the call that is under way."""
    served = guarded.circuits["dep"].served
    assert isinstance(served, Served)
    assert served.http is not None
    (flight,) = served.http.flights._threads.values()
    pause = threading.Event()
    for _ in range(int(WAIT_S / 0.001)):
        if len(flight.landed._cond._waiters) == count:  # type: ignore[attr-defined]
            return True
        pause.wait(0.001)
    return False
