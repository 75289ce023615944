"""Slow calls: the time of the dependency alone, up to its first part or over all parts."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import httpx
import pytest

from autoglm_throttle.resilience.httpx import AsyncGuardTransport, GuardTransport
from autoglm_throttle.settings.groups.breaker import BreakerSettings
from autoglm_throttle.types import BreakerState, Outcome, StreamSettleMode
from tests.resilience.httpx.guarded_calls import FACES, Guarded, Handler, Parts, call, status

SUCCESS, SLOW, NEUTRAL = Outcome.SUCCESS, Outcome.SLOW, Outcome.NEUTRAL

pytestmark = [
    pytest.mark.parametrize("face", FACES),
    # Who leaves a stream early leaves generators of httpx behind, and trio says so; none is ours.
    pytest.mark.filterwarnings("ignore:Async generator 'httpx:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Exception ignored in. <async_generator object (Bound|Response)"),
]


def taking(guarded: Guarded, headers_s: float, *gaps_s: float) -> Handler:
    """An answer that takes so long for its headers, and for each of its parts."""

    def after(gap_s: float) -> Callable[[], object]:
        return lambda: guarded.clock.advance(gap_s)

    def handler(_: httpx.Request) -> httpx.Response:
        guarded.clock.advance(headers_s)
        parts: list[bytes | Callable[[], object]] = []
        for gap_s in gaps_s:
            parts += [after(gap_s), b"part"]
        return httpx.Response(200, stream=Parts(*parts))

    return handler


@pytest.mark.parametrize(
    ("times_s", "outcome"),
    [
        ((2.0,), SUCCESS),
        ((2.5,), SLOW),
        ((1.0, 1.0), SUCCESS),
        ((1.0, 0.5, 1.0), SLOW),
        ((0.0, 0.0, 2.5), SLOW),
    ],
)
def test_a_slow_call(face: str, times_s: tuple[float, ...], outcome: Outcome) -> None:
    guarded = Guarded(BreakerSettings(slow_call_s=2.0))
    call(face, guarded, taking(guarded, *times_s))
    assert guarded.outcomes == [outcome]


@pytest.mark.parametrize(
    ("times_s", "outcome"),
    [
        ((2.0,), SUCCESS),
        ((2.5,), SLOW),
        ((1.0, 1.0), SUCCESS),
        ((1.0, 1.5), SLOW),
        ((1.0, 0.5, 9.0), SUCCESS),
    ],
)
def test_a_slow_first_part(face: str, times_s: tuple[float, ...], outcome: Outcome) -> None:
    guarded = Guarded(BreakerSettings(slow_call_s=2.0, first_item_s=2.0))
    call(face, guarded, taking(guarded, *times_s))
    assert guarded.outcomes == [outcome]


def test_a_failing_status_is_not_slow(face: str) -> None:
    guarded = Guarded(BreakerSettings(slow_call_s=2.0))

    def handler(request: httpx.Request) -> httpx.Response:
        guarded.clock.advance(9.0)
        return status(503)(request)

    call(face, guarded, handler)
    assert guarded.outcomes == [Outcome.FAILURE]


def test_the_time_of_the_reader_is_not_the_dependencys(face: str) -> None:
    """Two seconds of the dependency, and nine of the reader between two parts."""
    guarded = Guarded(BreakerSettings(slow_call_s=2.0))
    handler = taking(guarded, 1.0, 0.5, 0.5)
    if face == "sync":
        read_slowly(guarded, handler)
    else:
        read_slowly_async(face, guarded, handler)
    assert guarded.outcomes == [SUCCESS]


def read_slowly(guarded: Guarded, handler: Handler) -> None:
    transport = GuardTransport(guarded, httpx.MockTransport(handler), name="dep")
    with httpx.Client(transport=transport) as client, client.stream("GET", "http://x.test") as response:
        guarded.clock.advance(9.0)
        for _ in response.iter_raw():
            guarded.clock.advance(9.0)


def read_slowly_async(face: str, guarded: Guarded, handler: Handler) -> None:
    async def reading() -> None:
        transport = AsyncGuardTransport(guarded, httpx.MockTransport(handler), name="dep")
        async with (
            httpx.AsyncClient(transport=transport) as client,
            client.stream("GET", "http://x.test") as response,
        ):
            guarded.clock.advance(9.0)
            async for _ in response.aiter_raw():
                guarded.clock.advance(9.0)

    anyio.run(reading, backend=face)


def test_an_empty_part_is_not_the_first(face: str) -> None:
    guarded = Guarded(BreakerSettings(first_item_s=2.0))
    body = Parts(b"", lambda: guarded.clock.advance(3.0), b"part")
    call(face, guarded, lambda _: httpx.Response(200, stream=body))
    assert guarded.outcomes == [SLOW]


def half_open(face: str, rules: BreakerSettings) -> Guarded:
    guarded = Guarded(rules)
    call(face, guarded, status(500))
    guarded.clock.advance(rules.open_s)
    guarded.outcomes.clear()
    return guarded


def test_probe_with_slow_first_chunk_opens_again(face: str) -> None:
    rules = BreakerSettings(failures=1, first_item_s=2.0, stream_settle=StreamSettleMode.FIRST_ITEM)
    guarded = half_open(face, rules)
    call(face, guarded, taking(guarded, 3.0, 0.0, 0.0))
    assert guarded.outcomes == [SLOW]
    assert guarded.view().state is BreakerState.OPEN


def test_probe_succeeds_at_the_end_of_an_empty_body(face: str) -> None:
    rules = BreakerSettings(failures=1, stream_settle=StreamSettleMode.FIRST_ITEM)
    guarded = half_open(face, rules)
    call(face, guarded, lambda _: httpx.Response(200, stream=Parts(b"")))
    assert guarded.outcomes == [SUCCESS]
    assert guarded.view().state is BreakerState.CLOSED


def test_later_break_is_not_counted(face: str) -> None:
    guarded = half_open(face, BreakerSettings(failures=1, stream_settle=StreamSettleMode.FIRST_ITEM))
    with pytest.raises(httpx.ReadError):
        call(face, guarded, lambda _: httpx.Response(200, stream=Parts(b"a", httpx.ReadError("cut"))))
    assert guarded.outcomes == [SUCCESS]


def test_an_ordinary_call_counts_at_its_end_all_the_same(face: str) -> None:
    guarded = Guarded(BreakerSettings(stream_settle=StreamSettleMode.FIRST_ITEM, max_in_flight=5))
    body = Parts(b"a", httpx.ReadError("cut"))
    with pytest.raises(httpx.ReadError):
        call(face, guarded, lambda _: httpx.Response(200, stream=body))
    assert guarded.outcomes == [Outcome.FAILURE]


def test_probe_left_after_its_end_is_settled_once(face: str) -> None:
    rules = BreakerSettings(failures=1, stream_settle=StreamSettleMode.FIRST_ITEM)
    guarded = half_open(face, rules)
    call(face, guarded, lambda _: httpx.Response(200, stream=Parts(b"a", b"b")), parts=1)
    assert guarded.outcomes == [SUCCESS]
    assert guarded.view().state is BreakerState.CLOSED


@pytest.mark.parametrize("rules", [BreakerSettings(timeout_s=0.02), BreakerSettings(stream_idle_s=0.02)])
def test_the_request_of_the_caller_keeps_its_own_limits(face: str, rules: BreakerSettings) -> None:
    guarded = Guarded(rules)
    seen: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, stream=Parts(b"fine"))

    response = call(face, guarded, handler, "POST", content=b"asked", timeout=7.0, headers={"x": "y"})
    assert response.request.extensions["timeout"] == dict.fromkeys(("connect", "read", "write", "pool"), 7.0)
    assert (seen[0].method, seen[0].url, seen[0].content) == ("POST", response.request.url, b"asked")
    assert seen[0].headers == response.request.headers
