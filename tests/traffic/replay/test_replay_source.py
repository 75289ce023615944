"""From a file of any form to a load."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.plan import PriorityMix
from autoglm_throttle.traffic.record import RecordedRequest, RecordingHeader
from autoglm_throttle.traffic.replay import ReplayOptions, Selection, open_replay, times_of
from autoglm_throttle.traffic.trace import HEADER

ROWS = [
    "2024-05-10 00:00:01.0000000,10,3",
    "2024-05-10 00:00:02.5000000,20,0",
    "2024-05-10 00:00:04.0000000,10,3",
]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text("\r\n".join([HEADER, *ROWS]))
    return path


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    entries = [
        RecordedRequest(
            t_s=3.0, id=1, method="POST", target="/b", status=200, ms=4000.0, body=b"x", body_len=1
        ),
        RecordedRequest(t_s=1.0, id=0, method="GET", target="/a", status=200, ms=9000.0, client="00" * 8),
    ]
    path = tmp_path / "recording.jsonl"
    lines = [
        RecordingHeader(start="2024-01-01T00:00:00+00:00").to_line(),
        *(one.to_line() for one in entries),
        "oh no",
    ]
    path.write_text("\n".join(lines))
    return path


def test_a_trace_becomes_requests_with_its_tokens(trace: Path) -> None:
    made = open_replay(
        trace, Selection(speed=3.0, loops=2), ReplayOptions(mix=PriorityMix(clients=4), target="/v1/generate")
    )
    plan = made.load.plan
    assert list(plan.offsets) == pytest.approx([0.0, 0.5, 1.0, 1.5, 2.0, 2.5])
    bodies = [json.loads(made.load.requests[kind].body) for kind in plan.kinds]
    assert [(body["context_tokens"], body["tokens"]) for body in bodies] == [(10, 3), (20, 1), (10, 3)] * 2
    assert made.load.requests[0].target == "/v1/generate"
    assert made.recorded is None
    assert made.notes == ()


def test_a_part_of_a_trace_begins_with_its_first_request(trace: Path) -> None:
    plan = open_replay(trace, Selection(from_s=1.0)).load.plan
    assert list(plan.offsets) == [0.0, 1.5]
    with pytest.raises(TrafficError, match="nothing to replay"):
        open_replay(trace, Selection(from_s=99.0))


def test_malformed_lines_of_a_trace_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "t.csv.gz"
    rows = [f"2024-05-10 00:{n // 60:02}:{n % 60:02},1,1" for n in range(200)]
    path.write_bytes(gzip.compress("\n".join([HEADER, *rows, "what?"]).encode()))
    made = open_replay(path)
    assert len(made.load.plan) == 200
    assert made.notes == ("1 malformed lines were left out",)


def test_recording_is_replayed_in_order_with_its_problems(recording: Path) -> None:
    made = open_replay(recording)
    assert list(made.load.plan.offsets) == [0.0, 2.0]
    assert [made.load.requests[kind].target for kind in made.load.plan.kinds] == ["/a", "/b"]
    assert made.notes == ("line 4: not JSON; the file ends in it",)


@pytest.fixture
def gor(tmp_path: Path) -> Path:
    """A file of GoReplay whose requests are not in order of time."""
    path = tmp_path / "other"
    end = "\n\U0001f435\U0001f648\U0001f649\n"
    blocks = (
        f"1 {n} {n * 10**9} 0\nPOST /{n} HTTP/1.1\r\nContent-Length: 1\r\n\r\n{n}{end}" for n in (5, 2, 9)
    )
    path.write_text("".join(blocks), newline="")
    return path


def test_file_of_goreplay_is_replayed_in_order_of_time(gor: Path) -> None:
    made = open_replay(gor)
    assert list(made.load.plan.offsets) == [0.0, 3.0, 7.0]
    requests = [made.load.requests[kind] for kind in made.load.plan.kinds]
    assert [(request.target, request.body) for request in requests] == [
        ("/2", b"2"),
        ("/5", b"5"),
        ("/9", b"9"),
    ]
    assert list(times_of(gor)) == [0.0, 3.0, 7.0]


def test_times_are_those_of_the_file_from_the_first_on(trace: Path, recording: Path, tmp_path: Path) -> None:
    assert list(times_of(trace)) == [0.0, 1.5, 3.0]
    assert list(times_of(recording)) == [0.0, 2.0]
    empty = tmp_path / "empty.jsonl"
    empty.write_text(RecordingHeader().to_line() + "\n")
    with pytest.raises(TrafficError, match="no request in it"):
        times_of(empty)


def test_unreadable_files_are_reported(tmp_path: Path) -> None:
    with pytest.raises(TrafficError, match="cannot be read"):
        open_replay(tmp_path / "nowhere")
    broken = tmp_path / "broken.gz"
    broken.write_bytes(b"no gzip")
    with pytest.raises(TrafficError, match="cannot be read"):
        times_of(broken)
