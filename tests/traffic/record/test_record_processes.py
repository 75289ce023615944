"""Recordings of real processes: killed, out of disk, forked, ended without a word, and real servers."""

from __future__ import annotations

import itertools
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from autoglm_throttle.traffic.record import RecordedRequest, check, info, info_lines, open_recording
from tests.servers import server as servers
from tests.servers.server import ROOT, Server, cases
from tests.traffic.record.recording_process import ENOUGH

PATIENCE_S = 60.0
RECORDING = "tests.traffic.record.recording_process"


@contextmanager
def process(*command: str) -> Iterator[subprocess.Popen[str]]:
    started = subprocess.Popen(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-m", *command],  # one forks beside a thread
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield started
    finally:
        started.kill()
        started.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_a_killed_process_leaves_a_file_that_can_be_read(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    with process(RECORDING, str(path)) as recording:
        assert recording.stdout is not None
        assert select.select([recording.stdout], [], [], PATIENCE_S)[0]
        written = path.stat().st_size
        while path.stat().st_size == written:  # so that it dies while it writes
            time.sleep(0.001)
        os.kill(recording.pid, signal.SIGKILL)
        recording.wait(PATIENCE_S)
    recording_read = open_recording(path)
    entries = list(recording_read.entries())
    assert len(entries) >= ENOUGH, "as the process had counted"
    assert [entry.target for entry in entries] == [f"/v1/{n}" for n in range(len(entries))]
    assert recording_read.problems.count <= 1
    assert recording_read.end is None
    assert any("killed" in line for line in info_lines(info(path)))


@pytest.mark.slow
def test_full_disk_ends_the_recording_only(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with process(RECORDING, str(path), "100000") as recording:
        out, errors = recording.communicate(timeout=PATIENCE_S)
    assert recording.returncode == 0
    match = re.search(r"answered (\d+), failed", out)
    assert match is not None, out
    assert len(errors.splitlines()) == 1
    assert "cannot be written: File too large; requests go on" in errors
    assert path.stat().st_size == 100_000
    found = open_recording(path)
    assert 200 < sum(1 for _ in found.entries()) < int(match[1])
    assert found.problems.count == 1


@pytest.mark.slow
def test_forked_child_writes_its_own_complete_file(tmp_path: Path) -> None:
    with process("tests.traffic.record.forking_process", str(tmp_path / "a.jsonl")) as forking:
        _, errors = forking.communicate(timeout=PATIENCE_S)
    assert (forking.returncode, errors) == (0, "")
    parent, child = (open_recording(tmp_path / name) for name in ("a.jsonl", "a-2.jsonl"))
    assert targets(parent.entries()) == [f"/{name}/{n}" for name in ("before", "after") for n in range(5)]
    assert targets(child.entries()) == [f"/child/{n}" for n in range(5)]
    assert parent.end is not None, "the end of the process ends the recording"
    assert child.end is not None


def targets(entries: Iterator[RecordedRequest]) -> list[str]:
    return [entry.target for entry in entries]


SERVERS = {
    "uvicorn": ("-m", "uvicorn", "--port", "{port}", "--log-level", "warning"),
    "uvicorn, two workers": ("-m", "uvicorn", "--port", "{port}", "--workers", "2", "--log-level", "warning"),
    "granian": ("-m", "granian", "--interface", "asgi", "--port", "{port}", "--log-level", "warning"),
}


@pytest.mark.server
@pytest.mark.parametrize("kind", cases({kind: kind for kind in SERVERS}, "uvicorn"))
def test_a_real_server_is_recorded(
    kind: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path_factory.mktemp("settings") / "throttle.toml"
    file.write_text('record_mask_paths = "/users/{id}"\n')
    monkeypatch.setitem(servers.ENVIRONMENT, "AUTOGLM_THROTTLE_RECORD_PATH", str(tmp_path / "a.jsonl.gz"))
    monkeypatch.setitem(servers.ENVIRONMENT, "AUTOGLM_THROTTLE_CONFIG_FILE", str(file))
    server = Server(*SERVERS[kind], "tests.traffic.record.recorded_service:app")
    pids = set()
    try:
        deadline = time.monotonic() + PATIENCE_S
        for asked in itertools.count(1):
            path = "/users/Zq7Xw2Kj9Vb4/%C3%A9?token=Zq7Xw2Kj9Vb4"
            reply = server.get(path, {"Authorization": "Bearer Zq7Xw2Kj9Vb4", "User-Agent": "probe/1"})
            pids.add(json.loads(reply.body)["pid"])
            if asked >= 20 and (len(pids) == 2 or "workers" not in kind or time.monotonic() > deadline):
                break
        seconds, _ = server.end(PATIENCE_S)
        assert seconds < PATIENCE_S
    finally:
        server.stop()
    files = sorted(tmp_path.iterdir())
    assert [path.name for path in files] == ["a-2.jsonl.gz", "a.jsonl.gz"][-len(pids) :]
    entries = []
    for stored in files:
        recording = open_recording(stored)
        entries += list(recording.entries())
        assert recording.end is not None
        assert recording.end.reason == "closed"
        assert check(stored)[1].messages == []
    users = [entry for entry in entries if entry.target.startswith("/users/")]
    assert len(users) == asked
    for entry in users:
        assert entry.target == "/users/*/%C3%A9?*=*"
        assert entry.headers == (("user-agent", "probe/1"),)
        assert (entry.status, entry.decision, entry.priority) == (200, "admitted", "mid")
        assert entry.ttfb_ms is not None
        assert 0 < entry.ttfb_ms <= entry.ms
    assert "Zq7X" not in repr(entries)
