"""The app of the live page: access, its documents, and event streams."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import subprocess
import sys
import weakref
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.types import ASGIApp, Message

from autoglm_throttle import ThrottleMiddleware
from autoglm_throttle.observe import status_app
from autoglm_throttle.observe.page import app as page_app
from autoglm_throttle.observe.page import builder as page_builder
from autoglm_throttle.observe.page.access import COOKIE, SESSION_S, Access, is_local
from autoglm_throttle.observe.page.builder import PageBuilder
from autoglm_throttle.observe.timer import history_timer
from autoglm_throttle.testing import ManualThrottle, assert_shed, throttle_for_tests
from tests.observe.page_states import stepped

TOKEN = "correct horse battery staple"
LOCAL = "http://localhost:8000"


def client(app: ASGIApp, base: str = LOCAL, peer: str = "127.0.0.1", **fields: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app, client=(peer, 1)), base_url=base, headers=fields
    )


def mounted(throttle: ManualThrottle) -> ASGIApp:
    return Starlette(routes=[Mount("/status", status_app(throttle))])


# Access


@pytest.mark.parametrize(
    ("peer", "host", "field", "allowed"),
    [
        ("127.0.0.1", "localhost", "", True),
        ("127.0.0.1", "localhost:8000", "", True),
        ("127.9.9.9", "127.0.0.1:8000", "", True),
        ("::1", "[::1]", "", True),
        ("::1", "[::1]:8000", "", True),
        ("10.0.0.1", "localhost", "", False),
        ("testclient", "localhost", "", False),
        ("127.0.0.1", "evil.example", "", False),
        ("127.0.0.1", "", "", False),
        ("127.0.0.1", "localhost", "x-forwarded-for", False),
        ("127.0.0.1", "localhost", "forwarded", False),
        ("127.0.0.1", "localhost", "via", False),
    ],
)
def test_local_requests(peer: str, host: str, field: str, *, allowed: bool) -> None:
    headers = [(b"host", host.encode()), *([(field.encode(), b"1")] if field else [])]
    assert is_local({"type": "http", "client": (peer, 1), "headers": headers}) is allowed


def test_a_peer_without_an_address_is_not_local() -> None:
    assert not is_local({"type": "http", "client": None, "headers": [(b"host", b"localhost")]})


async def test_without_a_token_only_this_machine_is_answered() -> None:
    app = status_app(throttle_for_tests())
    async with client(app) as near, client(app, peer="10.0.0.1") as far:
        assert (await near.get("/")).status_code == 200
        for path in ("/", "/data.json", "/events", "/other"):
            answer = await far.get(path)
            assert answer.status_code == 403
            assert "STATUS_TOKEN" in answer.text
        assert (await far.post("/login", data={"token": ""})).status_code == 405


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (f"Bearer {TOKEN}", 200),
        (f"bearer  {TOKEN}", 200),
        ("Bearer", 401),
        ("Bearer wrong", 401),
        (f"Basic {TOKEN}", 401),
        (f"Bearer {TOKEN}\xff", 401),
    ],
)
async def test_the_token_is_sent_as_bearer(sent: str, status: int) -> None:
    app = status_app(throttle_for_tests(status_token=TOKEN))
    async with client(app, peer="10.0.0.1") as reader:
        answer = await reader.get("/data.json", headers=[(b"authorization", sent.encode("latin-1"))])
    assert answer.status_code == status


async def test_a_login_sets_a_cookie_for_the_page_alone() -> None:
    app = mounted(throttle_for_tests(status_token=TOKEN))
    async with client(app, "https://gpu.example", peer="10.0.0.1") as reader:
        form = await reader.get("/status/")
        assert (form.status_code, 'type="password"' in form.text) == (401, True)
        assert (await reader.post("/status/login", data={"token": "wrong"})).status_code == 401
        entered = await reader.post("/status/login", data={"token": TOKEN})
        assert (entered.status_code, entered.headers["location"]) == (303, "/status/")
        cookie = entered.headers["set-cookie"].lower()
        for part in ("httponly", "path=/status/", "samesite=strict", "secure", f"max-age={SESSION_S}"):
            assert part in cookie
        assert TOKEN not in cookie
        assert (await reader.get("/status/data.json")).status_code == 200
        assert (await reader.post("/status/login", content=b"x" * 5000)).status_code == 413


def test_a_cookie_is_valid_until_its_expiry() -> None:
    access, other, scope = Access(TOKEN), Access(TOKEN + "!"), {"type": "http", "headers": []}
    cookie = access.new_cookie(1000.0)
    assert access.is_allowed(scope, cookie, 1000.0)
    assert access.is_allowed(scope, cookie, 1000.0 + SESSION_S - 1)
    assert not access.is_allowed(scope, cookie, 1000.0 + SESSION_S)
    assert not other.is_allowed(scope, cookie, 1000.0)
    expiry, signature = cookie.split(".")
    for forged in ("", "x", f"{int(expiry) + 9}.{signature}", f"{expiry}.", cookie + "0", "9" * 5000, "é.x"):
        assert not access.is_allowed(scope, forged, 1000.0), forged


@pytest.mark.parametrize("cookie", ["", f"{COOKIE}=", f'{COOKIE}="\\', "=;=;;", "a\x01=b", "a,b=1"])
async def test_a_malformed_cookie_is_no_error(cookie: str) -> None:
    app = status_app(throttle_for_tests(status_token=TOKEN))
    async with client(app) as reader:
        answer = await reader.get("/", headers=[(b"cookie", cookie.encode("latin-1"))])
    assert answer.status_code == 401


# Documents


@pytest.mark.parametrize(
    "path", ["/", "/data.json", "/page.js", "/page.css", "/uplot.js", "/uplot.css", "/x"]
)
async def test_every_answer_forbids_scripts_of_others(path: str) -> None:
    async with client(status_app(throttle_for_tests())) as reader:
        answer = await reader.get(path)
    assert answer.status_code == (404 if path == "/x" else 200)
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == (
        "max-age=86400" if "." in path and path != "/data.json" else "no-store"
    )


async def test_the_document_and_the_page_show_the_same() -> None:
    throttle = throttle_for_tests()
    app = status_app(throttle)
    stepped(throttle, admitted=10)
    async with client(app) as reader:
        answer, html = await reader.get("/data.json"), (await reader.get("/")).text
    document = answer.json()
    assert answer.headers["content-type"] == "application/json"
    assert document["schema"] == 1
    assert document["sentence"] in html
    assert [one["id"] for one in document["sections"]][-1] == "configuration"
    for one in document["sections"]:
        assert f'<section id="{one["id"]}"' in html
    lengths = {len(series["values"]) for plot in document["plots"] for series in plot["series"]}
    assert lengths == {2}
    assert len(answer.content) < 65_536


async def test_all_readers_of_a_step_share_its_document() -> None:
    throttle = throttle_for_tests()
    app = status_app(throttle)
    stepped(throttle)
    taken: list[float] = []
    throttle.snapshot = lambda: taken.append(0.0)  # type: ignore[method-assign,assignment,return-value]
    async with client(app) as reader:
        answers = [await reader.get(path) for path in ("/data.json", "/", "/data.json", "/")]
    assert answers[0].content == answers[2].content
    assert taken == []


@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("POST", 405), ("DELETE", 405)])
async def test_the_page_is_only_read(method: str, status: int) -> None:
    async with client(status_app(throttle_for_tests())) as reader:
        assert (await reader.request(method, "/")).status_code == status
        assert (await reader.head("/events")).status_code == 200


async def test_other_protocols_are_declined() -> None:
    app, sent = status_app(throttle_for_tests()), list[Message]()

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    await app({"type": "websocket"}, receive, send)
    await app({"type": "lifespan"}, receive, send)
    assert [message["type"] for message in sent] == ["websocket.close"]


def fastapi_mount(throttle: ManualThrottle) -> ASGIApp:
    app = FastAPI()
    app.add_middleware(ThrottleMiddleware, throttle=throttle)
    app.mount("/status", status_app(throttle))
    return app


def wrapped(throttle: ManualThrottle) -> ASGIApp:
    return ThrottleMiddleware(mounted(throttle), throttle=throttle)


@pytest.mark.parametrize("attach", [fastapi_mount, wrapped])
async def test_the_page_is_served_while_all_is_rejected(attach: Callable[[ManualThrottle], ASGIApp]) -> None:
    throttle = throttle_for_tests()
    throttle.gpu.utilization_pct = 99.0
    throttle.tick(3)
    async with client(attach(throttle)) as reader:
        assert_shed(await reader.get("/other"))
        assert "no request is admitted" in (await reader.get("/status/")).text
        moved = await reader.get("/status")
        assert moved.status_code == 307
        assert moved.headers["location"].endswith("/status/")


async def test_served_under_a_path_without_a_mount_it_moves_to_the_slash() -> None:
    app = status_app(throttle_for_tests())

    async def under(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "root_path": "/a"}, receive, send)

    async with client(under) as reader:
        moved = await reader.get("/a")
        assert (moved.status_code, moved.headers["location"]) == (307, "/a/")
        assert (await reader.get("/a/data.json")).status_code == 200


# Event streams


class Reader:
    """One reader of the event stream, which ends after some messages."""

    def __init__(self, app: ASGIApp, seen: str = "") -> None:
        self.messages: list[dict[str, Any]] = []
        self.arrived = asyncio.Event()
        self.status = 0
        fields = [(b"host", b"localhost"), *([(b"last-event-id", seen.encode())] if seen else [])]
        scope = {
            "type": "http",
            "method": "GET",
            "path": "/events",
            "client": ("127.0.0.1", 1),
            "headers": fields,
        }
        self._left = asyncio.Event()
        self.task = asyncio.ensure_future(app(scope, self._receive, self._send))

    async def _receive(self) -> Message:
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        self.status = message.get("status", self.status)
        for line in message.get("body", b"").decode().splitlines():
            if line.startswith("data: "):
                self.messages.append(json.loads(line[6:]))
                self.arrived.set()

    async def next(self) -> dict[str, Any]:
        await asyncio.wait_for(self.arrived.wait(), 10.0)
        self.arrived.clear()
        return self.messages[-1]

    async def leave(self) -> None:
        self._left.set()
        await asyncio.wait_for(self.task, 10.0)


async def test_each_step_is_one_message_to_each_reader() -> None:
    throttle = throttle_for_tests()
    app = status_app(throttle)
    stepped(throttle)
    readers = [Reader(app) for _ in range(3)]
    first = [await reader.next() for reader in readers]
    step = first[0]["step"]
    assert [message["step"] for message in first] == [step] * 3
    throttle.clock.advance(5.0)
    await asyncio.to_thread(history_timer(throttle).step)
    assert [(await reader.next())["step"] for reader in readers] == [step + 1] * 3
    assert {len(series["values"]) for plot in first[0]["plots"] for series in plot["series"]} == {1}
    assert "configuration" not in {section["id"] for section in first[0]["sections"]}
    for reader in readers:
        await reader.leave()
    assert [len(reader.messages) for reader in readers] == [2] * 3


async def test_a_reader_that_returns_gets_no_step_twice() -> None:
    throttle = throttle_for_tests()
    app = status_app(throttle)
    stepped(throttle)
    reader = Reader(app)
    step = (await reader.next())["step"]
    await reader.leave()
    again = Reader(app, str(step))
    await asyncio.sleep(0)
    throttle.clock.advance(5.0)
    await asyncio.to_thread(history_timer(throttle).step)
    assert (await again.next())["step"] == step + 1
    await again.leave()
    assert len(again.messages) == 1


async def test_a_stream_ends_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_app, "STREAM_S", 0.02)
    throttle = throttle_for_tests()
    reader = Reader(status_app(throttle))
    await asyncio.wait_for(reader.task, 10.0)
    assert len(reader.messages) == 1


async def test_event_streams_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_app, "MAX_READERS", 1)
    app = status_app(throttle_for_tests())
    reader = Reader(app)
    await reader.next()
    other = Reader(app)
    await other.task
    assert other.status == 503
    await reader.leave()
    third = Reader(app)
    await third.next()
    await third.leave()


# The throttle


async def test_a_failing_section_leaves_the_last_state(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    throttle = throttle_for_tests()
    app = status_app(throttle)
    stepped(throttle)
    async with client(app) as reader:
        before = await reader.get("/data.json")
        monkeypatch.setattr(page_builder, "sentence", lambda *_: 1 / 0)
        with caplog.at_level(logging.WARNING):
            history_timer(throttle).step()
        assert "ZeroDivisionError" in caplog.text
        assert (await reader.get("/data.json")).content == before.content


def test_the_timer_keeps_no_throttle_alive() -> None:
    throttle = throttle_for_tests()
    builder = PageBuilder(throttle)
    history_timer(throttle).add_consumer(builder)
    history = history_timer(throttle).history
    known = weakref.ref(throttle)
    del throttle
    gc.collect()
    assert known() is None
    builder(history)
    assert builder.state is None


def test_the_first_visit_imports_nothing_that_takes_long() -> None:
    script = """
import asyncio, sys
import httpx
from autoglm_throttle.observe import status_app
from autoglm_throttle.testing import FakeGpu, throttle_for_tests

async def main():
    transport = httpx.ASGITransport(status_app(throttle_for_tests(gpu=FakeGpu())))
    known = set(sys.modules)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost/") as client:
        for path in ("/", "/data.json"):
            assert (await client.get(path)).status_code == 200
    print(*sorted(name for name in set(sys.modules) - known if not name.startswith(("httpx", "httpcore"))))

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "anyio._backends" not in done.stdout, done.stdout
