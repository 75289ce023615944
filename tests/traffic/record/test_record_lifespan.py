"""The life of an app and that of its recording."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from autoglm_throttle import ConfigError, Settings, Throttle, ThrottleMiddleware
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.record import Recorder, RecorderMiddleware, RecorderSettings
from tests.traffic.record.recorded import ask, hello, kept, scope


async def lifespan(app: Any) -> list[dict[str, Any]]:
    inbox = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return inbox.pop(0)

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app({"type": "lifespan"}, receive, send)
    return sent


async def lives(asked: Any, receive: Any, send: Any) -> None:
    if asked["type"] != "lifespan":
        await hello(asked, receive, send)
        return
    for phase in ("startup", "shutdown"):
        await receive()
        await send({"type": f"lifespan.{phase}.complete"})


async def test_the_end_of_the_app_ends_the_recording(tmp_path: Path) -> None:
    recording = Recorder(RecorderSettings(path=tmp_path / "a.jsonl"))
    app = RecorderMiddleware(lives, recording)
    assert len(await lifespan(app)) == 2
    assert recording.counts == (0, 0, "closed")
    assert "end" in (tmp_path / "a.jsonl").read_text().splitlines()[-1]
    await ask(app, scope())
    assert recording.counts.written == 0, "after its end nothing is recorded"
    await lifespan(app)
    assert recording.file == tmp_path / "a-2.jsonl"


async def raises_at_lifespan(asked: Any, receive: Any, send: Any) -> None:
    if asked["type"] != "http":
        raise ValueError("Django can only handle ASGI/HTTP connections")
    await hello(asked, receive, send)


async def returns_at_lifespan(asked: Any, receive: Any, send: Any) -> None:
    if asked["type"] == "http":
        await hello(asked, receive, send)


async def hears_startup(asked: Any, receive: Any, send: Any) -> None:
    if asked["type"] == "lifespan":
        await receive()
    await raises_at_lifespan(asked, receive, send)


@pytest.mark.parametrize("throttled", [False, True])
@pytest.mark.parametrize("app", [raises_at_lifespan, returns_at_lifespan, hears_startup])
async def test_an_app_without_lifespan_is_recorded(app: Any, throttled: bool, tmp_path: Path) -> None:
    recording = Recorder(RecorderSettings(path=tmp_path / "a.jsonl"))
    inner = ThrottleMiddleware(app, throttle=Throttle(Settings(gpu="none"))) if throttled else app
    middleware = RecorderMiddleware(inner, recording)
    with suppress(ValueError):
        await lifespan(middleware)
    await ask(middleware, scope())
    assert len(kept(recording)) == 1


async def test_of_several_apps_the_last_one_ends_the_recording(tmp_path: Path) -> None:
    recording = Recorder(RecorderSettings(path=tmp_path / "a.jsonl"))
    first, second = (RecorderMiddleware(lives, recording) for _ in range(2))
    stop = asyncio.Event()

    async def later(asked: Any, receive: Any, send: Any) -> None:
        await receive()
        await stop.wait()
        await receive()

    second.app = later
    running = asyncio.create_task(lifespan(second))
    await asyncio.sleep(0)
    await lifespan(first)
    await ask(first, scope())
    assert recording.counts.ended == ""
    stop.set()
    await running
    assert recording.counts == (1, 0, "closed")


@pytest.mark.parametrize("path", ["traffic.txt", "/no/such/folder/a.jsonl"])
async def test_a_fault_of_the_settings_fails_the_start(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOGLM_THROTTLE_RECORD_PATH", path)
    middleware = RecorderMiddleware(lives)
    (told,) = await lifespan(middleware)
    assert told["type"] == "lifespan.startup.failed"
    assert "RECORD" in told["message"] or "folder" in told["message"]
    with pytest.raises((ConfigError, TrafficError)):
        await ask(middleware, scope())


def test_a_fault_of_the_settings_is_raised_where_no_server_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOGLM_THROTTLE_RECORD_PATH", "traffic.txt")
    with pytest.raises(ConfigError):
        RecorderMiddleware(hello)
