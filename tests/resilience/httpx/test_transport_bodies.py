"""Over a real network: broken bodies are failures; clients that leave early are neutral."""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable, Iterator

import anyio
import httpx
import pytest

from autoglm_throttle.resilience.httpx import AsyncGuardTransport, GuardTransport
from autoglm_throttle.settings.groups.breaker import BreakerSettings
from autoglm_throttle.types import BreakerState, Outcome, StreamSettleMode
from tests.resilience.httpx.breaking_server import BROKEN, DUMB, WHOLE, breaking_server
from tests.resilience.httpx.guarded_calls import FACES, Guarded

SUCCESS, FAILURE, NEUTRAL = Outcome.SUCCESS, Outcome.FAILURE, Outcome.NEUTRAL

TIMES = 20

pytestmark = [
    pytest.mark.parametrize("face", FACES),
    # Who leaves a stream early leaves generators of httpx behind, and trio says so; none is ours.
    pytest.mark.filterwarnings("ignore:Async generator 'http(x|core):ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Exception ignored in. <async_generator object (?!Body|AsyncBody)"),
]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with breaking_server() as url:
        yield url


def patient(**rules: object) -> Guarded:
    return Guarded(BreakerSettings(failures=1000, **rules))  # type: ignore[arg-type]  # any column


def each(
    face: str,
    guarded: Guarded,
    do: Callable[[httpx.Client], object],
    do_async: Callable[[httpx.AsyncClient], Awaitable[object]],
    times: int = TIMES,
    expecting: type[Exception] | None = None,
) -> None:
    """Call a function repeatedly with one client; each call must raise the expected exception."""
    caught = 0
    expected = () if expecting is None else (expecting,)

    def sync() -> None:
        nonlocal caught
        inner = httpx.HTTPTransport(verify=False)  # certificates take longer to read than all else here
        with httpx.Client(transport=GuardTransport(guarded, inner, name="dep")) as client:
            for _ in range(times):
                try:
                    do(client)
                except expected:
                    caught += 1

    async def asynchronous() -> None:
        nonlocal caught
        inner = httpx.AsyncHTTPTransport(verify=False)
        async with httpx.AsyncClient(transport=AsyncGuardTransport(guarded, inner, name="dep")) as client:
            for _ in range(times):
                try:
                    await do_async(client)
                except expected:
                    caught += 1

    if face == "sync":
        sync()
    else:
        anyio.run(asynchronous, backend=face)
    assert caught == len(expected) * times


@pytest.mark.parametrize("path", sorted(WHOLE))
def test_a_whole_answer_is_a_success(face: str, path: str, server: str) -> None:
    guarded = patient()
    each(face, guarded, lambda c: c.get(server + path), lambda c: c.get(server + path), times=3)
    assert guarded.outcomes == [SUCCESS] * 3


@pytest.mark.parametrize("path", sorted(BROKEN))
def test_each_body_that_breaks_is_a_failure(face: str, path: str, server: str) -> None:
    guarded = patient()
    url = server + path
    each(face, guarded, lambda c: c.get(url), lambda c: c.get(url), expecting=httpx.TransportError)
    assert guarded.outcomes == [FAILURE] * TIMES
    assert guarded.view().streak == TIMES


@pytest.mark.parametrize("path", sorted(BROKEN))
def test_so_it_is_where_the_body_is_streamed(face: str, path: str, server: str) -> None:
    guarded = patient()

    def do(client: httpx.Client) -> None:
        with client.stream("GET", server + path) as response:
            for _ in response.iter_raw():
                pass

    async def do_async(client: httpx.AsyncClient) -> None:
        async with client.stream("GET", server + path) as response:
            async for _ in response.aiter_raw():
                pass

    each(face, guarded, do, do_async, expecting=httpx.TransportError)
    assert guarded.outcomes == [FAILURE] * TIMES


@pytest.mark.parametrize("path", sorted(DUMB))
def test_no_answer_at_all_is_a_failure(face: str, path: str, server: str) -> None:
    guarded = patient()
    url = server + path
    each(face, guarded, lambda c: c.get(url), lambda c: c.get(url), 3, expecting=httpx.TransportError)
    assert guarded.outcomes == [FAILURE] * 3


@pytest.mark.parametrize("path", ["/stalled", "/stalled-chunk", "/sized"])
@pytest.mark.parametrize("parts", [0, 1])
def test_early_leaver_is_neutral(face: str, path: str, parts: int, server: str) -> None:
    guarded = patient()
    whole = path == "/sized" and parts

    def do(client: httpx.Client) -> None:
        with client.stream("GET", server + path) as response:
            taking = response.iter_raw()
            for _ in range(parts):
                assert next(taking) == b"body"

    async def do_async(client: httpx.AsyncClient) -> None:
        async with client.stream("GET", server + path) as response:
            taking = response.aiter_raw()
            for _ in range(parts):
                assert await anext(taking) == b"body"

    each(face, guarded, do, do_async)
    assert guarded.outcomes == [SUCCESS if whole else NEUTRAL] * TIMES
    assert guarded.view().streak == 0


def test_a_response_that_is_dropped_unread_gives_its_place_back(face: str, server: str) -> None:
    guarded = patient(max_in_flight=1)
    url = server + "/sized"

    def do(client: httpx.Client) -> None:
        client.send(client.build_request("GET", url), stream=True)
        gc.collect()
        client.get(url)

    async def do_async(client: httpx.AsyncClient) -> None:
        await client.send(client.build_request("GET", url), stream=True)
        gc.collect()
        await client.get(url)

    each(face, guarded, do, do_async, times=1)
    assert guarded.outcomes == [NEUTRAL, SUCCESS]


@pytest.mark.parametrize(
    ("path", "rules"),
    [("/silent", BreakerSettings(timeout_s=0.03)), ("/stalled", BreakerSettings(stream_idle_s=0.03))],
)
def test_our_own_time_limits_are_failures(face: str, path: str, rules: BreakerSettings, server: str) -> None:
    guarded = Guarded(rules)
    url = server + path
    each(face, guarded, lambda c: c.get(url), lambda c: c.get(url), 2, expecting=httpx.ReadTimeout)
    assert guarded.outcomes == [FAILURE] * 2


def test_the_limit_of_the_headers_is_not_that_of_the_body(face: str, server: str) -> None:
    """The caller's own time-out stands where it is shorter."""
    guarded = Guarded(BreakerSettings(timeout_s=0.03, stream_idle_s=30.0))
    url = server + "/stalled"
    each(
        face,
        guarded,
        lambda c: c.get(url, timeout=0.2),
        lambda c: c.get(url, timeout=0.2),
        1,
        expecting=httpx.ReadTimeout,
    )
    assert guarded.outcomes == [FAILURE]


def test_probe_succeeds_at_its_first_chunk(face: str, server: str) -> None:
    guarded = Guarded(BreakerSettings(failures=1, stream_settle=StreamSettleMode.FIRST_ITEM))
    states: list[BreakerState] = []

    def do(client: httpx.Client) -> None:
        client.get(server + "/busy")
        guarded.clock.advance(10.0)
        with client.stream("GET", server + "/stalled") as response:
            states.append(guarded.view().state)
            next(response.iter_raw())
            states.append(guarded.view().state)

    async def do_async(client: httpx.AsyncClient) -> None:
        await client.get(server + "/busy")
        guarded.clock.advance(10.0)
        async with client.stream("GET", server + "/stalled") as response:
            states.append(guarded.view().state)
            await anext(response.aiter_raw())
            states.append(guarded.view().state)

    each(face, guarded, do, do_async, times=1)
    assert states == [BreakerState.HALF_OPEN, BreakerState.CLOSED]
    assert guarded.outcomes == [FAILURE, SUCCESS]
