"""Reads and writes files of GoReplay (``.gor``): raw requests and answers between header and separator lines.

The header line is ``KIND ID START LATENCY``: kind 1 is a request, 2 its answer, 3 the answer to a replay of
it; start and latency are nanoseconds. Older files have no latency. The separator line is three monkeys.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

from autoglm_throttle.traffic.convert.message import decoded, parse
from autoglm_throttle.traffic.convert.parsed_request import ImportProblems, ParsedRequest, target_of
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.record.recorded_request import MAX_LINE_BYTES, RecordedRequest

LOST = (
    "clients",
    "priorities as decided",
    "decisions",
    "times to the first byte",
    "host and transfer-encoding",
    "when the recording began and why it ended",
    "records of dropping, sampling and redaction",
)
"""Data that the format cannot hold."""

MONKEYS = "\U0001f435\U0001f648\U0001f649".encode()
REQUEST_KIND, RESPONSE_KIND = b"1", b"2"

FRAMING = ("host", "content-length", "transfer-encoding")
"""Header fields that are written anew: a body is written whole, never in chunks."""

MAX_PENDING = 1_000
"""Most requests that wait for an answer further down in the file; older ones are returned without it."""

_HEADER = re.compile(rb"([123]) ([!-~]{1,200}) (\d{1,19})(?: (-?\d{1,19}))?\s*")
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})")


@dataclass(slots=True)
class GorBlock:
    """Lines between two separators."""

    line: int
    """Line number in the file, from 1."""
    parts: list[bytes] = field(default_factory=list)
    size: int = 0

    def add(self, part: bytes) -> None:
        """Add a line, or a part of one; an oversized block holds no data."""
        self.size += len(part)
        if self.size > MAX_LINE_BYTES:
            self.parts.clear()
        else:
            self.parts.append(part)


class _PendingRequests:
    """Requests that wait for their answers, in file order."""

    def __init__(self) -> None:
        self._requests: dict[int, tuple[bytes, ParsedRequest]] = {}
        self._open: dict[bytes, int] = {}
        self._count = 0

    def add_request(self, serial: bytes, parsed: ParsedRequest) -> None:
        """Add a request; of two with one serial, the later one gets the answer."""
        self._open[serial] = self._count
        self._requests[self._count] = serial, parsed
        self._count += 1

    def match_response(self, serial: bytes) -> ParsedRequest | None:
        """Return the request of an answer; None if it does not wait any more."""
        number = self._open.pop(serial, None)
        return None if number is None else self._requests[number][1]

    def pop_ready(self, at_most: int) -> Iterator[ParsedRequest]:
        """Remove and yield requests from the front that have their answer, or exceed ``at_most``."""
        while self._requests:
            number, (serial, parsed) = next(iter(self._requests.items()))
            waits = self._open.get(serial) == number
            if waits and len(self._requests) <= at_most:
                return
            if waits:
                del self._open[serial]
            del self._requests[number]
            yield parsed


def read(stored: BinaryIO, faults: ImportProblems) -> Iterator[ParsedRequest]:
    """Yield the requests of a file, with status and duration of their answers if present."""
    pending = _PendingRequests()
    for block in _blocks(stored):
        try:
            _process_block(block, pending)
        except TrafficError as problem:
            faults.add(f"line {block.line}", problem)
        yield from pending.pop_ready(MAX_PENDING)
    yield from pending.pop_ready(0)


def write(entry: RecordedRequest, body: bytes, start_ns: int, host: str) -> bytes:
    """Format a request, and the status line of its answer, if any: a recording has no more of the answer.

    Args:
        entry: the request.
        body: of it.
        start_ns: start of the recording, in nanoseconds since 1970.
        host: of the service.

    Raises:
        TrafficError: the body contains the separator line.
    """
    if b"\n" + MONKEYS in b"\n" + body:
        raise TrafficError(f"request {entry.id}: its body contains the separator line of GoReplay")
    at_ns = start_ns + round(entry.t_s * 1e6) * 1_000
    lines = [f"{entry.method} {entry.target} HTTP/1.1", f"host: {host}"]
    lines += [f"{name}: {value}" for name, value in entry.headers if name not in FRAMING]
    if body or any(name == "content-length" for name, _ in entry.headers):
        lines.append(f"content-length: {len(body)}")
    head = "\r\n".join((*lines, "", "")).encode("ascii")
    request = _framed(f"1 {entry.id:024x} {at_ns} 0", head + body)
    if not entry.status:
        return request
    duration_ns = round(entry.ms * 1e3) * 1_000
    answer = f"HTTP/1.1 {entry.status} \r\ncontent-length: 0\r\n\r\n".encode("ascii")
    return request + _framed(f"2 {entry.id:024x} {at_ns + duration_ns} {duration_ns}", answer)


def _framed(header: str, payload: bytes) -> bytes:
    return header.encode("ascii") + b"\n" + payload + b"\n" + MONKEYS + b"\n"


def _blocks(stored: BinaryIO) -> Iterator[GorBlock]:
    number, begins = 1, True
    block = GorBlock(number)
    while part := stored.readline(MAX_LINE_BYTES):
        # readline(limit) may return a part of a line: only a separator at the start of a line counts.
        ends = part.endswith(b"\n")
        if begins and part.rstrip(b"\r\n") == MONKEYS:
            yield block
            block = GorBlock(number + 1)
        else:
            block.add(part)
        number += ends
        begins = ends
    if block.size and b"".join(block.parts).strip():
        yield block


def _process_block(block: GorBlock, pending: _PendingRequests) -> None:
    if block.size > MAX_LINE_BYTES:
        raise TrafficError(f"longer than {MAX_LINE_BYTES} bytes")
    header = _HEADER.fullmatch(block.parts[0]) if block.parts else None
    if header is None:
        raise TrafficError("expected KIND ID START LATENCY")
    kind, serial, at_ns, latency_ns = header.groups()
    payload = b"".join(block.parts[1:]).removesuffix(b"\n")
    if kind == REQUEST_KIND:
        pending.add_request(serial, _request(int(at_ns), payload))
    elif kind == RESPONSE_KIND:
        parsed = pending.match_response(serial)
        if parsed is not None:
            _add_response(parsed, payload, int(at_ns), int(latency_ns or 0))


def _request(at_ns: int, payload: bytes) -> ParsedRequest:
    first, headers, body = parse(payload)
    parts = first.split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
        raise TrafficError("expected METHOD TARGET HTTP/1.1")
    return ParsedRequest(
        at_ns=at_ns,
        method=parts[0],
        target=target_of(parts[1]),
        headers=headers,
        body=decoded(headers, body),
    )


def _add_response(parsed: ParsedRequest, payload: bytes, at_ns: int, latency_ns: int) -> None:
    status = _STATUS.match(payload)
    if status is None:
        raise TrafficError("expected HTTP/1.1 STATUS")
    parsed.status = int(status[1])
    # Older files have no latency: use the difference of the two start times.
    duration_ns = latency_ns if latency_ns > 0 else at_ns - (parsed.at_ns or 0)
    parsed.ms = max(0, duration_ns) / 1e6
