"""The gateway itself: its own paths, its choice of an upstream, its limits, and its arguments."""

from __future__ import annotations

import asyncio
import functools
import json
import operator
import time
from dataclasses import replace
from typing import Any

import httpx
import pytest

from autoglm_throttle import ConfigError
from autoglm_throttle.gateway import KEEP_ALIVE_S, PROBLEMS, SILENT_AFTER_S, Gateway
from autoglm_throttle.resilience.httpx import parse_origins
from tests.asgi.run_app import Answer, http_scope, send_scope
from tests.gateway.loopback import throttle
from tests.gateway.scripted import Frozen, Parts, Scripted, gateway

WHOLE = {"type": "http.request", "body": b"", "more_body": False}
BUSY = [(b"Retry-After", b"30")]


async def get(app: Gateway, path: str = "/v1", **scope: Any) -> Answer:
    return await send_scope(app, http_scope(path, **scope), [WHOLE])


async def test_health_counts_available_upstreams() -> None:
    app = gateway(Scripted(), Scripted(httpx.ReadError("gone")), breaker_failures=1)
    assert (await get(app, "/healthz")).body == b'{"upstreams":2,"available":2}'
    await get(app)
    await get(app)
    assert (await get(app, "/healthz")).body == b'{"upstreams":2,"available":1}'


async def test_metrics_are_those_of_the_throttle() -> None:
    upstream = Scripted()
    app = gateway(upstream)
    await get(app)
    answer = await get(app, "/metrics")
    assert b'breaker_state{breaker="http://upstream-0.test",state="closed"} 1.0' in answer.body
    assert len(upstream.requests) == 1


@pytest.mark.parametrize("path", ["/healthz", "/metrics"])
async def test_own_paths_are_not_limited(path: str) -> None:
    app = gateway(Scripted(), user_limit="1/hour", exempt_paths=())
    statuses = [(await get(app, each)).status for each in ("/v1", "/v1", path, path)]
    assert statuses == [200, 429, 200, 200]


async def test_requests_pass_the_limits() -> None:
    upstream = Scripted()
    app = gateway(upstream, user_limit="2/hour")
    answers = [await get(app) for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 429]
    assert answers[0].header("ratelimit") is not None
    assert len(upstream.requests) == 2


async def test_upstreams_take_turns_without_load() -> None:
    upstreams = [Scripted() for _ in range(3)]
    app = gateway(*upstreams)
    for _ in range(9):
        await get(app)
    assert [len(upstream.requests) for upstream in upstreams] == [3, 3, 3]


async def test_upstream_with_least_in_flight_is_next() -> None:
    frozen, living = Frozen(), Scripted()
    app = gateway(frozen, living)
    waiting = asyncio.create_task(get(app))
    await frozen.entered.wait()
    for _ in range(3):
        assert (await asyncio.wait_for(get(app), 10.0)).status == 200
    assert app.upstreams[0].in_flight == 1
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert app.upstreams[0].in_flight == 0


def test_silent_upstream_is_ranked_last() -> None:
    silent, working = gateway(Scripted(), Scripted()).upstreams
    silent.begin(100.0)
    for _ in range(5):
        working.begin(100.0 + SILENT_AFTER_S)
    now = 100.0 + SILENT_AFTER_S
    assert silent.rank(now) < working.rank(now)
    now += 0.1
    assert silent.rank(now) > working.rank(now)
    silent.last_byte_s = now
    assert silent.rank(now) < working.rank(now)


def test_idle_upstream_is_not_silent() -> None:
    idle, working = gateway(Scripted(), Scripted()).upstreams
    working.begin(100.0)
    working.last_byte_s = 1000.0
    assert idle.rank(1000.0) < working.rank(1000.0)


async def test_connection_serves_one_request_at_a_time() -> None:
    (upstream,) = gateway(Scripted()).upstreams
    first, second = upstream.begin(0.0), upstream.begin(0.0)
    assert first is not second
    upstream.end(first)
    upstream.end(second)
    assert [upstream.begin(0.0), upstream.begin(0.0)] == [second, first]  # the newest one is the warmest


async def test_idle_connections_are_closed_in_time() -> None:
    closed: list[Scripted] = []

    class Closing(Scripted):
        async def aclose(self) -> None:
            closed.append(self)

    (upstream,) = gateway(Closing()).upstreams
    now = time.monotonic()
    upstream.end(upstream.begin(now))
    await upstream.close_idle(now - KEEP_ALIVE_S)
    assert closed == []
    await upstream.close_idle(time.monotonic() + 1.0)
    assert len(closed) == 1


async def test_busy_upstream_is_ranked_last_until_its_time() -> None:
    app = gateway(Scripted(status=503, fields=BUSY), Scripted())
    statuses = [(await get(app)).status for _ in range(4)]
    assert statuses == [503, 200, 200, 200]
    busy, other = app.upstreams
    until_s = busy.busy_until_s
    assert busy.rank(until_s - 0.1) > other.rank(until_s - 0.1)
    assert busy.rank(until_s)[0] is False


async def test_limited_caller_does_not_make_an_upstream_busy() -> None:
    upstreams = Scripted(status=429, fields=BUSY), Scripted()
    app = gateway(*upstreams)
    for _ in range(4):
        await get(app)
    assert [len(upstream.requests) for upstream in upstreams] == [2, 2]


@pytest.mark.parametrize("status", [429, 503])
async def test_wait_of_an_upstream_is_kept(status: int) -> None:
    answer = await get(gateway(Scripted(status=status, fields=BUSY)))
    assert answer.header("retry-after") == "30"
    assert answer.header("retry-after-ms") is None


@pytest.mark.parametrize("status", [429, 503])
async def test_missing_wait_is_within_the_settings(status: int) -> None:
    app = gateway(Scripted(status=status, fields=()), retry_after_max_s=1, retry_jitter=1)
    answer = await get(app)
    assert (answer.header("retry-after"), answer.header("retry-after-ms")) == ("1", "1000")


async def test_missing_wait_is_behind_rejected_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    app = gateway(Scripted(status=503), policy="concurrency", retry_jitter=0)
    snapshot = app.throttle.snapshot()
    assert snapshot.concurrency is not None
    crowded = replace(snapshot, concurrency=replace(snapshot.concurrency, retry_backlog_s=20.5))
    monkeypatch.setattr(app.throttle, "snapshot", lambda: crowded)
    answer = await get(app)
    assert (answer.header("retry-after"), answer.header("retry-after-ms")) == ("21", "20500")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (httpx.ReadTimeout("late"), 504),
        (httpx.WriteTimeout("late"), 504),
        (httpx.LocalProtocolError("no HTTP"), 400),
        (httpx.RemoteProtocolError("no HTTP"), 502),
        (httpx.ReadError("gone"), 502),
        (httpx.WriteError("gone"), 502),
    ],
)
async def test_failed_request_is_answered_and_sent_once(error: Exception, status: int) -> None:
    first, second = Scripted(error), Scripted()
    answer = await get(gateway(first, second))
    assert answer.status == status
    assert PROBLEMS[status][1].encode() in answer.body
    assert (len(first.requests), len(second.requests)) == (1, 0)


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        ("/v1/chat/completions", ["error", "code"]),
        ("/v1/messages", ["error", "message"]),
        ("/mcp", ["error", "message"]),
        ("/generate", ["reason"]),
    ],
)
async def test_failed_request_is_answered_in_the_dialect_of_its_path(path: str, parts: list[str]) -> None:
    answer = await get(gateway(Scripted(httpx.ReadTimeout("late"))), path)
    value = functools.reduce(operator.getitem, parts, json.loads(answer.body))
    assert value in {"gateway:timeout", PROBLEMS[504][1]}
    is_problem = answer.header("content-type") == "application/problem+json"
    assert is_problem == (path == "/generate")


@pytest.mark.parametrize("error", [httpx.ConnectError("refused"), httpx.ConnectTimeout("late")])
async def test_unsent_request_goes_to_another_upstream(error: Exception) -> None:
    first, second = Scripted(error), Scripted()
    assert (await get(gateway(first, second))).body == b"ok"
    assert (len(first.requests), len(second.requests)) == (0, 1)


@pytest.mark.parametrize("status", [500, 502, 504])
async def test_failing_status_opens_the_breaker(status: int) -> None:
    app = gateway(Scripted(status=status), breaker_failures=2)
    assert [(await get(app)).status for _ in range(3)] == [status, status, 503]


async def test_truncated_body_opens_the_breaker() -> None:
    body = Parts([b"one"], error=httpx.RemoteProtocolError("closed"))
    app = gateway(Scripted(body), breaker_failures=1)
    answer = await get_truncated(app)
    assert answer.body == b"one"
    assert answer.messages[-1].get("more_body") is True
    assert not app.upstreams[0].guard.is_available()


async def get_truncated(app: Gateway) -> Answer:
    answer, asked = Answer(), asyncio.Event()

    async def receive() -> dict[str, Any]:
        if not asked.is_set():
            asked.set()
            return WHOLE
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: dict[str, Any]) -> None:
        answer.messages.append(message)

    await app(http_scope("/v1"), receive, send)
    return answer


async def test_shutdown_closes_the_connections() -> None:
    closed = []

    class Closing(Scripted):
        async def aclose(self) -> None:
            closed.append(self)

    messages = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])
    upstreams = Closing(), Closing()
    sent: list[str] = []

    async def receive() -> dict[str, Any]:
        return next(messages)

    async def send(message: dict[str, Any]) -> None:
        sent.append(message["type"])

    app = gateway(*upstreams)
    for _ in upstreams:
        await get(app)
    await app({"type": "lifespan", "asgi": {"version": "3.0"}}, receive, send)
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert closed == list(upstreams)


FORM = "must be http://HOST[:PORT] or https://HOST[:PORT], port 1 to 65535, without user, path and query"


@pytest.mark.parametrize(
    "text",
    [
        *("", "localhost:8000", "ftp://a.test", "http://", "http://a.test:0", "http://a.test:70000"),
        *("http://a.test/v1", "http://a.test?x=1", "http://a.test/#x", "http://me:secret@a.test"),
    ],
)
def test_wrong_upstream_is_named_with_the_form(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_origins("upstream", [text])
    (problem,) = caught.value.problems
    assert problem.message.endswith(FORM)
    assert "secret" not in problem.message


def test_all_wrong_upstreams_are_reported() -> None:
    texts = ["ftp://a.test", "http://b.test", "http://b.test:80/", "c.test", "HTTP://B.test"]
    with pytest.raises(ConfigError) as caught:
        Gateway(texts, throttle=throttle())
    messages = [problem.message for problem in caught.value.problems]
    assert len(messages) == 4
    assert [message.endswith("is given twice") for message in messages] == [False, True, False, True]


def test_no_upstream_is_a_problem() -> None:
    with pytest.raises(ConfigError, match="at least one is needed"):
        parse_origins("upstream", [])


@pytest.mark.parametrize(
    "text", ["http://a.test", "https://a.test:8443/", "http://[::1]:8000", "http://10.0.0.7:1"]
)
def test_right_upstream_is_accepted(text: str) -> None:
    (url,) = parse_origins("upstream", [text])
    assert url.host in text
