"""A recording: file, limits, end, full queue and full disk."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import stat
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from autoglm_throttle.settings import Settings
from autoglm_throttle.settings.groups.callers import CallerSettings
from autoglm_throttle.testing import ManualClock
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.record import Recorder, RecorderMiddleware, RecorderSettings, open_recording
from autoglm_throttle.traffic.record import writer as writers
from autoglm_throttle.traffic.record.writer import RecordingFile
from tests.admission.forked import forked
from tests.traffic.record.recorded import ask, hello, kept, scope, wait_until_done

ITEM: writers.Item = (
    0.0,
    0,
    ("GET", "/", [("accept", "*/*")]),
    (0, "", None),
    ("0123456789abcdef", "", "", ""),
    (200, 1.0, 1.0),
)

PATIENCE_S = 60.0


@pytest.fixture
def recorders() -> Iterator[list[Recorder]]:
    made: list[Recorder] = []
    yield made
    for recorder in made:
        recorder.close()


def write(recorder: Recorder, count: int) -> None:
    for serial in range(count):
        writer = recorder.writer()
        if writer is not None:
            writer.put((ITEM[0], serial, *ITEM[2:]))


def ended(recorder: Recorder) -> str:
    """Why the recording ended, once its thread is through."""
    writer = recorder._writer
    assert writer is not None
    wait_until_done(writer)
    return recorder.counts.ended


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_complete_recording_line_by_line(name: str, tmp_path: Path) -> None:
    recorder = Recorder(
        RecorderSettings(path=tmp_path / name, sample=0.5, query=("page",), mask_paths=("/a/{b}",))
    )
    assert (recorder.file, recorder.counts) == (None, (0, 0, ""))
    recorder.start()
    write(recorder, 1000)
    recorder.close()
    recorder.close()
    recording = open_recording(tmp_path / name)
    assert [entry.id for entry in recording.entries()] == list(range(1000))
    assert recorder.counts == (1000, 0, "closed")
    assert recording.end is not None
    assert (recording.end.reason, recording.end.dropped) == ("closed", 0)
    assert recording.header.sample == 0.5
    assert recording.header.start.endswith("+00:00")
    assert recording.header.redaction == {
        "headers": ["content-type", "content-length", "accept", "user-agent", "x-priority"],
        "query": ["page"],
        "paths": ["/a/{b}"],
        "body": "hash",
        "key": "random",
    }
    assert recorder.writer() is None


def test_only_its_owner_may_read_it(tmp_path: Path, recorders: list[Recorder]) -> None:
    before = os.umask(0)
    try:
        recorders.append(Recorder(RecorderSettings(path=tmp_path / "a.jsonl")))
        recorders[0].start()
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.jsonl").stat().st_mode) == 0o600


def test_a_file_that_is_there_is_left_alone(tmp_path: Path, recorders: list[Recorder]) -> None:
    (tmp_path / "a.b.jsonl.gz").write_bytes(b"precious")
    for name in ("a.b-2.jsonl.gz", "a.b-3.jsonl.gz"):
        recorders.append(Recorder(RecorderSettings(path=tmp_path / "a.b.jsonl.gz")))
        recorders[-1].start()
        assert recorders[-1].file == tmp_path / name
    assert (tmp_path / "a.b.jsonl.gz").read_bytes() == b"precious"


@pytest.mark.parametrize("dangling", [False, True])
def test_no_link_is_followed(dangling: bool, tmp_path: Path, recorders: list[Recorder]) -> None:
    target = tmp_path / "target"
    if not dangling:
        target.write_bytes(b"precious")
    (tmp_path / "a.jsonl").symlink_to(target)
    recorders.append(Recorder(RecorderSettings(path=tmp_path / "a.jsonl")))
    recorders[0].start()
    assert recorders[0].file == tmp_path / "a-2.jsonl"
    assert target.exists() is not dangling
    assert dangling or target.read_bytes() == b"precious"


def test_there_is_an_end_to_siblings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(writers, "MAX_SAME_NAME", 2)
    for name in ("a.jsonl", "a-2.jsonl"):
        (tmp_path / name).touch()
    recorder = Recorder(RecorderSettings(path=tmp_path / "a.jsonl"))
    recorder.start()
    assert recorder.counts == (0, 0, "failed")
    assert recorder.writer() is None
    (line,) = caplog.records
    assert "2 recordings of this name" in line.getMessage()


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_at_its_size_it_ends(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "autoglm_throttle")
    recorder = Recorder(RecorderSettings(path=tmp_path / name, max_bytes=8192))
    write(recorder, 4000)
    assert ended(recorder) == "max_bytes"
    size = (tmp_path / name).stat().st_size
    assert 8192 - 1200 < size <= 8192
    recording = open_recording(tmp_path / name)
    entries = list(recording.entries())
    assert recording.end is not None
    assert (recording.end.reason, recording.problems.count) == ("max_bytes", 0)
    assert recorder.counts == (len(entries), 4000 - len(entries), "max_bytes")
    assert recording.end.dropped == 4000 - len(entries)
    assert len(entries) > (300 if name.endswith(".gz") else 25)
    assert recorder.writer() is None
    recorder.close()
    assert recorder.counts.ended == "max_bytes"
    assert [r.levelname for r in caplog.records] == ["INFO", "WARNING"]
    recorder.start()
    assert recorder.writer() is None, "a limit ends it for good"


def test_after_its_time_it_ends(tmp_path: Path) -> None:
    recorder = Recorder(RecorderSettings(path=tmp_path / "a.jsonl", max_s=10.0))
    writer = recorder.writer()
    assert writer is not None
    for serial, t_s in enumerate((9.9, 10.0, 10.1, 1.0)):
        writer.put((t_s, serial, *ITEM[2:]))
    assert ended(recorder) == "max_s"
    recording = open_recording(tmp_path / "a.jsonl")
    assert [entry.t_s for entry in recording.entries()] == [9.9, 10.0]
    assert recorder.counts == (2, 2, "max_s")


def test_its_time_passes_without_requests(tmp_path: Path) -> None:
    recorder = Recorder(RecorderSettings(path=tmp_path / "a.jsonl").model_copy(update={"max_s": 0.05}))
    recorder.start()
    assert ended(recorder) == "max_s"


def test_a_clock_that_stands_still_ends_nothing(tmp_path: Path, recorders: list[Recorder]) -> None:
    clock = ManualClock()
    recorders.append(
        Recorder(RecorderSettings(path=tmp_path / "a.jsonl").model_copy(update={"max_s": 0.001}), clock=clock)
    )
    write(recorders[0], 1)
    assert recorders[0].counts.ended == ""
    clock.advance(1.0)
    assert ended(recorders[0]) == "max_s"


def test_full_queue_drops_and_counts_without_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked, begun = threading.Event(), threading.Event()
    add = RecordingFile.add

    def slow(store: RecordingFile, line: str) -> bool:
        if threading.current_thread() is not threading.main_thread():
            begun.set()
            blocked.wait(PATIENCE_S)
        return add(store, line)

    monkeypatch.setattr(RecordingFile, "add", slow)
    recorder = Recorder(RecorderSettings(path=tmp_path / "a.jsonl"))
    write(recorder, writers.QUEUE // 2 + 1)
    assert begun.wait(PATIENCE_S), "half a queue is reason enough to begin"
    write(recorder, writers.QUEUE)
    counts = recorder.counts
    assert writers.QUEUE * 0.48 < counts.dropped <= writers.QUEUE // 2 + 1, "but for what is being written"
    blocked.set()
    recorder.close()
    counts = recorder.counts
    assert counts.written + counts.dropped == writers.QUEUE // 2 + 1 + writers.QUEUE
    recording = open_recording(tmp_path / "a.jsonl")
    assert sum(1 for _ in recording.entries()) == counts.written
    assert recording.end is not None
    assert recording.end.dropped == counts.dropped


def full_disk() -> int:
    """A descriptor that accepts no data; on macOS a pipe without a reader, since it has no full device."""
    if Path("/dev/full").exists():
        return os.open("/dev/full", os.O_WRONLY)
    reading, writing = os.pipe()
    os.close(reading)
    return writing


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
async def test_a_full_disk_costs_the_recording_and_no_request(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = Recorder(RecorderSettings(path=tmp_path / name))
    app = RecorderMiddleware(hello, recorder)
    await ask(app, scope())
    writer = recorder.writer()
    assert writer is not None
    full = full_disk()
    os.dup2(full, writer.store._fd)
    os.close(full)
    for _ in range(3):
        assert len(await ask(app, scope())) == 2
    assert ended(recorder) == "failed"
    assert len(await ask(app, scope())) == 2
    recorder.close()
    (line,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert line.levelname == "ERROR"
    assert re.search("cannot be written: (No space left|Broken pipe)", line.getMessage())
    assert open_recording(tmp_path / name).header.start


def test_exception_in_the_thread_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = Recorder(RecorderSettings(path=tmp_path / "a.jsonl"))
    recorder.start()
    monkeypatch.setattr(RecordingFile, "flush", lambda *_: 1 / 0)
    write(recorder, 3)
    assert ended(recorder) == "failed"
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "ZeroDivisionError" in caplog.text


def test_a_heading_that_cannot_be_written_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(store: RecordingFile) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RecordingFile, "flush", full)
    recorder = Recorder(RecorderSettings(path=tmp_path / "a.jsonl"))
    recorder.start()
    assert recorder.counts.ended == "failed"
    assert "No space left" in caplog.text


def test_it_begins_once_however_many_threads_ask(tmp_path: Path, recorders: list[Recorder]) -> None:
    recorder = Recorder(RecorderSettings(path=tmp_path / "a.jsonl"))
    recorders.append(recorder)
    gate = threading.Barrier(8)

    def begin() -> None:
        gate.wait()
        recorder.writer()

    threads = [threading.Thread(target=begin) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_after_a_fork_the_child_writes_a_file_of_its_own(tmp_path: Path) -> None:
    recorder = Recorder(RecorderSettings(path=tmp_path / "a.jsonl"))
    app = RecorderMiddleware(hello, recorder)
    asyncio.run(ask(app, scope("/parent")))

    def check() -> None:
        assert (recorder.file, recorder.counts) == (None, (0, 0, ""))
        asyncio.run(ask(app, scope("/child")))
        assert recorder.file == tmp_path / "a-2.jsonl"
        (entry,) = kept(recorder)
        assert (entry.target, entry.id) == ("/child", 0)

    with recorder._lock:  # as another thread of the parent may hold it
        forked(check)
    assert [entry.target for entry in kept(recorder)] == ["/parent"]
    assert recorder.file == tmp_path / "a.jsonl"


@pytest.mark.parametrize(
    ("callers", "client_header"),
    [(CallerSettings(identity="header:x-client"), None), (None, "x-client"), (None, "X-Client")],
)
def test_header_that_identifies_callers_is_rejected(
    callers: CallerSettings | None, client_header: str | None, tmp_path: Path
) -> None:
    settings = RecorderSettings(path=tmp_path / "a.jsonl", headers=("X-Client",))
    with pytest.raises(TrafficError, match="x-client identifies the caller"):
        Recorder(settings, callers, client_header=client_header)
    assert not list(tmp_path.iterdir())


def test_recorder_without_path_is_rejected() -> None:
    with pytest.raises(TrafficError, match="names no file"):
        Recorder(RecorderSettings())


def test_missing_folder_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(TrafficError, match="is no folder"):
        Recorder(RecorderSettings(path=tmp_path / "none" / "a.jsonl"))


def test_the_settings_make_it(tmp_path: Path) -> None:
    assert Recorder.from_settings(Settings()) is None
    assert Recorder.from_env({}) is None
    recorder = Recorder.from_settings(
        Settings(
            record_path=tmp_path / "a.jsonl",
            record_sample="50%",
            record_max_bytes="1MiB",
            record_max_s="5m",
            record_body="full",
            record_headers="x-model",
            record_query="page",
            record_mask_paths="/users/{id}",
            identity="header:x-tenant",
            priority_header="x-class",
            key_secret="0123456789abcdef",
        )
    )
    assert recorder is not None
    settings = recorder.settings
    assert (recorder.settings.path, settings.sample, settings.body) == (tmp_path / "a.jsonl", 0.5, "full")
    assert (settings.max_bytes, settings.max_s) == (2**20, 300.0)
    assert recorder.clients.key_kind == "secret"
    redaction = recorder.redaction
    assert (redaction.headers[-2:], redaction.query) == (("x-class", "x-model"), ("page",))
    assert redaction.paths == ("/users/{id}",)
    other = Recorder(
        RecorderSettings(path=tmp_path / "b.jsonl"), CallerSettings(key_secret=SecretStr("0123456789abcdef"))
    )
    peer = ("192.0.2.7", 1)
    assert recorder.clients.identify("", peer, ()) == other.clients.identify("", peer, ())


def test_the_environment_makes_it(tmp_path: Path) -> None:
    recorder = Recorder.from_env({"AUTOGLM_THROTTLE_RECORD_PATH": str(tmp_path / "a.jsonl")})
    assert recorder is not None
    assert recorder.settings.path == tmp_path / "a.jsonl"
    assert recorder.clients.key_kind == "random"


def test_recording_is_not_loaded_with_the_package() -> None:
    import subprocess

    code = "import autoglm_throttle, sys; print([n for n in sys.modules if 'traffic' in n])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
