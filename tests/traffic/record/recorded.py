"""Sends requests to a recorded app and reads the file."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from autoglm_throttle.traffic.record import RecordedRequest, Recorder, RecorderMiddleware, open_recording
from autoglm_throttle.traffic.record.writer import Writer

Message = dict[str, Any]

PATIENCE_S = 60.0


def scope(path: str = "/v1/predict", query: bytes = b"", **more: Any) -> dict[str, Any]:
    """The scope that a server builds for a request."""
    return {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": query,
        "headers": [(b"content-type", b"application/json"), (b"user-agent", b"curl/8.5")],
        "client": ("192.0.2.7", 4000),
    } | more


async def hello(asked: Any, receive: Any, send: Any) -> None:
    """Read the body, and answer."""
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})


async def ask(
    app: Any, asked: dict[str, Any], body: Iterable[bytes] = (b"{}",), left: bool = False
) -> list[Message]:
    """One request; the client may leave after its body, before it is all there."""
    parts = list(body)
    inbox: list[Message] = [
        {"type": "http.request", "body": part, "more_body": left or part is not parts[-1]} for part in parts
    ]
    sent: list[Message] = []

    async def receive() -> Message:
        return inbox.pop(0) if inbox else {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    await app(asked, receive, send)
    return sent


async def one(
    recorder: Recorder, asked: dict[str, Any], body: Iterable[bytes] = (b"{}",), app: Any = hello
) -> RecordedRequest:
    """Record one request with a new recorder and return the entry."""
    await ask(RecorderMiddleware(app, recorder), asked, body)
    (entry,) = kept(recorder)
    return entry


def kept(recorder: Recorder) -> list[RecordedRequest]:
    """Close the recorder and read its file."""
    recorder.close()
    assert recorder.file is not None
    recording = open_recording(recorder.file)
    entries = list(recording.entries())
    assert not recording.problems.messages
    return entries


def wait_until_done(writer: Writer) -> None:
    """Wait until the thread of a recording has ended by itself."""
    deadline_s = time.monotonic() + PATIENCE_S
    pause = threading.Event()
    while writer.worker.is_alive:
        writer.worker.wake()
        assert time.monotonic() < deadline_s
        pause.wait(0.001)


def plain(path: Path) -> bytes:
    """The bytes of a file, unpacked."""
    stored = path.read_bytes()
    return gzip.decompress(stored) if path.suffix == ".gz" else stored
