"""The lines of a recording: header, requests and trailer, each an object of JSON.

Lines are untrusted; of a valid request, method, target and header fields can be sent unchanged.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from json.encoder import encode_basestring_ascii
from typing import Any, Final

from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.request_source import FIELD_VALUE, TOKEN, VISIBLE

VERSION: Final = 1  # Version of the format; a reader accepts no other

# Longest line in bytes. The longest that a recorder writes holds a body of 64 KiB and the largest headers
# that a server accepts, about 200 KiB.
MAX_LINE_BYTES: Final = 1024 * 1024

MAX_TIME_S: Final = 1e9  # No recording lasts 30 years; a later time is an error
MAX_NUMBER: Final = 2**63  # A greater serial number or length is an error
MAX_BODY_BYTES: Final = 64 * 1024  # Longest body that is stored, in bytes
KIND: Final = "autoglm-throttle-traffic"  # Value of ``kind`` in the first line

_SHORT_TEXT = re.compile(r"[\x20-\x7e]{0,200}")
_SHA256 = re.compile(r"(?:[0-9a-f]{64})?")

_text: Callable[[str], str] = encode_basestring_ascii
_json = json.JSONEncoder(separators=(",", ":")).encode


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRequest:
    """One recorded request; text that is no HTTP/1.1, or a number out of range, raises TrafficError."""

    t_s: float  # Arrival time: seconds since the recording began, 6 digits
    id: int  # Serial number in order of arrival; requests excluded by sampling leave gaps
    method: str
    target: str  # Path and query, printable ASCII; a masked part is ``*``
    headers: tuple[tuple[str, str], ...] = ()  # Lower-case names, in the order of the request
    body_len: int = 0  # Bytes that were read, or the Content-Length where the app did not read them all
    body_sha256: str = ""  # Hex digits; empty: not hashed, no body, or not all of it was read
    body: bytes | None = None  # The body itself; None where it was not stored
    client: str = ""  # 16 hex digits that identify the client
    priority: str = ""  # ``high``, ``mid`` or ``low`` from the throttle; empty without one
    decision: str = ""  # ``admitted``, ``limited``, ``shed``, ``degraded``, ``exempt``; empty: no throttle
    reason: str = ""  # Reason for the decision, such as ``gpu``
    status: int = 0  # Status of the response; 0: none, or the client disconnected before its end
    ms: float = 0.0  # Milliseconds from arrival to the end, 3 digits
    ttfb_ms: float | None = None  # Milliseconds to the first byte of the response body, or to its end

    def __post_init__(self) -> None:
        if not TOKEN.fullmatch(self.method):
            raise TrafficError("the method is no HTTP token")
        if not VISIBLE.fullmatch(self.target):
            raise TrafficError("the target must be printable ASCII without blanks")
        if not all(map(_SHORT_TEXT.fullmatch, (self.client, self.priority, self.decision, self.reason))):
            raise TrafficError("client, priority, decision and reason must be short printable ASCII")
        if not _SHA256.fullmatch(self.body_sha256):
            raise TrafficError("body_sha256 must have 64 hex digits")
        self._check_headers()
        if not all(0.0 <= number < MAX_TIME_S for number in (self.t_s, self.ms, self.ttfb_ms or 0.0)):
            raise TrafficError(f"t, ms and ttfb_ms must be from 0 to {MAX_TIME_S:g}")
        if not (0 <= self.status <= 999 and 0 <= self.id < MAX_NUMBER and 0 <= self.body_len < MAX_NUMBER):
            raise TrafficError("status, id or body_len is out of range")

    def _check_headers(self) -> None:
        for name, value in self.headers:
            if not TOKEN.fullmatch(name) or name != name.lower():
                raise TrafficError("a header name is no lower-case HTTP token")
            if not FIELD_VALUE.fullmatch(value):
                raise TrafficError("the value of a header must be printable ASCII")

    def to_line(self) -> str:
        """Format the line of the file, without its line end."""
        return format_line(
            self.t_s,
            self.id,
            (self.method, self.target, self.headers),
            (self.body_len, self.body_sha256, self.body),
            (self.client, self.priority, self.decision, self.reason),
            (self.status, self.ms, self.ttfb_ms),
        )

    @classmethod
    def from_line(cls, text: str | bytes) -> RecordedRequest:
        """Parse a line; the text of a TrafficError never quotes it."""
        data = parse_object(text)
        if data.get("v") != VERSION:
            raise TrafficError(f"its version is not {VERSION}")
        try:
            return _request_from(data)
        except (TypeError, ValueError, OverflowError):
            raise TrafficError("not an entry: its parts do not fit") from None


RequestFields = tuple[str, str, Sequence[tuple[str, str]]]  # Method, target, headers
BodyFields = tuple[int, str, bytes | None]  # Length, SHA-256, the body itself
DecisionFields = tuple[str, str, str, str]  # Client, priority, decision, reason
ResponseFields = tuple[int, float, float | None]  # Status, ms, ttfb_ms


def format_line(
    t_s: float,
    serial: int,
    request: RequestFields,
    body: BodyFields,
    decision_fields: DecisionFields,
    response: ResponseFields,
) -> str:
    """Format a line without creating a `RecordedRequest`: a recorder writes thousands in a second."""
    method, target, headers = request
    length, sha256, body_bytes = body
    client, priority, decision, reason = decision_fields
    status, ms, ttfb_ms = response
    bodies = f',"body_sha256":"{sha256}"' if sha256 else ""
    if body_bytes is not None:
        bodies += f',"body_b64":"{base64.b64encode(body_bytes).decode()}"'
    first = "null" if ttfb_ms is None else repr(round(ttfb_ms, 3))
    return (
        f'{{"v":{VERSION},"t":{round(t_s, 6)!r},"id":{serial},"method":{_text(method)},'
        f'"target":{_text(target)},"headers":{_json(headers)},"body_len":{length}{bodies},'
        f'"client":{_text(client)},"priority":"{priority}","decision":"{decision}","reason":{_text(reason)},'
        f'"status":{status},"ms":{round(ms, 3)!r},"ttfb_ms":{first}}}'
    )


def parse_object(text: str | bytes) -> dict[str, Any]:
    """Parse the JSON object of a line; raise TrafficError if it is none, or too deep or too long."""
    if len(text) > MAX_LINE_BYTES:
        raise TrafficError(f"longer than {MAX_LINE_BYTES} bytes")
    try:
        data = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise TrafficError("not JSON") from None
    if not isinstance(data, dict):
        raise TrafficError("not a JSON object")
    return data


def _no_constant(_: str) -> None:
    raise ValueError("NaN and Infinity are not JSON")


_WRONG_TYPE: Final = {
    str: "a text is missing or of another type",
    int: "a whole number is of another type",
    float: "a number is missing or of another type",
    list: "a list is of another type",
}
FIELD_TYPES: Final = {  # Simple fields of a line; the others are its version, ``headers`` and ``body_b64``
    "t": float,
    **dict.fromkeys(("id", "body_len", "status"), int),
    **dict.fromkeys(("method", "target", "body_sha256", "client", "priority", "decision", "reason"), str),
    **dict.fromkeys(("ms", "ttfb_ms"), float),
}
_REQUIRED: Final = ("t", "method", "target")


def _request_from(data: dict[str, Any]) -> RecordedRequest:
    values = {
        name: _typed(data.get(name), kind)
        for name, kind in FIELD_TYPES.items()
        if name in _REQUIRED or (name in data and (name, data[name]) != ("ttfb_ms", None))
    }
    encoded = data.get("body_b64")
    body = None if encoded is None else base64.b64decode(_typed(encoded, str), validate=True)
    if body is not None and len(body) > MAX_BODY_BYTES:
        raise TrafficError(f"body_b64 is longer than {MAX_BODY_BYTES} bytes")
    pairs = [_typed(pair, list) for pair in _typed(data.get("headers", []), list)]
    return RecordedRequest(
        t_s=values.pop("t"),
        headers=tuple((_typed(n, str).lower(), _typed(v, str)) for n, v in pairs),
        body=body,
        **values,
    )


def _typed(value: Any, kind: type) -> Any:  # noqa: ANN401 - of the type ``kind``, as checked here
    """Return a value of JSON as this type; a whole number is a float, too, and a boolean is no number."""
    if isinstance(value, bool) or not isinstance(value, (int, float) if kind is float else kind):
        raise TrafficError(_WRONG_TYPE[kind])
    return kind(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingHeader:
    """First line of a recording: properties of the file."""

    start: str = ""  # Start of the recording: ISO 8601 in UTC; empty where the line is missing
    made_by: str = ""  # Library version that wrote it
    # Allowed ``headers`` and ``query``, masked ``paths``, ``body`` mode, and the kind of ``key`` that hashes
    # the clients.
    redaction: Mapping[str, Any] = field(default_factory=dict)
    sample: float = 1.0  # Share of the clients that was recorded

    def to_line(self) -> str:
        """Format the line of the file, without its line end."""
        origin = {"v": VERSION, "kind": KIND, "start": self.start, "library": self.made_by}
        return _json(origin | {"redaction": dict(self.redaction), "sample": self.sample})

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> RecordingHeader:
        """Read it from the object of a first line; a value of another type counts as absent."""
        redaction, sample = data.get("redaction"), data.get("sample")
        return cls(
            start=_printable(data.get("start")),
            made_by=_printable(data.get("library")),
            redaction={
                name: [text for text in value if isinstance(text, str)] if isinstance(value, list) else value
                for name, value in (redaction.items() if isinstance(redaction, dict) else ())
                if isinstance(value, (list, str))
            },
            sample=float(sample) if isinstance(sample, (int, float)) and 0.0 <= sample <= 1.0 else 1.0,
        )


@dataclass(frozen=True, slots=True)
class RecordingTrailer:
    """Last line of a recording: the reason for its end, and the number of lost requests."""

    reason: str  # ``closed``, ``max_bytes`` or ``max_s``
    dropped: int  # Requests missing from the file because the writer could not keep up

    def to_line(self) -> str:
        """Format the line of the file, without its line end."""
        return f'{{"v":{VERSION},"end":"{self.reason}","dropped":{self.dropped}}}'

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> RecordingTrailer:
        """Read it from the object of a last line."""
        dropped = data.get("dropped")
        return cls(_printable(data.get("end")), dropped if type(dropped) is int and dropped >= 0 else 0)


def _printable(value: object) -> str:
    """Return a short printable text, safe for display; otherwise an empty one."""
    text = value if isinstance(value, str) else ""
    return text if text.isascii() and text.isprintable() and len(text) <= 100 else ""
