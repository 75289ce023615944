"""What `check` and `info` find in a recording."""

from __future__ import annotations

import base64
import secrets
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.traffic.record import End, Entry, Heading, check, info
from autoglm_throttle.traffic.record.checking import RANDOM_AT_LEAST, _random

HEADING = Heading(
    start="2026-01-01T00:00:00+00:00", library="0.1.0", redaction={"body": "hash", "headers": ["accept"]}
)

PLAIN: dict[str, Any] = {"t_s": 0.0, "id": 0, "method": "GET", "target": "/a", "client": "0123456789abcdef"}


def stored(folder: Path, entries: Sequence[Entry], *more: str, heading: Heading | None = HEADING) -> Path:
    path = folder / "a.jsonl"
    lines = [] if heading is None else [heading.to_line()]
    path.write_text("\n".join([*lines, *(entry.to_line() for entry in entries), *more, ""]))
    return path


def found(folder: Path, **changed: Any) -> list[str]:
    path = stored(folder, [Entry(**PLAIN | changed)])
    findings = check(path)
    assert findings.clean is (not findings.told)
    assert findings.count == len(findings.told) == sum(findings.sorts.values())
    assert findings.entries == 1
    return findings.told


KEY = "Zq7Xw2Kj9Vb4Nm8Tr5Ys"


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"headers": (("authorization", "x"),)}, "headers: authorization says who asks"),
        ({"headers": (("x-api-key", "*"),)}, "headers: x-api-key says who asks"),
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
        ({"body": b"-----BEGIN RSA PRIVATE KEY-----"}, "body: a private key"),
        ({"body": b"\xff AKIAIOSFODNN7EXAMPLE"}, "body: a key with a known prefix"),
        ({"client": "me@example.org"}, "client: is no hash"),
        ({"reason": KEY}, "priority, decision or reason: a long random string"),
    ],
)
def test_what_looks_like_a_secret_is_named_and_not_shown(
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
        {"client": "", "decision": "rejected", "reason": "gpu"},
    ],
)
def test_what_stands_in_every_recording_is_let_pass(changed: dict[str, Any], tmp_path: Path) -> None:
    assert found(tmp_path, **changed) == []


@pytest.mark.parametrize("alphabet", [string.ascii_letters + string.digits, string.hexdigits.lower()[:16]])
def test_random_words_look_random(alphabet: str) -> None:
    words = ["".join(secrets.choice(alphabet) for _ in range(32)) for _ in range(500)]
    assert sum(map(_random, words)) >= 480


@given(st.sampled_from([KEY, "tok_9f8e7d6c5b4a39281706"]), st.integers(0, 5))
def test_a_random_word_is_found_wherever_it_stands(word: str, place: int) -> None:
    import tempfile

    segments = ["a"] * 5
    segments.insert(place, word)
    with tempfile.TemporaryDirectory() as folder:
        told = check(stored(Path(folder), [Entry(**PLAIN | {"target": "/" + "/".join(segments)})])).told
    assert told == ["line 2, target: a long random string"]
    assert len(word) >= RANDOM_AT_LEAST


def test_the_form_is_looked_at(tmp_path: Path) -> None:
    entries = [
        Entry(**PLAIN | {"t_s": 9.0, "id": 1, "ms": 500.0}),
        Entry(**PLAIN | {"t_s": 8.0, "id": 2, "ms": 400.0}),
        Entry(**PLAIN | {"t_s": 8.6, "id": 3, "ms": 0.0}),
        Entry(**PLAIN | {"t_s": 9.0, "id": 3, "ms": 100.0}),
    ]
    findings = check(stored(tmp_path, entries, "broken", heading=None))
    assert findings.told == [
        "line 1, first line: says nothing of when the recording began",
        "line 2, t: ended more than a second before the line above it",
        "line 4, id: is that of an earlier line",
        "line 5: not JSON",
    ]
    assert findings.sorts["cannot be read"] == 1


def test_many_findings_are_counted(tmp_path: Path) -> None:
    entries = [Entry(**PLAIN | {"id": n, "target": f"/{KEY}"}) for n in range(100)]
    findings = check(stored(tmp_path, entries))
    assert (findings.count, len(findings.told)) == (100, 20)
    assert findings.sorts == {"a long random string": 100}


def test_a_recording_is_added_up(tmp_path: Path) -> None:
    entries = [
        Entry(
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
    found = info(stored(tmp_path, entries, End("max_s", 7).to_line()))
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
    odd = Heading(redaction={"a\nb": "c\u00e9", "query": []})
    found = info(stored(tmp_path, [], "broken", heading=odd))
    assert (found.entries, found.rps) == (0, 0.0)
    assert found.lines() == [
        "began      not said, by version not said",
        "requests   0 in 0.0 s: 0.00/s, at most 0/s",
        "clients    0, of a sample of 1",
        "bodies     0 bytes",
        "priority   none",
        "decision   none",
        "status     none",
        "kept a?b   c?",
        "kept query none",
        "end        missing: the recorder was killed, or records still",
        "unreadable 1 lines",
        "  line 2: not JSON",
    ]


def test_bodies_of_a_recording_are_base64(tmp_path: Path) -> None:
    assert base64.b64encode(b"\xff").decode() in Entry(**PLAIN | {"body": b"\xff"}).to_line()
