"""Findings of `check` and `info` in a recording."""

from __future__ import annotations

import base64
import gzip
import json
import secrets
import string
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.traffic.record import RecordedRequest, RecordingHeader, RecordingTrailer, check, info
from autoglm_throttle.traffic.record.recording_check import RANDOM_AT_LEAST, _random

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
    findings = check(path)
    assert findings.clean is (not findings.messages)
    assert findings.count == len(findings.messages) == sum(findings.problem_kinds.values())
    assert findings.entries == 1
    return findings.messages


KEY = "Zq7Xw2Kj9Vb4Nm8Tr5Ys"


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"headers": (("authorization", "x"),)}, "headers: authorization identifies the caller"),
        ({"headers": (("x-api-key", "*"),)}, "headers: x-api-key identifies the caller"),
        ({"headers": (("accept", "Bearer abcdefgh1"),)}, "headers: a bearer token"),
        ({"headers": (("accept", "basic dXNlcjpwdw=="),)}, "headers: basic credentials"),
        ({"headers": (("x-a", KEY),)}, "headers: a long random string"),
        ({"target": f"/users/{KEY}"}, "target: a long random string"),
        ({"target": f"/a?b={KEY.replace('X', '%58')}"}, "target: a long random string"),
        ({"target": "/a?b=bearer+abcdefgh1"}, "target: a bearer token"),
        ({"target": "/a/eyJhbGciOiJ9.eyJzdWIi.x"}, "target: a JSON web token"),
        ({"target": "/a/sk-abcdefgh"}, "target: a key with a known prefix"),
        ({"target": "/a?password=1"}, "target: a parameter with the name of a secret"),
        ({"target": "/a?b=1&api_key=1"}, "target: a parameter with the name of a secret"),
        ({"target": "/users/me%40example.org"}, "target: an e-mail address"),
        ({"target": "/a?u=redis://me:pw@h"}, "target: a password in a URL"),
        ({"body": b'{"password": "1"}'}, "body: a field with the name of a secret"),
        ({"headers": (("api-key", "x"),)}, "headers: api-key identifies the caller"),
        ({"headers": (("x-auth-token", "x"),)}, "headers: x-auth-token identifies the caller"),
        *(
            ({"target": target}, "target: a parameter with the name of a secret")
            for target in (
                "/?token=hunter2",
                "/?a=b&sid=abc",
                "/?pwd=x",
                "/cb#access_token=hunter2",
                "/?db[password]=1",
            )
        ),
        ({"target": "/a;jsessionid=SECRET12"}, "target: a parameter with the name of a secret"),
        ({"target": "/?page=Bearer%2520abcdefghijk"}, "target: a bearer token"),
        *(
            ({"body": body}, "body: a field with the name of a secret")
            for body in (
                b'--b\r\nContent-Disposition: form-data; name="password"\r\n\r\nhunter2\r\n--b--',
                b"passw%6frd=hunter2",
                b"user=me&password=hunter2",
                gzip.compress(b"password=hunter2"),
                zlib.compress(b"password=hunter2"),
                '{"password":"hunter2"}'.encode("utf-16"),
                b'{"user_password":"hunter2"}',
                b'{"session": "hunter2"}',
            )
        ),
        ({"body": b'{"k":"aB3dE5gH7jK9mN1pQ3sT5vW7"}'}, "body: a long random string"),
        ({"body": b"k=aB3dE5gH7jK%39mN1pQ3sT5vW7"}, "body: a long random string"),
        ({"body": b'{"e":"bob@example.com"}'}, "body: an e-mail address"),
        ({"body": b"-----BEGIN RSA PRIVATE KEY-----"}, "body: a private key"),
        ({"body": b"\xff AKIAIOSFODNN7EXAMPLE"}, "body: a key with a known prefix"),
        ({"client": "me@example.org"}, "client: is no hash"),
        ({"reason": KEY}, "priority, decision or reason: a long random string"),
    ],
)
def test_suspected_secret_is_named_and_not_printed(
    changed: dict[str, Any], what: str, tmp_path: Path
) -> None:
    told = found(tmp_path, **changed)
    assert told == [f"line 2, {what}"]


@pytest.mark.parametrize(
    "changed",
    [
        {"headers": (("user-agent", "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 Chrome/141.0.0.0"),)},
        {"headers": (("content-type", "multipart/form-data; boundary=----x"),)},
        {"headers": (("accept", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"),)},
        {"target": "/v1/chat/completions?*=*&*"},
        {"target": "/a?password=*"},
        {"target": "/users/1b4e28ba-2fa1-11d2-883f-0016d3cca427/orders/12345678901234567890"},
        {"target": "/a-very-long-name-of-a-thing-in-2026/another_long_name_of_it"},
        {"body": b'{"prompt": "what is a password"}', "body_sha256": "ab" * 32},
        {"body": b'{"max_tokens": 5, "stop_token": "</s>", "context_tokens": 7, "signatures": 1}'},
        {"body": b"\x1f\x8b broken"},
        {"body": b"xyz" * 20_000},
        {"target": "/a;*/b?token=*&*"},
        {"client": "", "decision": "rejected", "reason": "gpu"},
    ],
)
def test_usual_values_are_no_findings(changed: dict[str, Any], tmp_path: Path) -> None:
    assert found(tmp_path, **changed) == []


@pytest.mark.parametrize("alphabet", [string.ascii_letters + string.digits, string.hexdigits.lower()[:16]])
def test_random_strings_are_recognized(alphabet: str) -> None:
    words = ["".join(secrets.choice(alphabet) for _ in range(32)) for _ in range(500)]
    assert sum(map(_random, words)) >= 480


@given(st.sampled_from([KEY, "tok_9f8e7d6c5b4a39281706"]), st.integers(0, 5))
def test_random_string_is_found_in_every_field(word: str, place: int) -> None:
    import tempfile

    segments = ["a"] * 5
    segments.insert(place, word)
    with tempfile.TemporaryDirectory() as folder:
        told = check(
            stored(Path(folder), [RecordedRequest(**PLAIN | {"target": "/" + "/".join(segments)})])
        ).messages
    assert told == ["line 2, target: a long random string"]
    assert len(word) >= RANDOM_AT_LEAST


def test_format_is_checked(tmp_path: Path) -> None:
    entries = [
        RecordedRequest(**PLAIN | {"t_s": 9.0, "id": 1, "ms": 500.0}),
        RecordedRequest(**PLAIN | {"t_s": 8.0, "id": 2, "ms": 400.0}),
        RecordedRequest(**PLAIN | {"t_s": 8.6, "id": 3, "ms": 0.0}),
        RecordedRequest(**PLAIN | {"t_s": 9.0, "id": 3, "ms": 100.0}),
    ]
    findings = check(stored(tmp_path, entries, "broken", heading=None))
    assert findings.messages == [
        "line 1, first line: does not state when the recording began",
        "line 4, id: is that of an earlier line",
        "line 2, t: ended more than a second before the line above it",
        "line 5: not JSON",
    ]
    assert findings.problem_kinds["cannot be read"] == 1


def test_the_order_of_arrival_is_one_too(tmp_path: Path) -> None:
    entries = [RecordedRequest(**PLAIN | {"t_s": n / 2, "id": n, "ms": 60_000.0 / (n + 1)}) for n in range(9)]
    assert check(stored(tmp_path, entries)).messages == []
    assert check(stored(tmp_path, sorted(entries, key=lambda one: one.t_s + one.ms / 1e3))).messages == []
    assert check(stored(tmp_path, [*entries[1:], entries[0]])).problem_kinds == {
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
        (1, {"library": "Bearer abcdefgh1"}, "a bearer token"),
        (3, {"end": "Bearer abcdefgh1"}, "a bearer token"),
        (1, {"redaction": {"paths": [f"/{KEY}/{{id}}"]}}, "a long random string"),
    ],
)
def test_unread_fields_are_checked(place: int, changed: dict[str, Any], what: str, tmp_path: Path) -> None:
    lines = [FIRST, LINE, LAST]
    lines[place - 1] = lines[place - 1] | changed
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert check(path).messages == ([f"line {place}, line: {what}"] if what else [])


def test_duplicate_fields_are_checked(tmp_path: Path) -> None:
    path = stored(tmp_path, [], RecordedRequest(**PLAIN).to_line().replace('"id":0', '"id":0,"reason":"pw"'))
    assert check(path).messages == ["line 2, line: the same field twice"]
    path = stored(tmp_path, [], RecordedRequest(**PLAIN).to_line() + "]", "[]", "[" * 100_000)
    assert set(check(path).problem_kinds) == {"cannot be read"}


def test_many_findings_are_counted(tmp_path: Path) -> None:
    entries = [RecordedRequest(**PLAIN | {"id": n, "target": f"/{KEY}"}) for n in range(100)]
    findings = check(stored(tmp_path, entries))
    assert (findings.count, len(findings.messages)) == (100, 20)
    assert findings.problem_kinds == {"a long random string": 100}


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
    assert (found.entries, found.clients, found.bodies_bytes, found.busiest) == (9, 3, 90, 4)
    assert (found.first_s, found.last_s, found.span_s, found.rps) == (1.0, 3.0, 2.0, 4.0)
    assert found.lines() == [
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
    assert (found.entries, found.rps) == (0, 0.0)
    assert found.lines() == [
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
