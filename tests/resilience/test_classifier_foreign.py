"""Results of real clients: returned responses with a failing status, and rejections that a client wraps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import Mock

import aiohttp
import httpx
import openai
import pytest
import requests
from pydantic import BaseModel, ConfigDict

from autoglm_throttle import GuardRejected
from autoglm_throttle.resilience import classify
from autoglm_throttle.resilience.fallback import Fallback
from autoglm_throttle.resilience.httpx import AsyncGuardTransport
from autoglm_throttle.resilience.state import require_permit
from autoglm_throttle.testing import ManualThrottle, throttle_for_tests
from autoglm_throttle.types import BreakerCause, BreakerState, GuardRejection, Outcome

FAILURES = 5


class Status(BaseHTTPRequestHandler):
    """Answers with the status in the path."""

    def do_GET(self) -> None:
        self.send_response(int(self.path.strip("/")))
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the base class
        """Log nothing."""


@contextmanager
def status_server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Status) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with status_server() as url:
        yield url


def called_by_requests(throttle: ManualThrottle, url: str) -> int:
    guarded = throttle.guard("db")(requests.get)
    return int(guarded(url, timeout=30).status_code)


def called_by_httpx(throttle: ManualThrottle, url: str) -> int:
    return throttle.guard("db")(httpx.get)(url).status_code


def called_by_httpx_async(throttle: ManualThrottle, url: str) -> int:
    @throttle.guard("db")
    async def get() -> httpx.Response:
        async with httpx.AsyncClient() as client:
            return await client.get(url)

    return asyncio.run(get()).status_code


def called_by_aiohttp(throttle: ManualThrottle, url: str) -> int:
    async def get() -> int:
        async with aiohttp.ClientSession() as session, throttle.guard("db")(session.get)(url) as response:
            return response.status

    return asyncio.run(get())


CLIENTS = [called_by_requests, called_by_httpx, called_by_httpx_async, called_by_aiohttp]
Client = Callable[[ManualThrottle, str], int]


@pytest.mark.parametrize("client", CLIENTS)
def test_returned_failing_responses_open_it(client: Client, server: str) -> None:
    """FIELD 8: after fifty responses 503 the breaker was still closed."""
    throttle = throttle_for_tests()
    assert [client(throttle, f"{server}/503") for _ in range(FAILURES)] == [503] * FAILURES
    with pytest.raises(GuardRejected) as caught:
        client(throttle, f"{server}/200")
    assert caught.value.last_failure == "HTTP 503"


@pytest.mark.parametrize("client", CLIENTS)
def test_other_returned_responses_open_nothing(client: Client, server: str) -> None:
    throttle = throttle_for_tests()
    for status in (503, 503, 503, 503, 429, 404, 503, 503, 503, 503, 501):
        assert client(throttle, f"{server}/{status}") == status
    assert throttle.guard("db").view().streak == 0


class Raising:
    """A value with an unreadable status."""

    @property
    def status(self) -> int:
        raise RuntimeError("not loaded")


class Answer:
    """An instance has a status only if one is given, as those of many clients."""

    def __init__(self, status: int | None = None) -> None:
        if status is not None:
            self.status = status


class Proxy:
    """Forwards attributes, as a lazy object does."""

    def __init__(self, inner: object) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)


class Forwarding:
    """Computes each attribute."""

    def __getattribute__(self, name: str) -> object:
        return 503 if name == "status" else object.__getattribute__(self, name)


class Row(NamedTuple):
    """A tuple with a status."""

    status: int


class Pair(NamedTuple):
    """A tuple without one."""

    first: int


class Slotted:
    """Has no dict."""

    __slots__ = ("status",)

    def __init__(self, status: int | None = None) -> None:
        if status is not None:
            self.status = status


class Down:
    """Its class has the status."""

    status_code = 503


class Table(dict[str, int]):
    """A dict with attributes."""


class Model(BaseModel):
    """A model without a status."""

    name: str = "x"


class Job(BaseModel):
    """A model with one."""

    status: int


class Open(BaseModel):
    """A model with any fields, as those of openai."""

    model_config = ConfigDict(extra="allow")


def table(**attributes: int) -> Table:
    made = Table()
    vars(made).update(attributes)
    return made


@pytest.mark.parametrize(
    ("value", "streak"),
    [
        (Answer(), 0),
        (Answer(503), 2),
        (Proxy(Answer()), 0),
        (Proxy(Answer(503)), 2),
        (Forwarding(), 2),
        (Row(503), 2),
        (Pair(503), 0),
        (Slotted(), 0),
        (Slotted(503), 2),
        (Down(), 2),
        (table(), 0),
        (table(status=503), 2),
        (Model(), 0),
        (Job(status=503), 2),
        (Open(), 0),
        (Open.model_validate({"status": 503}), 2),
        (Mock(status_code=503), 2),
        (Mock(), 0),
        (Answer, 0),
        (Down, 2),
        (HTTPStatus.SERVICE_UNAVAILABLE, 0),
        (SimpleNamespace(status_code=503), 2),
        (SimpleNamespace(status=529), 2),
        (SimpleNamespace(status_code=429, status=503), 1),
        (SimpleNamespace(status_code=200), 0),
        (SimpleNamespace(status="503"), 0),
        (SimpleNamespace(status=True), 0),
        (SimpleNamespace(status=5030), 0),
        (Raising(), 0),
        (None, 0),
        (503, 0),
    ],
)
def test_outcome_of_a_returned_value(value: object, streak: int) -> None:
    """FIELD 8, in each way in which a function is guarded."""
    throttle = throttle_for_tests()
    throttle.feature("fallback", fallback=Fallback(stale=True, static=None))
    for name in ("plain", "fallback"):
        fail_once(throttle, name)
        assert throttle.guard(name)(lambda: value)() is value or name == "fallback"
        assert throttle.guard(name).view().streak == streak

    async def coroutine() -> object:
        return value

    def awaitable() -> Awaitable[object]:
        return coroutine()

    for made in (coroutine, awaitable):
        name = made.__name__
        fail_once(throttle, name)
        asyncio.run(awaited(throttle.guard(name)(made)))
        assert throttle.guard(name).view().streak == streak


def test_values_of_one_class_are_examined_one_by_one() -> None:
    throttle = throttle_for_tests()
    answers = iter([Answer(), *[Answer(503)] * 2, Answer(), *[Answer(503)] * FAILURES])
    call = throttle.guard("db")(lambda: next(answers))
    streaks = [call() and throttle.guard("db").view().streak for _ in range(4)]
    assert streaks == [0, 1, 2, 0]
    for _ in range(FAILURES):
        call()
    assert throttle.guard("db").state() is BreakerState.OPEN


def test_class_is_examined_once_and_few_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: dict[type, int] = {}
    monkeypatch.setattr(classify, "_types", kept)
    for number in range(classify.TYPES_MAX + 10):
        assert classify.is_plain(type(f"Type{number}", (), {})())
    assert len(kept) == 10
    # A look at a missing attribute of a model costs microseconds.
    assert [classify.is_plain(value) for value in (Model(), Job(status=200))] == [True, False]
    monkeypatch.setattr(classify, "_learn", None)  # any further examination would fail
    assert all(classify.is_plain(kind()) for kind in kept if kind is not Job)


def fail_once(throttle: ManualThrottle, name: str) -> None:
    guard = throttle.guard(name)
    guard.settle(require_permit(guard.allow()), Outcome.FAILURE)


async def awaited(call: Callable[[], Awaitable[object]]) -> object:
    return await call()


def test_classifier_precedes_the_returned_status() -> None:
    throttle = throttle_for_tests()
    throttle.feature("db", classify=lambda _: Outcome.SUCCESS)
    for _ in range(FAILURES):
        throttle.guard("db")(lambda: SimpleNamespace(status=503))()
    assert throttle.guard("db").state() is BreakerState.CLOSED


# Rejections inside the exception of a client.

REJECTED = GuardRejected(GuardRejection("inner", BreakerState.OPEN, BreakerCause.FAILURES, 3.0))


@asynccontextmanager
async def rejecting_openai(throttle: ManualThrottle) -> AsyncIterator[openai.AsyncOpenAI]:
    """The client of openai over a guarded transport whose breaker is open."""
    throttle.guard("models").force_open()
    transport = AsyncGuardTransport(
        throttle, httpx.MockTransport(lambda _: httpx.Response(500)), name="models"
    )
    async with httpx.AsyncClient(transport=transport) as client:
        http_client: Any = client  # openai's types name its own copy of httpx
        yield openai.AsyncOpenAI(
            api_key="x", base_url="http://models.test", http_client=http_client, max_retries=0
        )


def test_rejection_wrapped_by_openai_opens_no_outer_guard() -> None:
    """FIELD 27."""
    throttle = throttle_for_tests()

    @throttle.guard("answer")
    async def answer() -> None:
        async with rejecting_openai(throttle) as client:
            await client.models.list()

    for _ in range(FAILURES + 1):
        with pytest.raises(openai.APIConnectionError) as caught:
            asyncio.run(answer())
        rejected = GuardRejected.find(caught.value)
        assert rejected is not None
        assert (rejected.name, rejected.rejection.state) == ("models", BreakerState.FORCED_OPEN)
    assert throttle.guard("answer").view().streak == 0


def rejected_call() -> None:
    raise GuardRejected(REJECTED.rejection)


def fail(text: str) -> None:
    raise OSError(text)


def wrapping_implicitly() -> None:
    """As requests raises its exceptions."""
    try:
        rejected_call()
    except GuardRejected:
        fail("wrapped")


def wrapping_twice() -> None:
    try:
        wrapping_implicitly()
    except OSError as error:
        raise RuntimeError("twice") from error


def hiding() -> None:
    try:
        rejected_call()
    except GuardRejected:
        raise OSError("hidden") from None


@pytest.mark.parametrize(
    ("failing", "error", "streak"),
    [(wrapping_implicitly, OSError, 0), (wrapping_twice, RuntimeError, 0), (hiding, OSError, 1)],
)
def test_wrapped_rejection_is_neutral(
    failing: Callable[[], None], error: type[Exception], streak: int
) -> None:
    throttle = throttle_for_tests()
    with pytest.raises(error):
        throttle.guard("db")(failing)()
    assert throttle.guard("db").view().streak == streak
    with pytest.raises(error), throttle.guard("block"):
        failing()
    assert throttle.guard("block").view().streak == streak


def test_failure_while_a_rejection_is_handled_counts() -> None:
    """A second dependency, called in place of a rejected one, must not be protected by that rejection."""
    throttle = throttle_for_tests()

    @throttle.guard("second")
    def second() -> None:
        raise OSError("down")

    for _ in range(FAILURES):
        try:
            rejected_call()
        except GuardRejected:
            with pytest.raises(OSError, match="down"):
                second()
            with pytest.raises(OSError, match="down"), throttle.guard("block"):
                raise OSError("down") from None
            with pytest.raises(OSError, match="implicit"), throttle.guard("implicit"):
                fail("implicit")
    for name in ("second", "block", "implicit"):
        assert throttle.guard(name).state() is BreakerState.OPEN


def test_chain_of_exceptions_may_be_a_circle() -> None:
    first, second = OSError(1), OSError(2)
    first.__cause__, second.__cause__ = second, first
    assert GuardRejected.find(first) is None
    assert GuardRejected.find(REJECTED) is REJECTED


def test_fallback_of_an_outer_guard_knows_the_rejection() -> None:
    throttle = throttle_for_tests()
    causes: list[str] = []
    throttle.feature("outer", fallback=Fallback(dynamic=lambda context: causes.append(context.cause)))
    throttle.guard("outer")(wrapping_twice)()
    assert causes == ["failures"]
