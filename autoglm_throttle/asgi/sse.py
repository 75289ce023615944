"""Reads the tokens of a response from copies of its body messages: event streams, JSON, or plain bytes.

The result is the same for every way of dividing a body into messages. Any bytes may come. A reader keeps at
most `EVENT_BYTES`, twice `TAIL_BYTES`, and an eighth of it, the spare part of a growing buffer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from autoglm_throttle.limiting.token_usage import TEMPLATE_BYTES, TokenUsage, parsed

EVENT_BYTES: Final = 65_536  # A longer event is not read, but counted by its bytes
TAIL_BYTES: Final = 16_384  # The end of a longer JSON body, where its usage stands, is read alone

_BOM: Final = b"\xef\xbb\xbf"
_LF: Final = 10
_LINE_ENDS: Final = (b"", b"\n", b"\r")
# Quotes inside a JSON text are escaped: this is a key at some depth.
_USAGE: Final = re.compile(rb'"(?:usage|meta_info)"\s*:\s*(?=\{)')
_USAGES_AT_MOST: Final = 8  # Objects that are tried, the last one first


class EventReader:
    """Divides an event stream into events, as the HTML standard does, and counts their tokens.

    A chunk that ends with a carriage return ends its line at once; a line feed at the start of the next
    chunk belongs to it.
    """

    __slots__ = (
        *("_after_return", "_data", "_event_bytes", "_is_first", "_line", "_line_bytes"),
        *("first", "is_between_events", "last", "usage"),
    )

    def __init__(self, usage: TokenUsage) -> None:
        self.usage: TokenUsage = usage
        # Whether the next byte begins an event, but not the first one.
        self.is_between_events: bool = False
        # Data of the first and the newest event; empty: it is longer than is kept.
        self.first: bytes | bytearray = b""
        self.last: bytes | bytearray = b""
        self._is_first = True  # Whether no line has ended
        self._after_return = False
        self._line = bytearray()  # Start of a line whose end has not come
        self._line_bytes = 0  # Its bytes, also if they are not kept
        self._data: bytes | bytearray | None = None  # Data of the event up to here; None: it has none
        self._event_bytes = 0  # Bytes of its lines that have ended

    def feed(self, chunk: bytes) -> None:  # noqa: C901, PLR0912 - for each event: a call costs 3 %
        """Read the next bytes of the stream."""
        if self.is_between_events and chunk[:6] == b"data: " and chunk[-2:] == b"\n\n":
            size = len(chunk) - 2
            if chunk.find(b"\n") == size and size <= TEMPLATE_BYTES and b"\r" not in chunk:
                self.last = data = chunk[6:size]
                self.usage.add_event(data)  # what follows gives the same, and takes longer
                return
        if not chunk:
            return
        if self._after_return:
            self._after_return = False
            if chunk[0] == _LF:
                chunk = chunk[1:]
        lines = chunk.splitlines()  # at LF, CR LF and CR
        rest = lines.pop() if chunk[-1:] not in _LINE_ENDS else b""
        if chunk[-1:] == b"\r":
            self._after_return = True
        if lines:
            if self._line_bytes or self._is_first:
                lines[0] = self._joined(lines[0])
            for line in lines:
                if line:
                    self._event_bytes += len(line)
                    if line[:5] == b"data:" and self._event_bytes <= EVENT_BYTES:
                        self._add_data(line[6:] if line[5:6] == b" " else line[5:])
                else:
                    self._end_event()
        if rest:
            self._keep(rest)
        is_inside = self._line_bytes or self._event_bytes or self._after_return or self._is_first
        self.is_between_events = bool(self.first) and not is_inside

    def finish(self) -> None:
        """End the stream: an event without its empty line counts as well."""
        self.feed(b"\n\n")

    def _keep(self, rest: bytes) -> None:
        """Keep the start of a line, unless its event is too long."""
        self._line_bytes += len(rest)
        if self._event_bytes + self._line_bytes <= EVENT_BYTES:
            self._line += rest
        else:
            self._line, self._data = bytearray(), None

    def _joined(self, line: bytes) -> bytes:
        """Return the first line of a chunk, with the start of it that came earlier."""
        size, self._line_bytes = self._line_bytes, 0
        if size > len(self._line):  # it is not kept: a comment of one byte stands for it
            self._event_bytes += size + len(line) - 1
            line = b":"
        elif size:
            line = bytes(self._line + line)
            self._line = bytearray()
        if self._is_first:
            self._is_first = False
            line = line.removeprefix(_BOM)
        return line

    def _add_data(self, value: bytes) -> None:
        data = self._data
        if data is None:
            self._data = value
            return
        if not isinstance(data, bytearray):
            data = self._data = bytearray(data)
        data += b"\n"
        data += value

    def _end_event(self) -> None:
        data, size = self._data, self._event_bytes
        self._data, self._event_bytes = None, 0
        if size > EVENT_BYTES:
            self.usage.add_unread(size)
        elif data:
            self.first = self.first or data[:TAIL_BYTES]
            self.last = data if size <= TAIL_BYTES else b""
            self.usage.add_event(data)


class BodyReader:
    """Reads the usage of a JSON body: of a long one from its end."""

    __slots__ = ("_kept", "_size", "usage")

    def __init__(self, usage: TokenUsage) -> None:
        self.usage: TokenUsage = usage
        self._kept = bytearray()
        self._size = 0

    def feed(self, chunk: bytes) -> None:
        """Read the next bytes of the body."""
        self._size += len(chunk)
        if self._size <= EVENT_BYTES:
            self._kept += chunk
        else:
            self._kept = (self._kept + chunk[-TAIL_BYTES:])[-TAIL_BYTES:]

    def finish(self) -> None:
        """End the body; one of unknown form counts by its bytes."""
        usage = self.usage
        if not self._size:
            return
        if self._size <= EVENT_BYTES and usage.add_body(parsed(self._kept)):
            return
        usage.add_unread(self._size)
        for place in [match.end() for match in _USAGE.finditer(self._kept)][: -_USAGES_AT_MOST - 1 : -1]:
            if usage.report(parsed(self._kept[place:])):
                break


class ByteCounter:
    """Counts a body that cannot be read, such as a compressed one, by its bytes."""

    __slots__ = ("usage",)

    def __init__(self, usage: TokenUsage) -> None:
        self.usage: TokenUsage = usage

    def feed(self, chunk: bytes) -> None:
        """Count the next bytes."""
        self.usage.text_bytes += len(chunk)

    def finish(self) -> None:
        """End the body."""


UsageReader = EventReader | BodyReader | ByteCounter


def usage_reader(headers: Iterable[tuple[bytes, bytes]], usage: TokenUsage) -> UsageReader | None:
    """Return the reader for a response with these header fields; None: it is no text."""
    kind, is_encoded = b"", False
    for name, value in headers:
        lower = name.lower()
        if lower == b"content-type":
            kind = value.lower()
        elif lower == b"content-encoding":
            is_encoded = value.strip().lower() not in {b"", b"identity"}
    is_stream, is_json = b"text/event-stream" in kind, b"json" in kind
    if not (is_stream or is_json or kind.startswith(b"text/")):
        return None
    if is_encoded or not (is_stream or is_json):
        return ByteCounter(usage)
    return EventReader(usage) if is_stream else BodyReader(usage)
