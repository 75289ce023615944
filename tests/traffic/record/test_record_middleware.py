"""The middleware records requests without changing them."""

from __future__ import annotations

import asyncio
import hashlib
import time
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from autoglm_throttle import Settings, Throttle, ThrottleMiddleware
from autoglm_throttle.settings.groups.callers import CallerSettings
from autoglm_throttle.testing import ManualClock
from autoglm_throttle.traffic.record import RecordedRequest, Recorder, RecorderMiddleware, RecorderSettings
from autoglm_throttle.types import Clock
from autoglm_throttle.types.identity import CallerHasher
from tests.traffic.record.recorded import ask, hello, kept, one, scope

SECRET = b"0123456789abcdef"


def recorder(
    folder: Path, *, clock: Clock = time.monotonic, client_header: str | None = None, **how: Any
) -> Recorder:
    callers = CallerSettings(key_secret=SecretStr(SECRET.decode()))
    settings = RecorderSettings(path=folder / "a.jsonl", **how)
    return Recorder(settings, callers, clock=clock, client_header=client_header)


async def test_a_request_and_its_answer(tmp_path: Path) -> None:
    clock = ManualClock()

    async def slow(asked: Any, receive: Any, send: Any) -> None:
        clock.advance(0.25)
        await receive()
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b"", "more_body": True})
        clock.advance(0.5)
        await send({"type": "http.response.body", "body": b"a", "more_body": True})
        clock.advance(1.0)
        await send({"type": "http.response.body", "body": b""})
        clock.advance(5.0)

    recording = recorder(tmp_path, clock=clock)
    recording.start()
    clock.advance(3.0)
    entry = await one(recording, scope(query=b"a=b"), [b"{", b"}"], slow)
    assert entry == RecordedRequest(
        t_s=3.0,
        id=0,
        method="POST",
        target="/v1/predict?*=*",
        headers=(("content-type", "application/json"), ("user-agent", "curl/8.5")),
        body_len=1,
        client=CallerHasher(SECRET).hash("address", "192.0.2.7"),
        status=201,
        ms=1750.0,
        ttfb_ms=750.0,
    )


@pytest.mark.parametrize(
    ("mode", "body", "expected"),
    [
        ("hash", [b"ab", b"c"], (3, hashlib.sha256(b"abc").hexdigest(), None)),
        ("none", [b"ab", b"c"], (3, "", None)),
        ("full", [b"ab", b"c"], (3, hashlib.sha256(b"abc").hexdigest(), b"abc")),
        ("hash", [b""], (0, "", None)),
        ("full", [b""], (0, "", None)),
        ("full", [b"x" * 65_536], (65_536, hashlib.sha256(b"x" * 65_536).hexdigest(), b"x" * 65_536)),
        ("full", [b"x" * 65_536, b"y"], (65_537, hashlib.sha256(b"x" * 65_536 + b"y").hexdigest(), None)),
        ("full", [b"x" * 70_000, b"y"], (70_001, hashlib.sha256(b"x" * 70_000 + b"y").hexdigest(), None)),
    ],
)
async def test_bodies(
    mode: Any, body: list[bytes], expected: tuple[int, str, bytes | None], tmp_path: Path
) -> None:
    entry = await one(recorder(tmp_path, body=mode), scope(), body)
    assert (entry.body_len, entry.body_sha256, entry.body) == expected


@pytest.mark.parametrize(
    ("announced", "length"), [(b"12", 12), (b"1", 2), (b"-5", 2), (b"9" * 20, 2), (None, 2)]
)
async def test_of_a_body_that_was_not_read_the_announced_length(
    announced: bytes | None, length: int, tmp_path: Path
) -> None:
    async def half(asked: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 413, "headers": []})
        await send({"type": "http.response.body"})

    headers = [] if announced is None else [(b"content-length", announced)]
    entry = await one(recorder(tmp_path), scope(headers=headers), [b"ab", b"c"], half)
    assert (entry.body_len, entry.body_sha256) == (length, "")


async def test_a_client_that_left_had_no_answer(tmp_path: Path) -> None:
    async def hears(asked: Any, receive: Any, send: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        await hello(asked, lambda: asyncio.sleep(0, {"type": "http.request"}), send)

    recording = recorder(tmp_path)
    await ask(RecorderMiddleware(hears, recording), scope(), [b"a"], left=True)
    (entry,) = kept(recording)
    assert (entry.status, entry.ttfb_ms) == (0, None)


@pytest.mark.parametrize("started", [False, True])
async def test_an_app_that_raises(started: bool, tmp_path: Path) -> None:
    async def raises(asked: Any, receive: Any, send: Any) -> None:
        if started:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        raise LookupError

    recording = recorder(tmp_path)
    with pytest.raises(LookupError):
        await ask(RecorderMiddleware(raises, recording), scope())
    (entry,) = kept(recording)
    assert entry.status == (0 if started else 500)


async def test_a_cancelled_request_had_no_answer(tmp_path: Path) -> None:
    async def hangs(asked: Any, receive: Any, send: Any) -> None:
        await asyncio.Event().wait()

    recording = recorder(tmp_path)
    task = asyncio.create_task(ask(RecorderMiddleware(hangs, recording), scope()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    (entry,) = kept(recording)
    assert entry.status == 0


async def test_an_app_that_answers_nothing(tmp_path: Path) -> None:
    async def silent(asked: Any, receive: Any, send: Any) -> None:
        return

    assert (await one(recorder(tmp_path), scope(), app=silent)).status == 0


@pytest.mark.parametrize("kind", ["http.response.pathsend", "http.response.zerocopysend"])
async def test_an_answer_from_a_file(kind: str, tmp_path: Path) -> None:
    async def files(asked: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})
        await send({"type": kind, "path": "/x"})

    entry = await one(recorder(tmp_path), scope(), app=files)
    assert entry.status == 200


async def test_messages_pass_unchanged(tmp_path: Path) -> None:
    recording = recorder(tmp_path)
    assert await ask(RecorderMiddleware(hello, recording), scope()) == await ask(hello, scope())
    recording.close()


async def test_decision_of_the_throttle_is_recorded(tmp_path: Path) -> None:
    throttle = Throttle(
        Settings(
            user_limit="1/minute",
            gpu="none",
            key_secret=SECRET.decode(),
            identity="header:x-key",
            exempt_paths="/health",
            priority_header_trust="any",
        )
    )
    recording = recorder(tmp_path)
    app = RecorderMiddleware(ThrottleMiddleware(hello, throttle=throttle), recording)
    headers = [(b"x-key", b"me"), (b"x-priority", b"high")]
    for path in ("/a", "/a", "/health"):
        await ask(app, scope(path, headers=headers))
    first, second, third = kept(recording)
    me = CallerHasher(SECRET).hash("key", "me")
    assert (first.client, first.priority, first.decision, first.reason) == (me, "high", "admitted", "ok")
    assert (second.client, second.priority, second.decision, second.reason) == (me, "high", "limited", "user")
    assert (second.status, second.body_sha256) == (429, "")
    assert (third.client, third.priority) == (CallerHasher(SECRET).hash("address", "192.0.2.7"), "")
    assert (third.decision, third.reason) == ("exempt", "ok")


async def test_the_header_that_a_throttle_knows_callers_by_is_left_out(tmp_path: Path) -> None:
    throttle = Throttle(Settings(identity="header:x-user", gpu="none", exempt_paths="/health"))
    recording = recorder(tmp_path, headers=["x-user"])
    app = RecorderMiddleware(ThrottleMiddleware(hello, throttle=throttle), recording)
    for path in ("/health", "/a"):
        await ask(app, scope(path, headers=[(b"x-user", b"me@example.org")]))
    assert [entry.headers for entry in kept(recording)] == [(), ()]
    assert "x-user" not in (tmp_path / "a.jsonl").read_text()


async def test_an_app_may_name_things_as_it_likes(tmp_path: Path) -> None:
    class Odd:
        def __init__(self) -> None:
            self.app = self
            self.throttle: dict[str, str] = {}

        async def __call__(self, asked: Any, receive: Any, send: Any) -> None:
            await hello(asked, receive, send)

    assert (await one(recorder(tmp_path), scope(), app=Odd())).status == 200


async def test_identity_header_is_omitted_for_a_hidden_throttle(tmp_path: Path) -> None:
    throttled = ThrottleMiddleware(
        hello, throttle=Throttle(Settings(identity="header:x-user", gpu="none", exempt_paths="/health"))
    )

    async def hides(asked: Any, receive: Any, send: Any) -> None:
        await throttled(asked, receive, send)

    recording = recorder(tmp_path, headers=["x-user"])
    for path in ("/health", "/a"):
        await ask(RecorderMiddleware(hides, recording), scope(path, headers=[(b"x-user", b"me")]))
    assert [entry.headers for entry in kept(recording)] == [(), ()]


async def test_rejection_answered_by_a_fallback_is_degraded(tmp_path: Path) -> None:
    settings = Settings(user_limit="1/minute", gpu="none")
    throttled = ThrottleMiddleware(hello, throttle=Throttle(settings))

    async def replaced(asked: Any, receive: Any, send: Any) -> None:
        async def other(message: Any) -> None:
            if message["type"] == "http.response.start" and message["status"] == 429:
                message = {**message, "status": 200, "headers": [(b"X-Degraded", b"static")]}
            await send(message)

        await throttled(asked, receive, other)

    recording = recorder(tmp_path)
    app = RecorderMiddleware(replaced, recording)
    await ask(app, scope())
    await ask(app, scope())
    assert [entry.decision for entry in kept(recording)] == ["admitted", "degraded"]


async def test_degraded_mark_of_the_app_is_recorded(tmp_path: Path) -> None:
    async def less(asked: Any, receive: Any, send: Any) -> None:
        async def other(message: Any) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [(b"X-Degraded", b"stale")]}
            await send(message)

        await hello(asked, receive, other)

    recording = recorder(tmp_path)
    throttled = ThrottleMiddleware(less, throttle=Throttle(Settings(gpu="none")))
    await ask(RecorderMiddleware(throttled, recording), scope())
    assert [entry.decision for entry in kept(recording)] == ["degraded"]


async def test_strictest_of_several_throttles_is_recorded(tmp_path: Path) -> None:
    inner = ThrottleMiddleware(hello, throttle=Throttle(Settings(user_limit="1/minute", gpu="none")))
    outer = ThrottleMiddleware(inner, throttle=Throttle(Settings(gpu="none")))
    recording = recorder(tmp_path)
    app = RecorderMiddleware(outer, recording)
    await ask(app, scope())
    await ask(app, scope())
    assert [entry.decision for entry in kept(recording)] == ["admitted", "limited"]


@pytest.mark.parametrize(
    ("value", "client"),
    [
        (b"00112233445566ff", "00112233445566ff"),
        (b"a name", CallerHasher(SECRET).hash("client", "a name")),
        (b"00112233445566FF", CallerHasher(SECRET).hash("client", "00112233445566FF")),
    ],
)
async def test_a_client_that_is_stated(value: bytes, client: str, tmp_path: Path) -> None:
    headers = [(b"x-client", value)]
    entry = await one(recorder(tmp_path, client_header="X-Client"), scope(headers=headers))
    assert entry.client == client
    assert entry.headers == ()


async def test_a_client_that_is_not_stated_or_has_no_address(tmp_path: Path) -> None:
    entry = await one(recorder(tmp_path, client_header="x-client"), scope(client=None))
    assert entry.client == CallerHasher(SECRET).hash("address", "unix")


async def test_without_a_secret_client_hashes_are_per_recording(tmp_path: Path) -> None:
    seen = {
        (await one(Recorder(RecorderSettings(path=tmp_path / "a.jsonl")), scope())).client for _ in range(2)
    }
    assert len(seen) == 2


async def test_a_client_is_recorded_wholly_or_not_at_all(tmp_path: Path) -> None:
    recording = recorder(tmp_path, sample=0.3)
    app = RecorderMiddleware(hello, recording)
    for _ in range(2):
        for n in range(200):
            await ask(app, scope(client=(f"198.51.100.{n}", 1)))
    counts: dict[str, int] = {}
    for entry in kept(recording):
        counts[entry.client] = counts.get(entry.client, 0) + 1
        assert int(entry.client[:8], 16) / 2**32 < 0.3
    assert set(counts.values()) == {2}
    assert 30 < len(counts) < 90


async def test_with_a_sample_of_nothing_nothing_is_recorded(tmp_path: Path) -> None:
    recording = recorder(tmp_path, sample=0.0)
    await ask(RecorderMiddleware(hello, recording), scope())
    assert kept(recording) == []


async def test_a_router_that_changes_the_scope_changes_no_record(tmp_path: Path) -> None:
    async def routes(asked: Any, receive: Any, send: Any) -> None:
        asked["path"], asked["root_path"], asked["raw_path"] = "/other", "/x", b"/other"
        await hello(asked, receive, send)

    assert (await one(recorder(tmp_path), scope("/api/a"), app=routes)).target == "/api/a"


@pytest.mark.parametrize("broken", [{"headers": 5}, {"method": None}, {"path": None, "raw_path": None}])
async def test_a_malformed_scope_costs_the_record_and_not_the_request(
    broken: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recording = recorder(tmp_path)
    app = RecorderMiddleware(hello, recording)
    for _ in range(2):
        assert len(await ask(app, scope() | broken)) == 2
    assert kept(recording) == []
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "a request could not be recorded"
    ]


@pytest.mark.parametrize("kind", ["websocket", "other"])
async def test_other_connections_pass(kind: str, tmp_path: Path) -> None:
    seen = []

    async def app(asked: Any, receive: Any, send: Any) -> None:
        seen.append((asked, receive, send))

    recording = recorder(tmp_path)
    call: tuple[Any, Any, Any] = ({"type": kind}, object(), object())
    await RecorderMiddleware(app, recording)(*call)
    assert seen == [call]
    assert recording.file is None


async def test_without_a_path_everything_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AUTOGLM_THROTTLE_RECORD_PATH", raising=False)
    seen = []

    async def app(asked: Any, receive: Any, send: Any) -> None:
        seen.append((asked, receive, send))

    middleware = RecorderMiddleware(app)
    assert middleware.recorder is None
    for kind in ("http", "lifespan", "websocket"):
        call: tuple[Any, Any, Any] = ({"type": kind}, object(), object())
        await middleware(*call)
        assert seen.pop() == call


async def test_inner_middleware_does_not_change_the_record(tmp_path: Path) -> None:
    async def overrides(asked: Any, receive: Any, send: Any) -> None:
        asked["method"] = "DELETE"
        asked["headers"][:] = [(b"content-length", b"7"), (b"x-client", b"another")]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body"})

    headers = [(b"content-length", b"12"), (b"x-client", b"00112233445566ff")]
    entry = await one(recorder(tmp_path, client_header="x-client"), scope(headers=headers), app=overrides)
    assert (entry.method, entry.headers) == ("POST", (("content-length", "12"),))
    assert (entry.client, entry.body_len) == ("00112233445566ff", 12)


async def test_messages_of_other_kinds_pass(tmp_path: Path) -> None:
    async def talks(asked: Any, receive: Any, send: Any) -> None:
        assert (await receive())["type"] == "http.response.debug"
        await send({"type": "http.response.early_hint", "links": []})
        await send({"type": "http.response.start", "status": 200, "headers": [], "trailers": True})
        await send({"type": "http.response.body", "body": b"a"})
        await send({"type": "http.response.trailers", "headers": []})

    sent = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.response.debug"}

    async def send(message: Any) -> None:
        sent.append(message["type"].rpartition(".")[2])

    recording = recorder(tmp_path)
    await RecorderMiddleware(talks, recording)(scope(), receive, send)
    (entry,) = kept(recording)
    assert entry.status == 200
    assert sent == ["early_hint", "start", "body", "trailers"]


async def test_a_body_after_the_end_is_passed_and_recorded_once(tmp_path: Path) -> None:
    async def twice(asked: Any, receive: Any, send: Any) -> None:
        await hello(asked, receive, send)
        await send({"type": "http.response.body", "body": b"more"})

    recording = recorder(tmp_path)
    assert len(await ask(RecorderMiddleware(twice, recording), scope())) == 3
    assert len(kept(recording)) == 1
