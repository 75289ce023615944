"""Requests of a load: by options, or by a file."""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from autoglm_throttle.cli.load_options import HIDDEN, Option, ProblemList, above_zero, hidden_query
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.request_source import PlannedRequest

# Methods that send no body unless one is given for them alone.
WITHOUT_BODY: Final = frozenset({"GET", "HEAD", "DELETE", "OPTIONS"})

BODY: Final = b"{}"  # Default body of the other methods: an empty JSON object

JSON: Final = (("content-type", "application/json"),)

# Fields of a request in a file.
FIELDS: Final = ("method", "target", "headers", "body", "share", "cost", "name")


def _hidden_route(text: str) -> str:
    """Return a route or its cost without the values of its query. The share is not one of them."""
    place, equals, share = _split_share(text)
    return f"{hidden_query(place)}{equals}{share}"


def _split_share(text: str) -> tuple[str, str, str]:
    """Split at the last ``=``; the whole text is the first part if there is none."""
    place, equals, share = text.rpartition("=")
    return (place, equals, share) if equals else (text, "", "")


OPTIONS: Final = (
    Option("--method", "METHOD", "default: POST"),
    Option(
        "--body",
        "TEXT",
        "body of POST, PUT and PATCH (default: {}); with --method, of that method",
        shown=lambda _: HIDDEN,
    ),
    Option("--body-file", "FILE", "the same, from a file"),
    Option(
        "--route",
        "'METHOD PATH=SHARE'",
        "a route below URL and its share of the requests, such as 'POST /v1/x=70'; repeatable",
        many=True,
        shown=_hidden_route,
    ),
    Option(
        "--cost",
        "N",
        "units of work of each request, or of a route: 'POST /v1/x=4' (default: 1); see --cost-header",
        many=True,
        shown=_hidden_route,
    ),
    Option(
        "--requests",
        "FILE",
        f"requests to draw from, as JSON lines or TOML ([[requests]]), with any of {', '.join(FIELDS)}",
    ),
)


class WeightedRequests(NamedTuple):
    """The requests, and their shares."""

    requests: tuple[PlannedRequest, ...]
    shares: tuple[float, ...]


# Placeholder for requests that could not be read.
ONE: Final = WeightedRequests((PlannedRequest(target="/"),), (1.0,))


def read_requests(args: argparse.Namespace, path: str, problems: ProblemList) -> WeightedRequests:
    """Read the requests of a command line."""
    if args.requests is not None:
        for option in ("route", "body", "body-file", "method", "cost"):
            if getattr(args, option.replace("-", "_")):
                problems.add("--requests", f"defines the whole request: leave --{option} out")
        return problems.make("--requests", lambda: read_file(args.requests), ONE)
    body = _body(args, problems)
    method = args.method or "POST"
    routes = [problems.make("--route", partial(_route, text, method), None) for text in args.route]
    known = [route for route in routes if route is not None] if args.route else [(method, path, 1.0)]
    if body is not None and args.route and all(route[0] in WITHOUT_BODY for route in known):
        problems.add("--body", "no route sends a body: omit it, or define it with --requests")
    made = []
    for method, target, _ in known:
        # The given body is meant for the other routes, if there are any.
        own = None if args.route and method in WITHOUT_BODY else body
        made.append(problems.make("--route", partial(_request, method, target, own), ONE.requests[0]))
    if not made:
        return ONE
    _set_costs(made, args.cost, problems)
    return WeightedRequests(tuple(made), tuple(share for _, _, share in known))


def _body(args: argparse.Namespace, problems: ProblemList) -> bytes | None:
    if args.body is not None and args.body_file is not None:
        problems.add("--body-file", "use either --body or --body-file")
    if args.body is not None:
        return str(args.body).encode()
    if args.body_file is None:
        return None
    return problems.make("--body-file", Path(args.body_file).read_bytes, None)


def _request(method: str, target: str, body: bytes | None) -> PlannedRequest:
    if body is None:
        body = b"" if method in WITHOUT_BODY else BODY
    return PlannedRequest(method=method, target=target, body=body, headers=JSON if body else ())


def _route(text: str, method: str) -> tuple[str, str, float]:
    """Read ``POST /v1/x=70``, ``/v1/x=70`` or ``/v1/x``; after a query with values the share is required."""
    last = text.partition("?")[2].rpartition("&")[2]
    if "=" in text.partition("?")[2] and last.count("=") < 2:
        raise TrafficError("a path with query values must end with its share, such as 'GET /v1/x?y=5=1'")
    place, equals, share = _split_share(text)
    parts = place.split()
    if not 1 <= len(parts) <= 2 or not parts[-1].startswith("/"):
        raise TrafficError(f"{text!r} is not METHOD PATH=SHARE, such as 'POST /v1/x=70'")
    return (parts[0] if len(parts) == 2 else method), parts[-1], above_zero(share if equals else "1")


def _set_costs(requests: list[PlannedRequest], costs: Iterable[str], problems: ProblemList) -> None:
    """Set the costs of the requests: one for all, or by route."""
    for text in costs:
        place, _, cost = text.rpartition("=")
        units = problems.make("--cost", partial(above_zero, cost), 1.0)
        parts = place.split()
        method = parts[0] if len(parts) == 2 else None
        matching = [
            index
            for index, request in enumerate(requests)
            if not parts or (request.target == parts[-1] and method in (None, request.method))
        ]
        if not matching:
            problems.add("--cost", f"there is no route {place!r}")
        for index in matching:
            requests[index] = replace(requests[index], cost=units)


def read_file(path: str) -> WeightedRequests:
    """Read the requests of a file, JSON lines or TOML."""
    raw = Path(path).read_text("utf-8")
    rows = _toml(raw) if path.endswith(".toml") else _lines(raw)
    parsed: list[tuple[PlannedRequest, float]] = []
    problems: list[str] = []
    for place, row in rows:
        try:
            parsed.append(_row(row))
        except TrafficError as error:
            problems.append(f"{place}: {error}")
    if problems or not parsed:
        raise TrafficError(f"{path}: {'; '.join(problems) or 'contains no requests'}")
    return WeightedRequests(tuple(request for request, _ in parsed), tuple(share for _, share in parsed))


def _toml(raw: str) -> Sequence[tuple[str, object]]:
    try:
        document = tomllib.loads(raw)
    except tomllib.TOMLDecodeError as error:
        raise TrafficError(f"not TOML: {error}") from None
    rows = document.get("requests")
    if not isinstance(rows, list) or set(document) != {"requests"}:
        raise TrafficError("a TOML file of requests must contain only [[requests]]")
    return [(f"request {count}", row) for count, row in enumerate(rows, 1)]


def _lines(raw: str) -> Sequence[tuple[str, object]]:
    return [(f"line {count}", _json(line)) for count, line in enumerate(raw.split("\n"), 1) if line.strip()]


def _json(line: str) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _row(row: object) -> tuple[PlannedRequest, float]:
    """Parse a request of a file, and its share."""
    if not isinstance(row, dict):
        raise TrafficError("not an object")
    unknown = [name for name in row if name not in FIELDS]
    if unknown:
        raise TrafficError(f"unknown {', '.join(unknown)}: known are {', '.join(FIELDS)}")
    method, target, name = _text(row, "method", "POST"), _text(row, "target", "/"), _text(row, "name", "")
    body = b"" if method in WITHOUT_BODY else BODY
    if "body" in row:  # a text is sent as it is, anything else as JSON
        body = (row["body"] if isinstance(row["body"], str) else json.dumps(row["body"])).encode()
    headers = _headers(row["headers"]) if "headers" in row else JSON if body else ()
    if not target.startswith("/"):
        raise TrafficError(f"target {target!r} does not begin with a slash")
    request = PlannedRequest(
        method=method, target=target, headers=headers, body=body, cost=_number(row, "cost"), name=name
    )
    return request, _number(row, "share")


def _text(row: Mapping[str, Any], field: str, other: str) -> str:
    value = row.get(field, other)
    if not isinstance(value, str):
        raise TrafficError(f"{field} is not a string")
    return value


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
