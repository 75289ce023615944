"""Reads and writes JSON targets of vegeta: one object per line.

The keys are ``method``, ``url``, ``header`` and ``body`` (base64).
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator
from typing import Any, BinaryIO

from autoglm_throttle.traffic.convert.lines import numbered
from autoglm_throttle.traffic.convert.parsed_request import ImportProblems, ParsedRequest, target_of
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.record.recorded_request import RecordedRequest, parse_object

LOST = (
    "times",
    "clients",
    "priorities as decided",
    "decisions",
    "answers",
    "content-length",
    "the order of header fields",
    "when the recording began and why it ended",
    "records of dropping, sampling and redaction",
)
"""Data that the format cannot hold."""


def read(stored: BinaryIO, faults: ImportProblems) -> Iterator[ParsedRequest]:
    """Yield the targets of a file; invalid ones become problems with their line number."""
    for number, line in numbered(stored, faults):
        if not line.strip():
            continue
        try:
            yield _parsed(parse_object(line))
        except TrafficError as problem:
            faults.add(f"line {number}", problem)


def write(entry: RecordedRequest, body: bytes, base_url: str) -> bytes:
    """Format a target, with its line end.

    Args:
        entry: the request.
        body: of it.
        base_url: scheme and host of the service, without a slash at the end.
    """
    headers: dict[str, list[str]] = {}
    for name, value in entry.headers:
        if name != "content-length":
            headers.setdefault(name.title(), []).append(value)
    target: dict[str, Any] = {"method": entry.method, "url": base_url + entry.target}
    if headers:
        target["header"] = headers
    if body:
        target["body"] = base64.b64encode(body).decode()
    return json.dumps(target, separators=(",", ":")).encode() + b"\n"


def _parsed(target: dict[str, Any]) -> ParsedRequest:
    method, url, body = target.get("method"), target.get("url"), target.get("body") or ""
    if not isinstance(method, str) or not isinstance(url, str) or not isinstance(body, str):
        raise TrafficError("a target needs method and url, and a body in base64 if any")
    try:
        plain = base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError):
        raise TrafficError("the body is not base64") from None
    return ParsedRequest(
        at_ns=None, method=method, target=target_of(url), headers=_headers(target.get("header")), body=plain
    )


def _headers(header: object) -> list[tuple[str, str]]:
    if header is None:
        return []
    if not isinstance(header, dict) or not all(isinstance(values, list) for values in header.values()):
        raise TrafficError("header must be an object of lists")
    pairs = [(name.lower(), value) for name, values in header.items() for value in values]
    if not all(isinstance(value, str) for _, value in pairs):
        raise TrafficError("the values of a header must be texts")
    return pairs
