"""Reading of complete and damaged recordings."""

from __future__ import annotations

import gzip
import json
import random
import tempfile
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.record import RecordedRequest, RecordingHeader, RecordingTrailer, open_recording
from autoglm_throttle.traffic.record.recorded_request import MAX_LINE_BYTES
from autoglm_throttle.traffic.record.recording_reader import MAX_PROBLEMS_SHOWN

HEADING = RecordingHeader(
    start="2026-01-01T00:00:00+00:00", made_by="0.1.0", redaction={"body": "hash"}, sample=0.5
)


def entry(t_s: float, number: int = 0, ms: float = 0.0) -> RecordedRequest:
    return RecordedRequest(t_s=t_s, id=number, method="GET", target="/", ms=ms)


def stored(path: Path, lines: Iterable[str], end: str = "\n") -> Path:
    text = "\n".join(lines) + end
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.fixture(params=["a.jsonl", "a.jsonl.gz"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / str(request.param)


def test_a_whole_recording(path: Path) -> None:
    entries = [entry(n / 10, n) for n in range(5)]
    stored(
        path,
        [HEADING.to_line(), *(one.to_line() for one in entries), RecordingTrailer("closed", 3).to_line()],
    )
    recording = open_recording(str(path))
    assert recording.header == HEADING
    assert list(recording.entries()) == entries
    assert list(recording.entries()) == entries
    assert recording.end == RecordingTrailer("closed", 3)
    assert recording.problems.count == 0
    assert [number for number, _, one in recording.lines() if one is not None] == [2, 3, 4, 5, 6]


@given(st.lists(st.tuples(st.floats(0, 200), st.floats(0, 100_000)), max_size=60))
@settings(deadline=None)
def test_entries_come_in_order_of_arrival(times: list[tuple[float, float]]) -> None:
    asked = [entry(round(t, 6), n, ms=round(ms, 3)) for n, (t, ms) in enumerate(times)]
    asked.sort(key=lambda one: one.t_s + one.ms / 1e3)
    with tempfile.TemporaryDirectory() as folder:
        path = stored(Path(folder) / "a.jsonl", [HEADING.to_line(), *(one.to_line() for one in asked)])
        found = list(open_recording(path).entries())
    assert sorted(found, key=lambda one: one.id) == sorted(asked, key=lambda one: one.id)
    assert all(before.t_s <= after.t_s for before, after in pairwise(found))


def test_no_more_is_held_back_than_the_disorder_asks_for(path: Path) -> None:
    times = [0.0, 2.0, 1.0, 3.0, 4.0, 5.0]
    stored(path, [HEADING.to_line(), *(entry(t, n).to_line() for n, t in enumerate(times)), "garbage"])
    recording = open_recording(path)
    entries = recording.entries()
    assert [next(entries).t_s for _ in range(4)] == [0.0, 1.0, 2.0, 3.0]
    assert not recording.problems.messages, "the end was not read yet"


def test_entry_minutes_out_of_order_is_a_problem(path: Path) -> None:
    stored(
        path, [HEADING.to_line(), entry(500.0).to_line(), entry(379.0).to_line(), entry(381.0, 1).to_line()]
    )
    recording = open_recording(path)
    assert [one.t_s for one in recording.entries()] == [381.0, 500.0]
    assert recording.problems.messages == ["line 3: more than 120 s out of order"]


def test_truncated_line_is_reported_and_the_rest_is_read(path: Path) -> None:
    lines = [HEADING.to_line(), entry(1.0).to_line(), entry(2.0).to_line()[:-9]]
    recording = open_recording(stored(path, lines, end=""))
    assert [one.t_s for one in recording.entries()] == [1.0]
    assert recording.problems.messages == ["line 3: not JSON; the file ends in it"]
    assert recording.end is None


def test_a_cut_off_package_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    lines = [entry(float(n), n, ms=random.random()).to_line() for n in range(2000)]
    stored(path, [HEADING.to_line(), *lines])
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    recording = open_recording(path)
    found = list(recording.entries())
    assert 500 < len(found) < 2000
    assert found == [RecordedRequest.from_line(line) for line in lines[: len(found)]]
    assert any("ends in the middle" in fault for fault in recording.problems.messages)


def test_problems_are_listed_by_line_and_the_rest_is_counted(path: Path) -> None:
    odd = entry(1.0).to_line().replace('"v":1', '"v":7')
    long = json.dumps({"v": 1, "x": "y" * MAX_LINE_BYTES})
    lines = [HEADING.to_line(), "secret", odd, long, "[]", entry(2.0).to_line(), *["x"] * 40]
    recording = open_recording(stored(path, lines))
    assert [one.t_s for one in recording.entries()] == [2.0]
    assert recording.problems.messages[:4] == [
        "line 2: not JSON",
        "line 3: its version is not 1",
        f"line 4: longer than {MAX_LINE_BYTES} bytes",
        "line 5: not a JSON object",
    ]
    assert (recording.problems.count, len(recording.problems.messages)) == (44, MAX_PROBLEMS_SHOWN)


def test_without_a_heading_entries_are_read(path: Path) -> None:
    recording = open_recording(stored(path, [entry(1.0).to_line(), entry(0.5).to_line()]))
    assert recording.header == RecordingHeader()
    assert [one.t_s for one in recording.entries()] == [0.5, 1.0]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "not JSON"),
        ('{"log":{}}\n', "no recording"),
        ('{"v":1,"kind":"something-else"}\n', "no recording"),
        ('{"v":2,"kind":"autoglm-throttle-traffic"}\n', "another version"),
        ("x" * (MAX_LINE_BYTES + 5), "not JSON"),
    ],
)
def test_file_that_is_no_recording_is_rejected(text: str, why: str, path: Path) -> None:
    with pytest.raises(TrafficError, match=why):
        open_recording(stored(path, [text], end=""))


def test_unreadable_file_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(TrafficError, match="cannot be read"):
        open_recording(tmp_path / "none.jsonl")
    with pytest.raises(TrafficError, match="cannot be read"):
        open_recording(tmp_path)


@pytest.mark.parametrize(
    "line",
    [
        '{"v":1,"kind":"autoglm-throttle-traffic","start":5,"library":"a\\nb","redaction":[],"sample":"x"}',
        '{"v":1,"kind":"autoglm-throttle-traffic","sample":2}',
        '{"v":1,"kind":"autoglm-throttle-traffic","sample":NaN}'.replace("NaN", "1e999"),
    ],
)
def test_invalid_header_values_are_ignored(line: str, path: Path) -> None:
    assert open_recording(stored(path, [line])).header == RecordingHeader()


def test_invalid_trailer_is_ignored(path: Path) -> None:
    recording = open_recording(stored(path, [HEADING.to_line(), '{"v":1,"end":"closed","dropped":-1}']))
    assert list(recording.entries()) == []
    assert recording.end == RecordingTrailer("closed", 0)
