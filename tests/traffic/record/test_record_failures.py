"""What fails costs the recording, and never a request."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from autoglm_throttle.traffic.record import Recorder, RecorderMiddleware
from autoglm_throttle.traffic.record.store import Store
from tests.traffic.record.recorded import ask, hello, scope


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


async def test_without_a_thread_requests_go_on_and_nothing_leaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    abandoned = []
    abandon = Store.abandon

    def counted(store: Store) -> None:
        abandoned.append(store)
        abandon(store)

    monkeypatch.setattr(Store, "abandon", counted)
    monkeypatch.setattr(threading.Thread, "start", refused)
    recorder = Recorder(tmp_path / "a.jsonl")
    app = RecorderMiddleware(hello, recorder)
    for _ in range(3):
        assert len(await ask(app, scope())) == 2
    assert recorder.counts == (0, 0, "failed")
    assert names(tmp_path) == ["a.jsonl"]
    assert len(abandoned) == 1
    (line,) = caplog.records
    assert "can't start new thread; requests go on" in line.getMessage()


async def test_a_path_that_cannot_be_costs_no_request(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app = RecorderMiddleware(hello, Recorder(f"{tmp_path}/a\0.jsonl"))
    assert len(await ask(app, scope())) == len(await ask(app, scope())) == 2
    assert len(caplog.records) == 1


async def test_a_folder_that_cannot_be_written_costs_no_request(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    recorder = Recorder(folder / "a.jsonl")
    folder.rmdir()
    app = RecorderMiddleware(hello, recorder)
    for _ in range(3):
        assert len(await ask(app, scope())) == 2
    assert len(caplog.records) == 1
    recorder.close()
