"""The limits really apply, wherever the endpoint stands and however the throttle is attached.

Of ``LIMIT + 3`` requests exactly ``LIMIT`` pass on. What a limiter forgets here it forgets silently.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from fastapi import FastAPI

from autoglm_throttle import Priority, Settings, Throttle
from autoglm_throttle.asgi import ThrottleMiddleware, exempt
from autoglm_throttle.settings import RoutePolicy
from autoglm_throttle.testing import ManualThrottle, throttle_for_tests
from tests.asgi.attachments import (
    BUCKET,
    LIMIT,
    SITES,
    SOCKETS,
    TIMES,
    UNROUTED,
    USER,
    WAYS,
    Site,
    admitted,
    by_argument,
    by_priority,
    fast_direct,
    fast_endpoint,
    fast_websocket,
    plain,
    raw,
)
from tests.asgi.run_app import connect, request, send_scope, statuses, websocket_scope


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("site", (SITES | UNROUTED).values(), ids=SITES | UNROUTED)
async def test_exactly_the_limit_passes(site: Site, way: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    app = way(site.build(plain), USER, monkeypatch)
    expected = [site.answers] * LIMIT + [429] * (TIMES - LIMIT)
    assert await statuses(app, site.path, TIMES, site.method) == expected


@pytest.mark.parametrize("site", SITES.values(), ids=SITES)
async def test_exactly_the_burst_passes(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    app = by_argument(site.build(plain), BUCKET, monkeypatch)
    expected = [site.answers] * LIMIT + [429] * (TIMES - LIMIT)
    assert await statuses(app, site.path, TIMES, site.method) == expected


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("site", SOCKETS.values(), ids=SOCKETS)
async def test_exactly_the_limit_of_websockets_passes(
    site: Site, way: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = way(site.build(plain), USER, monkeypatch)
    answers = [await connect(app, site.path) for _ in range(TIMES)]
    assert [answer.status for answer in answers] == [101] * LIMIT + [0] * 3
    assert [answer.close_code for answer in answers[LIMIT:]] == [1013] * 3


async def test_requests_and_websockets_of_one_user_share_one_limit() -> None:
    app = fast_websocket(plain)
    app.get("/x")(fast_endpoint(plain))
    wrapped = ThrottleMiddleware(app, throttle=throttle_for_tests(**USER))
    assert (await connect(wrapped, "/ws")).status == 101
    assert await statuses(wrapped, "/x", LIMIT) == [200] * (LIMIT - 1) + [429]


async def test_one_throttle_on_several_mounts_is_one_limit() -> None:
    throttle = throttle_for_tests(**USER)
    app = FastAPI()
    for path in ("/a", "/b"):
        app.mount(path, ThrottleMiddleware(raw(plain), throttle=throttle))
    answers = [(await request(app, path)).status for path in ("/a/x", "/b/x", "/a/x", "/b/x", "/a/x")]
    assert answers == [200, 200, 200, 429, 429]


@pytest.mark.parametrize("path", ["/m/x", "/m/nowhere"])
async def test_nested_twice_is_charged_once_with_one_warning(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    throttle = throttle_for_tests(**USER)
    inner = fast_direct(plain)
    inner.add_middleware(ThrottleMiddleware, throttle=throttle)
    outer = FastAPI()
    outer.mount("/m", inner)
    app = ThrottleMiddleware(outer, throttle=throttle)
    answers = await statuses(app, path, TIMES)
    assert answers[LIMIT - 1] != 429
    assert answers[LIMIT:] == [429] * 3
    assert [record.message for record in caplog.records if "share one throttle" in record.message] == [
        "two middlewares share one throttle around the same app; the inner one applies no limits"
    ]


async def test_nested_exempt_requests_are_counted_once_and_stay_free() -> None:
    throttle = throttle_for_tests(**USER, exempt_paths="/m/health")
    inner = ThrottleMiddleware(raw(plain), throttle=throttle)
    outer = FastAPI()
    outer.mount("/m", inner)
    app = ThrottleMiddleware(outer, throttle=throttle)
    assert await statuses(app, "/m/health", TIMES) == [200] * TIMES
    assert throttle.snapshot().exempt == TIMES
    assert await statuses(app, "/m/x", TIMES) == [200] * LIMIT + [429] * 3


async def test_two_throttles_both_charge() -> None:
    outer, inner = throttle_for_tests(**USER), throttle_for_tests(user_limit="2/minute")
    app = ThrottleMiddleware(ThrottleMiddleware(raw(plain), throttle=inner), throttle=outer)
    assert await statuses(app, "/x", TIMES) == [200, 200, 429, 429, 429, 429]
    assert admitted(outer) == LIMIT


@pytest.mark.parametrize(
    ("path", "free"),
    [
        ("/health", True),
        ("/metrics", True),
        ("//metrics", False),
        ("/metrics/", False),
        ("/metrics//", False),
        ("/Metrics", False),
        ("/healthcare", False),
        ("/health/../x", False),
        ("/health\x00", False),
        ("/api//free", False),
        ("/api/free", True),
        ("/marked", True),
        ("//marked", False),
        # FIELD 18: dot segments
        ("/internal/x", True),
        ("/internal/.x/a..b", True),
        ("/internal/../free", False),
        ("/internal/.", False),
        ("/internal/..;/free", False),
        ("/marked\n", False),
        ("/health\n", False),
    ],
)
async def test_exempt_paths_are_exact(path: str, free: bool) -> None:
    app = fast_direct(plain)
    app.get("/marked")(fast_endpoint(exempt))
    routes = [RoutePolicy("/api/free", exempt=True), RoutePolicy("/internal/*", exempt=True)]
    throttle = throttle_for_tests(**USER, routes=routes)
    answers = await statuses(ThrottleMiddleware(app, throttle=throttle), path, TIMES)
    assert (answers[LIMIT:] == [429] * 3) is not free
    assert throttle.snapshot().exempt == (TIMES if free else 0)


PREFLIGHT = {"origin": "https://shop.example", "access-control-request-method": "POST"}


# FIELD 5
async def test_preflight_is_free_because_browsers_ask_it_first() -> None:
    throttle = throttle_for_tests(**USER)
    app = ThrottleMiddleware(raw(plain), throttle=throttle)
    assert await statuses(app, "/x", TIMES, "OPTIONS", headers=PREFLIGHT) == [200] * TIMES
    assert await statuses(app, "/x", 1, "options", headers=PREFLIGHT) == [200], "no such method: charged"
    assert admitted(throttle) == 1


# FIELD 5
@pytest.mark.parametrize("left_out", [(), *((name,) for name in PREFLIGHT)])
async def test_options_that_is_no_preflight_is_charged(left_out: tuple[str, ...]) -> None:
    throttle = throttle_for_tests(**USER)
    headers = {name: PREFLIGHT[name] for name in left_out}
    app = ThrottleMiddleware(raw(plain), throttle=throttle)
    assert (await statuses(app, "/x", TIMES, "OPTIONS", headers=headers))[LIMIT:] == [429] * 3
    assert admitted(throttle) == LIMIT


@pytest.mark.parametrize("root_path", ["/api", "/api/", ""])
async def test_root_path_is_not_part_of_the_pattern(root_path: str) -> None:
    throttle = throttle_for_tests(routes=[RoutePolicy("/x", priority="low")])
    app = ThrottleMiddleware(raw(plain), throttle=throttle)
    await request(app, root_path.rstrip("/") + "/x", root_path=root_path.rstrip("/"))
    await request(app, root_path.rstrip("/") + "/health", root_path=root_path.rstrip("/"))
    assert by_priority(throttle) == [0, 0, 1]
    assert throttle.snapshot().exempt == 1


async def test_512_concurrent_cold_requests_admit_exactly_the_limit() -> None:
    throttle = throttle_for_tests(user_limit="100/minute")
    app = ThrottleMiddleware(fast_direct(plain), throttle=throttle)
    answers = await asyncio.gather(*(request(app, "/x") for _ in range(512)))
    assert [answer.status for answer in answers].count(200) == 100
    assert throttle.snapshot().active[Priority.MID] == 0


def test_eight_cold_event_loops_admit_exactly_the_limit() -> None:
    throttle = throttle_for_tests(user_limit="100/minute")
    app = ThrottleMiddleware(raw(plain), throttle=throttle)
    barrier = threading.Barrier(8)
    answers: list[int] = []

    def run() -> None:
        barrier.wait(60)
        answers.extend(asyncio.run(statuses(app, "/x", 64)))

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert answers.count(200) == 100
    assert answers.count(429) == 412


async def test_rejection_ends_at_the_stated_instant() -> None:
    throttle = throttle_for_tests(**USER)
    app = ThrottleMiddleware(raw(plain), throttle=throttle)
    await statuses(app, "/x", LIMIT)
    refused = await request(app, "/x")
    wait = int(refused.header("retry-after") or 0)
    assert wait == 60
    throttle.clock.advance(wait - 0.001)
    assert (await request(app, "/x")).status == 429
    throttle.clock.advance(0.001)
    assert (await request(app, "/x")).status == 200


async def test_users_are_limited_each_for_itself() -> None:
    app = ThrottleMiddleware(raw(plain), throttle=throttle_for_tests(**USER))
    for host in ("192.0.2.1", "192.0.2.2"):
        assert await statuses(app, "/x", TIMES, client=(host, 1)) == [200] * LIMIT + [429] * 3


async def test_dead_client_address_is_still_limited() -> None:
    app = ThrottleMiddleware(raw(plain), throttle=throttle_for_tests(**USER))
    assert await statuses(app, "/x", TIMES, client=None) == [200] * LIMIT + [429] * 3


async def test_gpu_stop_rejects_all_but_exempt_requests() -> None:
    throttle: ManualThrottle = throttle_for_tests()
    throttle.gpu.utilization_pct = 97
    throttle.tick(3)
    app = ThrottleMiddleware(fast_direct(plain), throttle=throttle)
    answer = await request(app, "/x")
    assert answer.status == 503
    assert (await request(app, "/health")).status == 404
    denial = await send_scope(app, websocket_scope("/ws", denial=True), [{"type": "websocket.connect"}])
    assert denial.status == 503


async def test_environment_is_not_read_where_a_throttle_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOGLM_THROTTLE_USER_LIMIT", "nonsense")
    app = ThrottleMiddleware(raw(plain), throttle=Throttle(Settings(gpu="none", user_limit="1/minute")))
    assert await statuses(app, "/x", 2) == [200, 429]
