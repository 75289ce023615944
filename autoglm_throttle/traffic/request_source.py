"""A load: a plan and the contents of its requests, also as a file states them."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.plan import LoadPlan

TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
VISIBLE = re.compile(r"[\x21-\x7e]+")
FIELD_VALUE = re.compile(r"[\t\x20-\x7e]*")

# Methods that send no body unless one is given for them alone; the others send an empty JSON object.
WITHOUT_BODY = frozenset({"GET", "HEAD", "DELETE", "OPTIONS"})

# Fields of a request in a file.
REQUEST_FIELDS = ("method", "target", "headers", "body", "share", "cost", "name")


def check_fields(tokens: Iterable[str], fields: Sequence[tuple[str, str]]) -> None:
    """Raise TrafficError for a token or name of a field that is no HTTP token, or an impossible value."""
    for name in (*tokens, *(name for name, _ in fields)):
        if not TOKEN.fullmatch(name):
            raise TrafficError(f"{name!r} is not an HTTP token")
    for name, text in fields:
        if not FIELD_VALUE.fullmatch(text):
            raise TrafficError(f"the value of {name} must be printable ASCII")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRequest:
    """One kind of request, without its host; text that would not be valid HTTP/1.1 raises TrafficError."""

    method: str = "POST"
    target: str = "/v1/predict"  # path and query
    # Lower-case names; length, host, priority and identity are added on sending.
    headers: tuple[tuple[str, str], ...] = (("content-type", "application/json"),)
    body: bytes = b"{}"
    # Whether the priority of the plan is sent; False for a recorded request that stated none.
    priority: bool = True
    cost: float = 1.0  # units of work, as the limiter under test counts them
    name: str = ""  # display name; empty: method and path

    def __post_init__(self) -> None:
        check_fields((self.method,), self.headers)
        if not VISIBLE.fullmatch(self.target):
            raise TrafficError(f"{self.target!r} must be printable ASCII without blanks")

    @property
    def label(self) -> str:
        """The name used in reports."""
        return self.name or f"{self.method} {self.target.partition('?')[0]}"


@dataclass(frozen=True, slots=True)
class RequestSource:
    """The requests of a load test and their plan."""

    plan: LoadPlan
    requests: Sequence[PlannedRequest] = (PlannedRequest(),)  # by `LoadPlan.kinds`
    # Identity text of each client of the plan; None: ``client-0``, ``client-1`` and so on.
    clients: Sequence[str] | None = None

    def client(self, number: int) -> str:
        """Return the identity text of a client."""
        return f"client-{number}" if self.clients is None else self.clients[number]


def planned_request(method: str, target: str, body: bytes | None = None) -> PlannedRequest:
    """Make a request; without a body it has the default one of its method. A body counts as JSON."""
    if body is None:
        body = b"" if method in WITHOUT_BODY else b"{}"
    headers = (("content-type", "application/json"),) if body else ()
    return PlannedRequest(method=method, target=target, body=body, headers=headers)


def read_requests(path: str) -> tuple[tuple[PlannedRequest, ...], tuple[float, ...]]:
    """Read a file of requests, JSON lines or TOML; return them and their shares.

    All problems of the file are one TrafficError; OSError: it cannot be read.
    """
    requests: list[PlannedRequest] = []
    shares: list[float] = []
    problems: list[str] = []
    for place, row in _rows(path, Path(path).read_text("utf-8")):
        try:
            requests.append(_request_of(row))
            shares.append(_number(row, "share"))
        except TrafficError as error:
            problems.append(f"{place}: {error}")
    if problems or not requests:
        raise TrafficError(f"{path}: {'; '.join(problems) or 'contains no requests'}")
    return tuple(requests), tuple(shares)


def _rows(path: str, raw: str) -> Iterator[tuple[str, Any]]:
    if not path.endswith(".toml"):
        for count, line in enumerate(raw.split("\n"), 1):
            if line.strip():
                yield f"line {count}", _json(line)
        return
    try:
        document = tomllib.loads(raw)
    except tomllib.TOMLDecodeError as error:
        raise TrafficError(f"not TOML: {error}") from None
    rows = document.get("requests")
    if not isinstance(rows, list) or set(document) != {"requests"}:
        raise TrafficError("a TOML file of requests must contain only [[requests]]")
    yield from ((f"request {count}", row) for count, row in enumerate(rows, 1))


def _json(line: str) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _request_of(row: object) -> PlannedRequest:
    if not isinstance(row, dict):
        raise TrafficError("not an object")
    unknown = [name for name in row if name not in REQUEST_FIELDS]
    if unknown:
        raise TrafficError(f"unknown {', '.join(unknown)}: known are {', '.join(REQUEST_FIELDS)}")
    for name in ("method", "target", "name"):
        if not isinstance(row.get(name, ""), str):
            raise TrafficError(f"{name} is not a string")
    target, body = row.get("target", "/"), None
    if not target.startswith("/"):
        raise TrafficError(f"target {target!r} does not begin with a slash")
    if "body" in row:  # a text is sent as it is, anything else as JSON
        body = (row["body"] if isinstance(row["body"], str) else json.dumps(row["body"])).encode()
    request = planned_request(row.get("method", "POST"), target, body)
    headers = _headers(row["headers"]) if "headers" in row else request.headers
    return replace(request, headers=headers, cost=_number(row, "cost"), name=row.get("name", ""))


def _number(row: Mapping[str, Any], field: str) -> float:
    value = row.get(field, 1.0)
    # JSON and TOML allow whole numbers that no float can hold.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= sys.float_info.max:
        raise TrafficError(f"{field} is not a finite number above 0")
    return float(value)


def _headers(value: object) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise TrafficError("headers is not an object with string values")
    return tuple((name.lower(), text) for name, text in value.items())
