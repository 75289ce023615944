"""Failures end the recording and never affect a request."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from autoglm_throttle.settings.groups.observe import RecordBody
from autoglm_throttle.traffic.record import Recorder, RecorderMiddleware, RecorderSettings, open_recording
from autoglm_throttle.traffic.record import recorder as recorders
from autoglm_throttle.traffic.record import writer as writers
from autoglm_throttle.traffic.record.writer import RecordingFile
from tests.traffic.record.recorded import ask, hello, scope

PATIENCE_S = 60.0


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


async def test_without_a_thread_requests_go_on_and_nothing_leaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    abandoned = []
    abandon = RecordingFile.abandon

    def counted(store: RecordingFile) -> None:
        abandoned.append(store)
        abandon(store)

    monkeypatch.setattr(RecordingFile, "abandon", counted)
    monkeypatch.setattr(threading.Thread, "start", refused)
    recorder = Recorder(RecorderSettings(path=tmp_path / "a.jsonl"))
    app = RecorderMiddleware(hello, recorder)
    for _ in range(3):
        assert len(await ask(app, scope())) == 2
    assert recorder.counts == (0, 0, "failed")
    assert names(tmp_path) == ["a.jsonl"]
    assert len(abandoned) == 1
    (line,) = caplog.records
    assert "no thread can be started; requests go on" in line.getMessage()


async def test_a_path_that_cannot_be_costs_no_request(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app = RecorderMiddleware(hello, Recorder(RecorderSettings(path=tmp_path / f"{'a' * 300}.jsonl")))
    assert len(await ask(app, scope())) == len(await ask(app, scope())) == 2
    assert len(caplog.records) == 1


async def test_a_folder_that_cannot_be_written_costs_no_request(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    recorder = Recorder(RecorderSettings(path=folder / "a.jsonl"))
    folder.rmdir()
    app = RecorderMiddleware(hello, recorder)
    for _ in range(3):
        assert len(await ask(app, scope())) == 2
    assert len(caplog.records) == 1
    recorder.close()


@pytest.fixture
def hung(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, threading.Event]]:
    """A disk that takes nothing: an event for its first wait, and one that mends it."""
    waits, mended = threading.Event(), threading.Event()
    flush = RecordingFile.flush

    def slow(store: RecordingFile, *mode: int) -> None:
        if threading.current_thread() is not threading.main_thread():
            waits.set()
            mended.wait(PATIENCE_S)
        flush(store, *mode)

    monkeypatch.setattr(RecordingFile, "flush", slow)
    yield waits, mended
    mended.set()


def test_queue_for_a_hung_disk_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hung: tuple[threading.Event, threading.Event]
) -> None:
    monkeypatch.setattr(writers, "QUEUE_BYTES", 40 * 5000)
    monkeypatch.setattr(writers, "WRITE_BYTES", 20_000)
    waits, mended = hung
    recorder = Recorder(RecorderSettings(path=tmp_path / "a.jsonl", body=RecordBody.FULL))
    writer = recorder.writer()
    assert writer is not None
    asked = ("GET", "/" + "a" * 999, [("accept", "b" * 1000)])
    for serial in range(100):
        if serial == 20:
            writer.worker.wake()
            assert waits.wait(PATIENCE_S), "what was taken from the queue and not written counts, too"
        writer.put((0.0, serial, asked, (1976, "", b"c" * 1976), ("", "", "", ""), (200, 1.0, 1.0)))
    assert recorder.counts.dropped == 60
    mended.set()
    recorder.close()
    assert recorder.counts == (40, 60, "closed")
    assert writer.put_bytes == writer.written_bytes == 40 * 5000


async def test_a_hung_disk_holds_up_the_shutdown_and_not_the_event_loop(
    tmp_path: Path, hung: tuple[threading.Event, threading.Event]
) -> None:
    async def lives(asked: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "lifespan.shutdown.complete"})

    async def shutdown() -> dict[str, str]:
        return {"type": "lifespan.shutdown"}

    sent: list[str] = []

    async def send(message: Any) -> None:
        sent.append(message["type"])

    waits, mended = hung
    recorder = Recorder(RecorderSettings(path=tmp_path / "a.jsonl"))
    ending = asyncio.ensure_future(RecorderMiddleware(lives, recorder)({"type": "lifespan"}, shutdown, send))
    assert await asyncio.to_thread(waits.wait, PATIENCE_S)
    for _ in range(10):
        await asyncio.sleep(0)
    assert sent == []
    mended.set()
    await ending
    assert sent == ["lifespan.shutdown.complete"]
    assert recorder.counts.ended == "closed"


@pytest.mark.parametrize(("sample", "dropped"), [(1.0, 5), (0.5, 2)])
async def test_requests_in_flight_at_the_end_are_dropped(tmp_path: Path, sample: float, dropped: int) -> None:
    go = asyncio.Event()

    async def waits(asked: Any, receive: Any, send: Any) -> None:
        await go.wait()
        await hello(asked, receive, send)

    recorder = Recorder(RecorderSettings(path=tmp_path / "a.jsonl", sample=sample))
    app = RecorderMiddleware(waits, recorder)
    asking = [asyncio.ensure_future(ask(app, scope())) for _ in range(5)]
    await asyncio.sleep(0)
    writer = recorder.writer()
    assert writer is not None
    recorder.close()
    go.set()
    await asyncio.gather(*asking)
    assert recorder.counts == (0, dropped, "closed")
    assert (len(writer.queued), writer.in_flight) == (0, 0)
    recording = open_recording(tmp_path / "a.jsonl")
    assert list(recording.entries()) == []
    assert recording.end is not None
    assert recording.end.dropped == dropped


async def test_an_app_that_starts_while_another_ends_is_recorded(
    tmp_path: Path, hung: tuple[threading.Event, threading.Event]
) -> None:
    recorder = Recorder(RecorderSettings(path=tmp_path / "a.jsonl"))
    recorder.attach("first")
    ending = asyncio.ensure_future(recorder.detach("first"))
    await asyncio.sleep(0)
    recorder.attach("second")
    hung[1].set()
    await ending
    await ask(RecorderMiddleware(hello, recorder), scope())
    recorder.close()
    assert (recorder.file, recorder.counts.written) == (tmp_path / "a-2.jsonl", 1)


async def test_in_virtual_time_the_end_is_waited_for_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hung: tuple[threading.Event, threading.Event]
) -> None:
    slept: list[float] = []

    async def at_once(seconds: float) -> None:
        slept.append(seconds)
        hung[1].set()

    recorder = Recorder(RecorderSettings(path=tmp_path / "a.jsonl"))
    recorder.attach("app")
    monkeypatch.setattr(recorders, "POLL_INTERVAL_S", 1000.0)
    monkeypatch.setattr(anyio, "sleep", at_once)
    await recorder.detach("app")
    assert slept == [1000.0]
    assert recorder.counts.ended == "closed"


async def test_an_app_that_ends_without_a_recording(tmp_path: Path) -> None:
    recorder = Recorder(RecorderSettings(path=tmp_path / "a.jsonl"))
    await recorder.detach("app")
    assert (recorder.file, recorder.counts.ended) == (None, "closed")
