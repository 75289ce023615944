"""Parses a raw HTTP/1.1 request from a file."""

from __future__ import annotations

import re
from collections.abc import Sequence

from autoglm_throttle.traffic.errors import TrafficError

_BLANK = re.compile(rb"\r?\n(?:\r?\n|\Z)")
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,8})[^\r\n]*\r?\n")
_LENGTH = re.compile(r"\d{1,12}", re.ASCII)

Headers = list[tuple[str, str]]


def parse(payload: bytes) -> tuple[str, Headers, bytes]:
    """Split a request into first line, fields with lower-case names, and the remaining bytes.

    Raises:
        TrafficError: a head without an end, or an invalid field line.
    """
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
    return first, headers, payload[end.end() :]


def decoded(headers: Sequence[tuple[str, str]], rest: bytes) -> bytes:
    """Decode the body according to the header fields.

    Raises:
        TrafficError: the body is truncated, or its length or its chunks are invalid.
    """
    fields = dict(headers)
    if "chunked" in fields.get("transfer-encoding", "").lower():
        return _unchunked(rest)
    length = fields.get("content-length", "0")
    if not _LENGTH.fullmatch(length):
        raise TrafficError("content-length is no length")
    if int(length) > len(rest):
        raise TrafficError(f"the body is cut short: {len(rest)} of {int(length)} bytes")
    return rest[: int(length)]


def _unchunked(rest: bytes) -> bytes:
    parts: list[bytes] = []
    position = 0
    while True:
        size = _SIZE.match(rest, position)
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
