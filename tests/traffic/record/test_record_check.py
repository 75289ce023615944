"""Findings of `check` and `info` in a recording."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from autoglm_throttle.traffic.record import (
    RecordedRequest,
    RecordingHeader,
    RecordingTrailer,
    check,
    info,
    info_lines,
)

HEADING = RecordingHeader(
    start="2026-01-01T00:00:00+00:00",
    made_by="0.1.0",
    redaction={"body": "hash", "headers": ["accept"]},
)

PLAIN: dict[str, Any] = {"t_s": 0.0, "id": 0, "method": "GET", "target": "/a", "client": "0123456789abcdef"}


def stored(
    folder: Path, entries: Sequence[RecordedRequest], *more: str, heading: RecordingHeader | None = HEADING
) -> Path:
    path = folder / "a.jsonl"
    lines = [] if heading is None else [heading.to_line()]
    path.write_text("\n".join([*lines, *(entry.to_line() for entry in entries), *more, ""]))
    return path


def found(folder: Path, **changed: Any) -> list[str]:
    path = stored(folder, [RecordedRequest(**PLAIN | changed)])
    requests, findings = check(path)
    assert findings.count == len(findings.messages) == sum(findings.kinds.values())
    assert requests == 1
    return findings.messages


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"headers": (("authorization", "x"),)}, "headers: authorization identifies the caller"),
        ({"headers": (("x-api-key", "*"),)}, "headers: x-api-key identifies the caller"),
        ({"headers": (("api-key", "x"),)}, "headers: api-key identifies the caller"),
        ({"headers": (("x-auth-token", "x"),)}, "headers: x-auth-token identifies the caller"),
        ({"client": "me@example.org"}, "client: is no hash"),
    ],
)
def test_data_that_no_recorder_stores_is_named(changed: dict[str, Any], what: str, tmp_path: Path) -> None:
    assert found(tmp_path, **changed) == [f"line 2, {what}"]


@pytest.mark.parametrize(
    "changed",
    [
        {"headers": (("user-agent", "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 Chrome/141.0.0.0"),)},
        {"target": "/v1/chat/completions?*=*&*"},
        {"body": b'{"max_tokens": 5}', "body_sha256": "ab" * 32},
        {"client": "", "decision": "rejected", "reason": "gpu"},
    ],
)
def test_usual_values_are_no_findings(changed: dict[str, Any], tmp_path: Path) -> None:
    assert found(tmp_path, **changed) == []


def test_format_is_checked(tmp_path: Path) -> None:
    entries = [
        RecordedRequest(**PLAIN | {"t_s": 9.0, "id": 1, "ms": 500.0}),
        RecordedRequest(**PLAIN | {"t_s": 8.0, "id": 2, "ms": 400.0}),
        RecordedRequest(**PLAIN | {"t_s": 8.6, "id": 3, "ms": 0.0}),
        RecordedRequest(**PLAIN | {"t_s": 9.0, "id": 3, "ms": 100.0}),
    ]
    _, findings = check(stored(tmp_path, entries, "broken", heading=None))
    assert findings.messages == [
        "line 4, id: is that of an earlier line",
        "line 5: not JSON",
        "line 2, t: ended more than a second before the line above it",
        "line 1, first line: does not state when the recording began",
    ]
    assert findings.kinds["cannot be read"] == 1


def test_the_order_of_arrival_is_one_too(tmp_path: Path) -> None:
    entries = [RecordedRequest(**PLAIN | {"t_s": n / 2, "id": n, "ms": 60_000.0 / (n + 1)}) for n in range(9)]
    assert check(stored(tmp_path, entries))[1].messages == []
    assert check(stored(tmp_path, sorted(entries, key=lambda one: one.t_s + one.ms / 1e3)))[1].messages == []
    assert check(stored(tmp_path, [*entries[1:], entries[0]]))[1].kinds == {
        "ended more than a second before the line above it": 7
    }


FIRST, LINE, LAST = (
    json.loads(line)
    for line in (
        HEADING.to_line(),
        RecordedRequest(**PLAIN).to_line(),
        RecordingTrailer("closed", 0).to_line(),
    )
)
STRANGE = "a field that no recording has"


@pytest.mark.parametrize(
    ("place", "changed", "what"),
    [
        (1, {"note": "x"}, STRANGE),
        (2, {"authorization": "x"}, STRANGE),
        (3, {"x": "y"}, STRANGE),
        (1, {"redaction": {"cookie": "x"}}, STRANGE),
        (1, {"redaction": "x"}, ""),
    ],
)
def test_unread_fields_are_checked(place: int, changed: dict[str, Any], what: str, tmp_path: Path) -> None:
    lines = [FIRST, LINE, LAST]
    lines[place - 1] = lines[place - 1] | changed
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert check(path)[1].messages == ([f"line {place}, line: {what}"] if what else [])


def test_duplicate_fields_are_checked(tmp_path: Path) -> None:
    path = stored(tmp_path, [], RecordedRequest(**PLAIN).to_line().replace('"id":0', '"id":0,"reason":"pw"'))
    assert check(path)[1].messages == ["line 2, line: the same field twice"]
    path = stored(tmp_path, [], RecordedRequest(**PLAIN).to_line() + "]", "[]", "[" * 100_000)
    assert set(check(path)[1].kinds) == {"cannot be read"}


def test_many_findings_are_counted(tmp_path: Path) -> None:
    entries = [RecordedRequest(**PLAIN | {"id": n, "client": "x"}) for n in range(100)]
    _, findings = check(stored(tmp_path, entries))
    assert (findings.count, len(findings.messages)) == (100, 20)
    assert findings.kinds == {"is no hash": 100}


def test_a_recording_is_added_up(tmp_path: Path) -> None:
    entries = [
        RecordedRequest(
            **PLAIN
            | {
                "t_s": 1.0 + n * 0.25,
                "id": n,
                "client": f"{n % 3:016x}",
                "priority": "low" if n % 2 else "high",
                "decision": "admitted" if n else "limited",
                "reason": "ok" if n else "user",
                "status": 200 if n else 429,
                "body_len": 10,
            }
        )
        for n in range(9)
    ]
    found = info(stored(tmp_path, entries, RecordingTrailer("max_s", 7).to_line()))
    assert (found["requests"], found["clients"], found["bodies_bytes"], found["busiest"]) == (9, 3, 90, 4)
    assert (found["first_s"], found["span_s"], found["rps"]) == (1.0, 2.0, 4.0)
    assert list(info_lines(found)) == [
        "began      2026-01-01T00:00:00+00:00, by version 0.1.0",
        "requests   9 in 2.0 s: 4.00/s, at most 4/s",
        "clients    3, of a sample of 1",
        "bodies     90 bytes",
        "priority   high 5, low 4",
        "decision   admitted ok 8, limited user 1",
        "status     200 8, 429 1",
        "kept body  hash",
        "kept headers accept",
        "end        max_s, 7 dropped",
    ]


def test_an_empty_recording_is_added_up(tmp_path: Path) -> None:
    odd = RecordingHeader(redaction={"a\nb": "c\u00e9", "query": []})
    found = info(stored(tmp_path, [], "broken", heading=odd))
    assert (found["requests"], found["rps"]) == (0, 0.0)
    assert list(info_lines(found)) == [
        "began      not stated, by version not stated",
        "requests   0 in 0.0 s: 0.00/s, at most 0/s",
        "clients    0, of a sample of 1",
        "bodies     0 bytes",
        "priority   none",
        "decision   none",
        "status     none",
        "kept a?b   c?",
        "kept query none",
        "end        missing: the recorder was killed or is still recording",
        "unreadable 1 lines",
        "  line 2: not JSON",
    ]


def test_bodies_of_a_recording_are_base64(tmp_path: Path) -> None:
    assert base64.b64encode(b"\xff").decode() in RecordedRequest(**PLAIN | {"body": b"\xff"}).to_line()
