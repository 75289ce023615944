"""Reads files of GoReplay: header line ``KIND ID START LATENCY``, raw message, and three monkeys.

Kind 1 is a request, 2 its response, 3 that to a replay; times are nanoseconds; old files have no latency.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO

from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.record import (
    RecordedRequest,
    RecordingHeader,
    RecordingProblems,
    RecordingTrailer,
    Redaction,
)
from autoglm_throttle.traffic.record.recorded_request import MAX_LINE_BYTES
from autoglm_throttle.traffic.record.recording_reader import open_packed
from autoglm_throttle.traffic.record.redaction import target_of

# Most requests that wait for a response further down in the file; older ones are returned without it.
MAX_PENDING = 1_000

_MONKEYS = "\U0001f435\U0001f648\U0001f649".encode()
_HEADER = re.compile(rb"([123]) ([!-~]{1,200}) (\d{1,19})(?: (-?\d{1,19}))?\s*")
_BEGIN = re.compile(rb"[123] [!-~]+ \d+( -?\d+)?\r?\n")
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})")
_BLANK = re.compile(rb"\r?\n(?:\r?\n|\Z)")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,8})[^\r\n]*\r?\n")
_LENGTH = re.compile(r"\d{1,12}", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Headers = list[tuple[str, str]]


@dataclass(slots=True, kw_only=True)
class GorRequest:
    """A request parsed from a file, before redaction; its fields are not trusted."""

    serial: bytes
    at_ns: int  # Nanoseconds since 1970
    method: str
    target: str  # Path and query, as in the file
    headers: Headers  # Lower-case names
    body: bytes
    status: int = 0
    ms: float = 0.0


def is_gor(begin: bytes) -> bool:
    """Return whether the first bytes of a file are those of GoReplay."""
    return _BEGIN.match(begin) is not None


def read_requests(stored: IO[bytes], problems: RecordingProblems) -> Iterator[GorRequest]:
    """Yield the requests of a file in its order, with status and duration of their responses if present."""
    requests: deque[GorRequest] = deque()
    pending: dict[bytes, GorRequest] = {}  # Without a response so far; of two with one serial, the later
    for line, size, parts in _blocks(stored):
        try:
            requests.extend(_read_block(size, parts, pending))
        except TrafficError as problem:
            problems.add(f"line {line}", problem)
        while requests and (
            len(requests) > MAX_PENDING or pending.get(requests[0].serial) is not requests[0]
        ):
            ready = requests.popleft()
            if pending.get(ready.serial) is ready:
                del pending[ready.serial]
            yield ready
    yield from requests


def _blocks(stored: IO[bytes]) -> Iterator[tuple[int, int, list[bytes]]]:
    """Yield the blocks between two separators: first line number, size and lines; none if it is too long."""
    number = first = 1
    size, parts, begins = 0, list[bytes](), True
    while part := stored.readline(MAX_LINE_BYTES):
        # readline(limit) may return a part of a line: only a separator at the start of a line counts.
        ends = part.endswith(b"\n")
        number += ends
        if begins and part.rstrip(b"\r\n") == _MONKEYS:
            yield first, size, parts
            first, size, parts = number, 0, []
        else:
            size += len(part)
            parts.append(part)
            if size > MAX_LINE_BYTES:
                parts.clear()
        begins = ends
    if b"".join(parts).strip():
        yield first, size, parts


def _read_block(size: int, parts: Sequence[bytes], pending: dict[bytes, GorRequest]) -> Sequence[GorRequest]:
    """Return the request of a block, if it is one; add status and duration of a response to its request."""
    if size > MAX_LINE_BYTES:
        raise TrafficError(f"longer than {MAX_LINE_BYTES} bytes")
    header = _HEADER.fullmatch(parts[0]) if parts else None
    if header is None:
        raise TrafficError("expected KIND ID START LATENCY")
    kind, serial, at_ns, latency_ns = header.groups()
    payload = b"".join(parts[1:]).removesuffix(b"\n")
    if kind == b"1":
        pending[serial] = _parse_request(serial, int(at_ns), payload)
        return (pending[serial],)
    if kind == b"2" and serial in pending:
        _add_response(pending.pop(serial), payload, int(at_ns), int(latency_ns or 0))
    return ()


class GorFile:
    """A file of GoReplay, redacted as it is read. It is read twice: times count from the earliest request."""

    has_bodies = True
    end: RecordingTrailer | None = RecordingTrailer("closed", 0)  # Requests dropped by GoReplay are unknown

    def __init__(self, path: Path, redaction: Redaction | None = None) -> None:
        self._path = path
        self._redaction = redaction or Redaction()
        self._problems = RecordingProblems()
        self._removed_fields = 0
        earliest_ns = min((request.at_ns for request in self._requests(RecordingProblems())), default=0)
        # A header states microseconds: round down to the value that is stored.
        self._start_ns = earliest_ns - earliest_ns % 1_000
        start = _EPOCH + timedelta(microseconds=self._start_ns // 1_000)
        self.header: RecordingHeader = RecordingHeader(
            start=start.isoformat(timespec="microseconds"),
            redaction=self._redaction.describe() | {"key": "none"},
        )

    def entries(self) -> Iterator[RecordedRequest]:
        """Yield all requests in file order, with whole bodies."""
        self._problems, self._removed_fields = RecordingProblems(), 0
        for serial, request in enumerate(self._requests(self._problems)):
            try:
                yield self._entry(serial, request)
            except TrafficError as problem:
                self._problems.add(f"request {serial + 1}", problem)

    def problem_lines(self) -> list[str]:
        """Problems and removed data, so far."""
        removed = f"{self._removed_fields} header fields that a recorder does not store were left out"
        return [*self._problems.lines(), *([removed] if self._removed_fields else [])]

    def _entry(self, serial: int, request: GorRequest) -> RecordedRequest:
        pairs = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in request.headers]
        headers = tuple(self._redaction.fields(pairs))
        self._removed_fields += len(pairs) - len(headers)
        return RecordedRequest(
            id=serial,
            t_s=round((request.at_ns - self._start_ns) / 1e9, 6),
            method=self._redaction.method(request.method),
            target=self._redaction.target_of(request.target),
            headers=headers,
            body=request.body,
            body_len=len(request.body),
            status=request.status,
            ms=request.ms,
        )

    def _requests(self, problems: RecordingProblems) -> Iterator[GorRequest]:
        with open_packed(self._path, problems) as stored:
            yield from read_requests(stored, problems)


def _parse_request(serial: bytes, at_ns: int, payload: bytes) -> GorRequest:
    end = _BLANK.search(payload)
    if end is None:
        raise TrafficError("the head of the request has no end")
    first, *lines = payload[: end.start()].decode("latin-1").replace("\r\n", "\n").split("\n")
    headers: Headers = []
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise TrafficError("a line of the head is no field")
        headers.append((name.lower(), value.strip(" \t")))
    parts = first.split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
        raise TrafficError("expected METHOD TARGET HTTP/1.1")
    body = _decode_body(headers, payload[end.end() :])
    return GorRequest(
        serial=serial, at_ns=at_ns, method=parts[0], target=target_of(parts[1]), headers=headers, body=body
    )


def _decode_body(headers: Sequence[tuple[str, str]], rest: bytes) -> bytes:
    fields = dict(headers)
    if len({value for name, value in headers if name == "content-length"}) > 1:
        raise TrafficError("two content-lengths")
    if "chunked" in fields.get("transfer-encoding", "").lower():
        return _join_chunks(rest)
    length = fields.get("content-length", "0")
    if not _LENGTH.fullmatch(length):
        raise TrafficError("content-length is no length")
    if int(length) > len(rest):
        raise TrafficError(f"the body is cut short: {len(rest)} of {int(length)} bytes")
    return rest[: int(length)]


def _join_chunks(rest: bytes) -> bytes:
    parts: list[bytes] = []
    position = 0
    while True:
        size = _CHUNK_SIZE.match(rest, position)
        if size is None:
            raise TrafficError("a chunk of the body has no size")
        begin, length = size.end(), int(size[1], 16)
        if not length:
            return b"".join(parts)
        if begin + length > len(rest):
            raise TrafficError("the chunks of the body are cut short")
        parts.append(rest[begin : begin + length])
        position = begin + length
        position += 2 if rest[position : position + 2] == b"\r\n" else 1


def _add_response(request: GorRequest, payload: bytes, at_ns: int, latency_ns: int) -> None:
    status = _STATUS.match(payload)
    if status is None:
        raise TrafficError("expected HTTP/1.1 STATUS")
    request.status = int(status[1])
    # Older files have no latency: use the difference of the two start times.
    duration_ns = latency_ns if latency_ns > 0 else at_ns - request.at_ns
    request.ms = max(0, duration_ns) / 1e6
