"""HAR documents."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from autoglm_throttle.traffic.convert import har
from autoglm_throttle.traffic.convert.parsed_request import ImportProblems, ParsedRequest
from autoglm_throttle.traffic.record import RecordedRequest

BROWSER = """\ufeff{
  "log": {
    "version": "1.2",
    "creator": {"name": "a browser", "version": "1"},
    "pages": [{"id": "page_1", "entries": [1, 2]}],
    "entries": [
      {
        "startedDateTime": "2024-02-29T23:59:59.123456+01:00",
        "time": 12.5,
        "request": {"method": "POST", "url": "https://example.org/api?q=%20#top",
          "httpVersion": "HTTP/2", "headers": [{"name": "Content-Type", "value": "text/plain"}],
          "postData": {"mimeType": "text/plain", "text": "h\\u00e9"}, "bodySize": 3},
        "response": {"status": 201, "content": {"text": "{[,\\"]"}}
      },
      {"startedDateTime": "2024-02-29T22:59:59Z", "request": {"method": "GET", "url": "http://h"}}
    ]
  }
}
"""


def read(text: str | bytes) -> tuple[list[ParsedRequest], list[str]]:
    faults = ImportProblems()
    stored = io.BytesIO(text.encode() if isinstance(text, str) else text)
    return list(har.read(stored, faults)), faults.lines()


def test_a_document_of_a_browser_is_read() -> None:
    found, faults = read(BROWSER)
    assert faults == []
    first, second = found
    assert (first.method, first.target, first.body) == ("POST", "/api?q=%20", "hé".encode())
    assert first.at_ns == 1_709_247_599_123_456_000
    assert (first.status, first.ms) == (201, 12.5)
    assert first.headers == [("content-type", "text/plain")]
    assert (second.target, second.at_ns, second.status, second.ms) == ("/", 1_709_247_599_000_000_000, 0, 0.0)


def element(**fields: Any) -> dict[str, Any]:
    return {
        "startedDateTime": "2024-01-01T00:00:00Z",
        "request": {"method": "GET", "url": "http://h/"},
    } | fields


def document(*elements: object) -> str:
    inside = ",\n".join(json.dumps(one) for one in elements)
    return f'{{"log": {{"entries": [\n{inside}]}}}}'


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (7, "a part has the wrong type"),
        ({}, "request is missing"),
        (element(startedDateTime="yesterday"), "a time cannot be read"),
        (element(startedDateTime=5), "a part has the wrong type"),
        (element(request={"url": "http://h/"}), "method is missing"),
        (
            element(request={"method": "GET", "url": "data:text/plain,x"}),
            "neither an absolute URL nor a path",
        ),
        (element(request={"method": "GET", "url": "/", "headers": [1]}), "a part has the wrong type"),
        (element(request={"method": "GET", "url": "/", "headers": 1}), "a part has the wrong type"),
        (element(request={"method": "GET", "url": "/", "headers": [{"name": "a"}]}), "value is missing"),
        (element(_autoglm={"body_b64": "%"}), "body_b64 is not base64"),
        (element(_autoglm={"body_b64": 5}), "a part has the wrong type"),
    ],
)
def test_bad_request_is_reported_and_the_others_are_read(bad: object, why: str) -> None:
    found, faults = read(document(element(), bad, element()))
    assert len(found) == 2
    assert len(faults) == 1
    assert faults[0].startswith("line 3: ")
    assert why in faults[0]


@pytest.mark.parametrize(
    ("text", "why", "whole"),
    [
        ("", "expected {", 0),
        ("[]", "expected {", 0),
        ('{"log": {}}', "no 'entries' in the document", 0),
        ("{}", "no 'log' in the document", 0),
        ('{"log": {"a": 1, "b": {"entries": []}}}', "no 'entries' in the document", 0),
        ('{"log": {"entries": {}}}', "expected [", 0),
        ('{"log": {"entries": [', "not JSON, or it ends in the middle", 0),
        (document(element())[:-3], "expected ]", 1),
        (document(element(), element())[:-9], "line 3: not JSON, or it ends in the middle", 1),
        (document(element())[:-3] + " x", "expected ]", 1),
        ('{"log": {"entries": [' + "[" * 300_000, "too deep", 0),
        ('{"log": {"entries": [' + "1" * 5000 + "]}}", "not JSON", 0),
        (b'{"log": {"entries": [\n"\xff"]}}', "not UTF-8", 0),
    ],
)
def test_requests_before_a_json_error_are_kept(text: str | bytes, why: str, whole: int) -> None:
    found, faults = read(text)
    assert len(found) == whole
    assert len(faults) == 1
    assert faults[0].startswith("the rest is lost: line ")
    assert why in faults[0]


def test_values_of_the_wrong_type_are_ignored() -> None:
    odd = element(
        time="long",
        response={"status": True},
        request={"method": "GET", "url": "/", "bodySize": "x", "postData": 5},
        _autoglm=[1],
    )
    found, faults = read(document(odd))
    assert faults == []
    assert (found[0].ms, found[0].status, found[0].body, found[0].recorded_fields) == (0.0, 0, None, {})


def test_a_document_without_requests_is_read() -> None:
    assert read('{"log": {"entries": [ ]}}') == ([], [])


def test_time_without_a_zone_is_utc() -> None:
    (found,) = read(document(element(startedDateTime="2024-01-01T00:00:00.000001")))[0]
    assert found.at_ns == 1_704_067_200_000_001_000


def test_a_body_that_only_has_a_size_is_not_there() -> None:
    request = {"method": "GET", "url": "/", "bodySize": 5}
    assert read(document(element(request=request)))[0][0].body is None


def test_requests_are_read_one_at_a_time() -> None:
    class Counted(io.BytesIO):
        given = 0

        def read(self, size: int | None = -1, /) -> bytes:
            part = super().read(size)
            self.given += len(part)
            return part

    text = document(*[element(comment="x" * 10_000) for _ in range(1000)]).encode()
    stored = Counted(text)
    reading = har.read(stored, ImportProblems())
    next(reading)
    assert stored.given < len(text) / 50
    assert sum(1 for _ in reading) == 999


def test_request_length_limit_is_inclusive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("autoglm_throttle.traffic.convert.elements.MAX_VALUE_CHARS", 300_000)
    assert len(read(document(element(comment="x" * 250_000), element()))[0]) == 2
    found, faults = read(document(element(), element(comment="x" * 800_000), element()))
    assert len(found) == 1
    assert "longer than 300000 characters" in faults[0]


def test_written_document_is_valid_har() -> None:
    entry = RecordedRequest(
        t_s=0.000001,
        id=5,
        method="POST",
        target="/a?b=*",
        headers=(("content-type", "text/plain"),),
        body=b"x",
        body_len=1,
        client="ab" * 8,
        priority="high",
        decision="limited",
        reason="rate",
        status=429,
        ms=2.5,
        ttfb_ms=9.0,
    )
    binary = RecordedRequest(t_s=1, id=6, method="PUT", target="/", body=b"\xff", body_len=1)
    hashed = RecordedRequest(t_s=2, id=7, method="PUT", target="/", body_len=9, body_sha256="0" * 64)
    parts = [
        har.write(one, 10**18, "http://h", first=n == 0) for n, one in enumerate((entry, binary, hashed))
    ]
    text = har.opening("1.0") + b"".join(parts) + har.closing()
    log = json.loads(text)["log"]
    assert log["version"] == "1.2"
    assert log["creator"] == {"name": "autoglm_throttle", "version": "1.0"}
    first = log["entries"][0]
    assert first["startedDateTime"] == "2001-09-09T01:46:40.000001+00:00"
    assert first["request"]["url"] == "http://h/a?b=*"
    assert first["request"]["postData"] == {"mimeType": "text/plain", "text": "x"}
    assert (first["time"], first["timings"]) == (2.5, {"send": 0, "wait": 2.5, "receive": 0.0})
    found, faults = read(text)
    assert faults == []
    assert [one.body for one in found] == [b"x", b"\xff", None]
    assert found[0].recorded_fields["decision"] == "limited"
    assert found[2].recorded_fields["body_sha256"] == "0" * 64
