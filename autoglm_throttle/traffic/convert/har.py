"""Reads and writes HAR 1.2: archives of browsers and proxies, one JSON document each.

Data without a HAR field goes into ``_autoglm``, a custom field; names that begin with an underscore are free.
So no data of a request is lost. A document is written and read as a stream, one request at a time.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, BinaryIO

from autoglm_throttle.traffic.convert.elements import JsonWindow
from autoglm_throttle.traffic.convert.moment import nanoseconds, stamp
from autoglm_throttle.traffic.convert.parsed_request import ImportProblems, ParsedRequest, target_of
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.record.recorded_request import RecordedRequest

LOST = ("when the recording began and why it ended", "records of dropping, sampling and redaction")
"""Data that the format cannot hold."""

OURS = "_autoglm"

_RECORDED_FIELDS = ("id", "client", "priority", "decision", "reason", "ttfb_ms", "body_len", "body_sha256")
"""Fields of a recording that go into `OURS`."""


def read(stored: BinaryIO, faults: ImportProblems) -> Iterator[ParsedRequest]:
    """Yield the requests of a document; invalid ones become problems with their line number.

    After invalid JSON the rest is lost, since the start of the next request is unknown.
    """
    window = JsonWindow(stored)
    try:
        window.enter_array("log", "entries")
        for line, element in window.elements():
            try:
                yield _parsed(element)
            except TrafficError as problem:
                faults.add(f"line {line}", problem)
    except TrafficError as problem:
        faults.add("the rest is lost", problem)


def opening(version: str) -> bytes:
    """Return the text before the first request."""
    creator = json.dumps({"name": "autoglm_throttle", "version": version})
    return f'{{"log": {{"version": "1.2", "creator": {creator}, "entries": ['.encode()


def closing() -> bytes:
    """Return the text after the last request."""
    return b"\n]}}\n"


def write(entry: RecordedRequest, start_ns: int, base_url: str, *, first: bool) -> bytes:
    """Format a request.

    Args:
        entry: the request.
        start_ns: start of the recording, in nanoseconds since 1970.
        base_url: scheme and host of the service, without a slash at the end.
        first: whether it is the first of the document.
    """
    at_us = start_ns // 1_000 + round(entry.t_s * 1e6)
    first_ms = entry.ms if entry.ttfb_ms is None else min(entry.ttfb_ms, entry.ms)
    ours = {name: getattr(entry, name) for name in _RECORDED_FIELDS}
    element: dict[str, Any] = {
        "startedDateTime": stamp(at_us),
        "time": entry.ms,
        "request": _request(entry, base_url, ours),
        "response": _response(entry.status),
        "cache": {},
        "timings": {"send": 0, "wait": first_ms, "receive": round(entry.ms - first_ms, 3)},
        OURS: ours,
    }
    return (b"\n" if first else b",\n") + json.dumps(element).encode()


def _request(entry: RecordedRequest, base_url: str, ours: dict[str, Any]) -> dict[str, Any]:
    request: dict[str, Any] = {
        "method": entry.method,
        "url": base_url + entry.target,
        "httpVersion": "HTTP/1.1",
        "cookies": [],
        "headers": [{"name": name, "value": value} for name, value in entry.headers],
        "queryString": [],
        "headersSize": -1,
        "bodySize": entry.body_len if entry.body is None else len(entry.body),
    }
    if entry.body is None:
        return request
    try:
        text = entry.body.decode()
    except UnicodeDecodeError:
        ours["body_b64"] = base64.b64encode(entry.body).decode()
    else:
        request["postData"] = {"mimeType": dict(entry.headers).get("content-type", ""), "text": text}
    return request


def _response(status: int) -> dict[str, Any]:
    return {
        "status": status,
        "statusText": "",
        "httpVersion": "HTTP/1.1",
        "cookies": [],
        "headers": [],
        "content": {"size": -1, "mimeType": ""},
        "redirectURL": "",
        "headersSize": -1,
        "bodySize": -1,
    }


def _parsed(element: object) -> ParsedRequest:
    try:
        return _parsed_request(_object(element))
    except (KeyError, TypeError, ValueError, OverflowError) as problem:
        raise TrafficError(_problem_text(problem)) from None


def _parsed_request(element: Mapping[str, Any]) -> ParsedRequest:
    request, response = _object(element["request"]), element.get("response")
    ours = element.get(OURS)
    recorded = ours if isinstance(ours, dict) else {}
    status = response.get("status") if isinstance(response, dict) else 0
    duration_ms = element.get("time")
    return ParsedRequest(
        at_ns=_nanoseconds(_text(element["startedDateTime"])),
        method=_text(request["method"]),
        target=target_of(_text(request["url"])),
        headers=[(_text(_object(p)["name"]).lower(), _text(p["value"])) for p in request.get("headers", ())],
        body=_body(request, recorded),
        status=status if type(status) is int and 0 <= status <= 999 else 0,
        ms=float(duration_ms) if isinstance(duration_ms, (int, float)) and duration_ms > 0 else 0.0,
        recorded_fields={name: recorded[name] for name in _RECORDED_FIELDS if name in recorded},
    )


def _body(request: Mapping[str, Any], ours: Mapping[str, Any]) -> bytes | None:
    if "body_b64" in ours:
        return base64.b64decode(_text(ours["body_b64"]), validate=True)
    sent = request.get("postData")
    if isinstance(sent, dict) and isinstance(sent.get("text"), str):
        return str(sent["text"]).encode("utf-8", "surrogatepass")
    size = request.get("bodySize")
    return None if (type(size) is int and size > 0) or sent else b""


def _nanoseconds(text: str) -> int:
    at_ns = nanoseconds(datetime.fromisoformat(text))
    if at_ns is None:
        raise ValueError
    return at_ns


def _object(value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise TypeError
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _problem_text(problem: Exception) -> str:
    if isinstance(problem, KeyError):
        return f"{problem.args[0]} is missing"
    if isinstance(problem, binascii.Error):
        return "body_b64 is not base64"
    return "a part has the wrong type, or a time cannot be read"
