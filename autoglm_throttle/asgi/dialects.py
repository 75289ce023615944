"""Dialects of rejections: bodies and header fields in the formats that clients of one kind of API parse."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from math import ceil, isfinite
from typing import Any, Final

from autoglm_throttle.settings.groups.callers import ErrorStyle, HeaderStyle
from autoglm_throttle.types import CONCURRENCY, Decision, Reason

Field = tuple[bytes, bytes]

STATUS: Final = {
    **dict.fromkeys((Reason.RATE, Reason.USER, Reason.CONCURRENCY), 429),
    **dict.fromkeys((Reason.GPU, Reason.QUEUE, Reason.BREAKER, Reason.STORE), 503),
    Reason.TOO_LARGE: 413,
}
_REASONS: Final = frozenset(reason.value for reason in STATUS)

_IANA: Final = "https://iana.org/assignments/http-problem-types"
_PROBLEM_TYPES: Final = {
    429: (f"{_IANA}#quota-exceeded", "Too Many Requests"),
    503: (f"{_IANA}#temporary-reduced-capacity", "Service Unavailable"),
    413: ("about:blank", "Content Too Large"),
}
_ERROR_TYPES: Final = {429: "rate_limit_error", 503: "overloaded_error", 413: "invalid_request_error"}

# The formats, as plain texts: hashing a member of an enumeration costs five times as much.
PROBLEM, OPENAI, ANTHROPIC, JSONRPC = DIALECTS = tuple(
    style.value for style in ErrorStyle if style is not ErrorStyle.AUTO
)


def dialect_of(path: str, errors: ErrorStyle = ErrorStyle.AUTO) -> str:
    """Return the dialect of a path, which comes without ``root_path``: the one set, or that of the API."""
    if errors is not ErrorStyle.AUTO:
        return errors.value
    if path.rstrip("/").endswith("/mcp"):  # by convention the one path of a Model Context Protocol server
        return JSONRPC
    if path.startswith("/v1/"):
        return ANTHROPIC if path.split("/")[2] == "messages" else OPENAI
    return PROBLEM


def header_style(headers: HeaderStyle, dialect: str) -> HeaderStyle:
    """Return the style of header fields: the one set, or that of the dialect."""
    if headers is not HeaderStyle.AUTO:
        return headers
    return HeaderStyle(dialect) if dialect in LIMIT_NAMES else HeaderStyle.IETF


# --- bodies ---

Body = Callable[[Decision, int, str, int], dict[str, Any]]


def _problem(decision: Decision, status: int, sentence: str, _: int) -> dict[str, Any]:
    uri, title = _PROBLEM_TYPES[status]
    return {
        "type": uri,
        "title": title,
        "status": status,
        "detail": sentence,
        "violated-policies": [decision.policy],
        "reason": decision.detail,
    }


def _openai(decision: Decision, status: int, sentence: str, _: int) -> dict[str, Any]:
    kind = _ERROR_TYPES[status]
    return {"error": {"message": sentence, "type": kind, "param": None, "code": decision.detail}}


def _anthropic(decision: Decision, status: int, sentence: str, _: int) -> dict[str, Any]:
    error = {"type": _ERROR_TYPES[status], "message": sentence, "code": decision.detail}
    return {"type": "error", "error": error, "request_id": None}


def _jsonrpc(decision: Decision, status: int, sentence: str, seconds: int) -> dict[str, Any]:
    # The body of the request has not been read, so its id is unknown: null, JSON-RPC 2.0, section 5. The
    # codes that JSON-RPC does not reserve are the application's.
    data: dict[str, Any] = {"reason": decision.detail}
    if seconds:  # language models see no header fields
        data["retry_after_s"] = seconds
    return {"jsonrpc": "2.0", "id": None, "error": {"code": status, "message": sentence, "data": data}}


# Documents by dialect, of a rejection with its status, its sentence, and its whole seconds of waiting.
BODIES: Final[Mapping[str, Body]] = {
    PROBLEM: _problem,
    OPENAI: _openai,
    ANTHROPIC: _anthropic,
    JSONRPC: _jsonrpc,
}


def error_body(dialect: str, status: int, title: str, sentence: str, reason: str) -> tuple[Field, bytes]:
    """Return the content type and the body of an error that is no rejection, such as 408 or 502."""
    kind = "api_error" if status >= 500 else "invalid_request_error"
    documents: dict[str, dict[str, Any]] = {
        PROBLEM: {
            "type": "about:blank",
            "title": title,
            "status": status,
            "detail": sentence,
            "reason": reason,
        },
        OPENAI: {"error": {"message": sentence, "type": kind, "param": None, "code": reason}},
        ANTHROPIC: {"type": "error", "error": {"type": kind, "message": sentence}, "request_id": None},
        JSONRPC: {"jsonrpc": "2.0", "id": None, "error": {"code": status, "message": sentence}},
    }
    return content_type(dialect), encode(documents[dialect])


def content_type(dialect: str) -> Field:
    """Return the content type of the bodies of a dialect."""
    return (b"content-type", b"application/problem+json" if dialect == PROBLEM else b"application/json")


def encode(document: dict[str, Any]) -> bytes:
    """Return a document as the bytes of a body."""
    return json.dumps(document, separators=(",", ":")).encode()


def reason_of(document: object) -> str:
    """Return the reason of a parsed rejection in any dialect; empty if the throttle did not write it."""
    if not isinstance(document, dict):
        return ""
    error = document.get("error")
    if isinstance(error, dict):
        data = error.get("data")
        reason = data.get("reason") if isinstance(data, dict) else error.get("code")
    else:
        reason = document.get("reason") if "violated-policies" in document else None
    return reason if isinstance(reason, str) and reason.partition(":")[0] in _REASONS else ""


# --- header fields of one limit: its units, those left, and the seconds until one is available again ---

# Names of the fields: limit, remaining, reset.
LIMIT_NAMES: Final = {
    OPENAI: tuple(f"x-ratelimit-{name}-requests" for name in ("limit", "remaining", "reset")),
    ANTHROPIC: tuple(f"anthropic-ratelimit-requests-{name}" for name in ("limit", "remaining", "reset")),
}
(_X_LIMIT, _X_REMAINING, _X_RESET), (_LIMIT, _REMAINING, _RESET) = (
    tuple(map(str.encode, names)) for names in LIMIT_NAMES.values()
)
# Dialect -> start of the name of a token limit -> how its fields call it; OpenAI has one kind of tokens.
_TOKEN_NAMES: Final = {
    HeaderStyle.OPENAI: {"tokens": b"tokens"},
    HeaderStyle.ANTHROPIC: {"tokens": b"tokens", "input": b"input-tokens", "output": b"output-tokens"},
}
TOKEN_FIELDS: Final = tuple(
    name.replace("requests", kind.decode())
    for dialect, names in LIMIT_NAMES.items()
    for kind in _TOKEN_NAMES[HeaderStyle(dialect)].values()
    for name in names
)


def kind_of(style: HeaderStyle, limit_name: str) -> bytes:
    """Return how the fields of a style call a limit, by the start of its name; empty: they have no name."""
    kind = limit_name.removeprefix("address-").partition("-")[0]
    if kind in {"tokens", "input", "output", CONCURRENCY}:
        return _TOKEN_NAMES[style].get(kind, b"")
    return b"requests"


def of_kind(fields: list[Field], kind: bytes) -> list[Field]:
    """Return the fields of a limit on requests as those of another kind."""
    return [(name.replace(b"requests", kind), value) for name, value in fields]


def _duration(seconds: int) -> bytes:
    """Format a duration in the notation of Go: ``1s``, ``6m0s``, ``24h0m0s``."""
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return b"%dh%dm%ds" % (hours, minutes, seconds) if hours else b"%dm%ds" % (minutes, seconds)


# Looking a duration up costs a third of writing it.
_DURATIONS: Final = (*(b"%ds" % seconds for seconds in range(60)), *map(_duration, range(60, 1024)))


def openai_fields(limit: float, remaining: float, reset_s: float) -> list[Field]:
    """Return ``x-ratelimit-*-requests``, with a duration in the notation of Go, also ``17ms``."""
    seconds = ceil(reset_s)
    if 0.0 < reset_s < 1.0:
        reset = b"%dms" % ceil(reset_s * 1e3)
    else:
        reset = _DURATIONS[seconds] if seconds < len(_DURATIONS) else _duration(seconds)
    return [(_X_LIMIT, b"%d" % limit), (_X_REMAINING, b"%d" % remaining), (_X_RESET, reset)]


def anthropic_fields(limit: float, remaining: float, reset_s: float) -> list[Field]:
    """Return ``anthropic-ratelimit-requests-*``, with a time by RFC 3339 in UTC."""
    reset = _timestamp(ceil(time.time() + reset_s))
    return [(_LIMIT, b"%d" % limit), (_REMAINING, b"%d" % remaining), (_RESET, reset)]


@lru_cache(1024)
def _timestamp(second: int) -> bytes:
    return f"{datetime.fromtimestamp(second, UTC):%Y-%m-%dT%H:%M:%SZ}".encode()


# Functions of the styles that send one limit only.
SINGLE_LIMIT: Final = {HeaderStyle.OPENAI: openai_fields, HeaderStyle.ANTHROPIC: anthropic_fields}


def legacy_fields(decision: Decision) -> list[Field]:
    """Return ``x-ratelimit-*`` of the deciding limit."""
    remaining = decision.remaining if decision.allowed else 0
    seconds = decision.reset_after_s if decision.allowed else decision.retry_after_s
    return [
        (b"x-ratelimit-limit", b"%d" % decision.limit),
        (b"x-ratelimit-remaining", b"%d" % remaining),
        (b"x-ratelimit-reset", b"%d" % (ceil(seconds) if isfinite(seconds) else 0)),
    ]
