"""Reads a recording: its requests in order of arrival, and its problems.

The file is read twice: to measure how far lines are out of order, then to sort them in little memory.
"""

from __future__ import annotations

import gzip
import heapq
import math
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Final, cast

from autoglm_throttle.settings.groups.observe import identifies_caller
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.record.recorded_request import (
    KIND,
    MAX_LINE_BYTES,
    MAX_TIME_S,
    VERSION,
    RecordedRequest,
    RecordingHeader,
    RecordingTrailer,
    parse_object,
)
from autoglm_throttle.traffic.record.redaction import Redaction, target_of
from autoglm_throttle.types import Priority

# Greatest distance of a line behind later arrivals; beyond it is a fault, not a long request.
SORTED_WITHIN_S: Final = 120.0

# Memory of the requests that wait to be sorted: two minutes at 1,500/s. Beyond it, late lines are a fault.
HELD_BYTES: Final = 256 * 1024 * 1024
REQUEST_BYTES, FIELD_BYTES = 1024, 192  # Memory of a request and of a header field, besides their text

MAX_PROBLEMS_SHOWN: Final = 20  # Problems listed by line; the others are only counted
_T = re.compile(rb'\{"v":1,"t":(\d{1,9}(?:\.\d{1,9})?),')  # Start of a line written by this library


@dataclass(slots=True)
class RecordingProblems:
    """Problems found in a file, in texts that quote nothing of it."""

    messages: list[str] = field(default_factory=list)  # The first ones, each with its place
    kinds: Counter[str] = field(default_factory=Counter)  # Number of all problems by kind

    def add(self, place: str, problem: object, kind: str = "cannot be read") -> None:
        """Record one problem."""
        self.kinds[kind] += 1
        if len(self.messages) < MAX_PROBLEMS_SHOWN:
            self.messages.append(f"{place}: {problem}")

    @property
    def count(self) -> int:
        """Total number of problems."""
        return self.kinds.total()

    def lines(self) -> list[str]:
        """Format the first problems, and the number of the others."""
        more = self.count - len(self.messages)
        return [*self.messages, f"and {more} more"] if more else list(self.messages)


class RecordingReader:
    """Reads a recording on disk; the redaction is applied once more. A name in ``.gz`` is decompressed.

    Data that may never be recorded is removed, wherever it came from. TrafficError is raised for a file that
    cannot be read, is no recording, or is of another version.
    """

    has_bodies = False  # Whether entries carry bodies that a recording need not store

    def __init__(self, path: Path, redaction: Redaction | None = None) -> None:
        self.path: Path = path
        # Both are complete once the entries were read to the end.
        self.problems: RecordingProblems = RecordingProblems()
        self.end: RecordingTrailer | None = None  # The last line; None: it was not written
        self.header: RecordingHeader = RecordingHeader()  # The first line
        self._redaction = redaction
        self._removed_fields = self._changed_targets = 0
        self._late_s = self._scan()
        if redaction is not None:
            described = dict(self.header.redaction) | redaction.describe()
            self.header = replace(self.header, redaction=described)

    def entries(self) -> Iterator[RecordedRequest]:
        """Yield all requests in order of arrival; each call reads the file again."""
        self._removed_fields = self._changed_targets = 0
        waiting: list[tuple[float, int, int, int, RecordedRequest]] = []
        newest = yielded_s = -math.inf
        held_bytes = 0
        for number, line, entry in self.lines():
            if entry is None:
                continue
            late_s = newest - SORTED_WITHIN_S
            if entry.t_s < max(late_s, yielded_s):
                limit = f"{SORTED_WITHIN_S:g} s" if entry.t_s < late_s else "can be sorted"
                self.problems.add(f"line {number}", f"more than {limit} out of order")
                continue
            newest = max(newest, entry.t_s)
            size = len(line) + REQUEST_BYTES + FIELD_BYTES * len(entry.headers)
            heapq.heappush(waiting, (entry.t_s, entry.id, number, size, entry))
            held_bytes += size
            # No later line can have arrived before the first one, unless too many wait.
            while waiting and (waiting[0][0] < newest - self._late_s or held_bytes > HELD_BYTES):
                yielded_s, _, _, size, first = heapq.heappop(waiting)
                held_bytes -= size
                yield self._redacted(first)
        while waiting:
            yield self._redacted(heapq.heappop(waiting)[-1])

    def _redacted(self, entry: RecordedRequest) -> RecordedRequest:
        headers = entry.headers
        try:
            target = target_of(entry.target)
        except TrafficError:  # no path, such as ``*``
            target = entry.target.partition("#")[0] or "/"
        if self._redaction is not None:
            pairs = [(name.encode("ascii"), value.encode("ascii")) for name, value in headers]
            headers, target = tuple(self._redaction.fields(pairs)), self._redaction.target_of(target)
        headers = tuple(pair for pair in headers if not identifies_caller(pair[0]) or Priority.knows(pair[1]))
        self._removed_fields += len(entry.headers) - len(headers)
        self._changed_targets += target != entry.target
        if (headers, target) == (entry.headers, entry.target):
            return entry
        return replace(entry, headers=headers, target=target)

    def problem_lines(self) -> list[str]:
        """Problems and removed data, so far."""
        lines = self.problems.lines()
        if self._removed_fields:
            lines.append(f"{self._removed_fields} header fields were left out")
        if self._changed_targets:
            lines.append(f"of {self._changed_targets} requests a part of the URL was left out or masked")
        return lines

    def lines(self) -> Iterator[tuple[int, bytes, RecordedRequest | None]]:
        """Yield each line with its number and its request; None for the first, last and unreadable lines."""
        self.problems = RecordingProblems()
        for number, line in self._lines(self.problems):
            yield number, line, self._entry(number, line)

    def _entry(self, number: int, line: bytes) -> RecordedRequest | None:
        try:
            data = _header_or_trailer(line, number)
            if data is None:
                return RecordedRequest.from_line(line)
            if "end" in data:
                self.end = RecordingTrailer.of(data)
        except TrafficError as error:
            self.problems.add(
                f"line {number}", str(error) + ("" if line.endswith(b"\n") else "; the file ends in it")
            )
        return None

    def _scan(self) -> float:
        """Read the header; return how many seconds a line may be behind later arrivals."""
        newest, late_s = -math.inf, 0.0
        line_count = 0
        for number, line in self._lines(RecordingProblems()):
            line_count = number
            if number == 1:
                self._read_header(line)
            t_s = _arrival_time(line)
            if t_s is not None:
                newest = max(newest, t_s)
                late_s = max(late_s, newest - t_s)
        if not line_count:
            raise TrafficError(f"{self.path}: empty, so no recording")
        return min(late_s, SORTED_WITHIN_S)

    def _read_header(self, line: bytes) -> None:
        try:
            data = parse_object(line)
        except TrafficError:
            raise TrafficError(
                f"{self.path}: no recording of this library: its first line is not JSON"
            ) from None
        if "v" not in data or ("kind" in data and data["kind"] != KIND):
            raise TrafficError(f"{self.path}: no recording of this library")
        if data["v"] != VERSION:
            raise TrafficError(f"{self.path}: of another version; this one reads version {VERSION}")
        if "kind" in data:
            self.header = RecordingHeader.of(data)

    def _lines(self, problems: RecordingProblems) -> Iterator[tuple[int, bytes]]:
        """Yield line numbers and lines; long lines are skipped."""
        number = 0
        with open_packed(self.path, problems) as stored:
            while line := stored.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(line) > MAX_LINE_BYTES:
                    problems.add(f"line {number}", f"longer than {MAX_LINE_BYTES} bytes")
                    _skip_line(stored, line)
                    if number > 1:
                        continue
                yield number, line


def open_recording(path: Path | str) -> RecordingReader:
    """Open a recording; raises as `RecordingReader`."""
    return RecordingReader(Path(path))


@contextmanager
def open_packed(path: Path, problems: RecordingProblems) -> Iterator[IO[bytes]]:
    """Open a file for reading; decompress it if its name ends in ``.gz``.

    Packed data that is damaged or ends in the middle ends the block, and is one of the problems.
    """
    try:
        if path.exists() and not path.is_file():  # opening a pipe waits, and a device has no end
            raise TrafficError(f"{path}: cannot be read: not a file")
        with closing(gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")) as stored:
            yield cast("IO[bytes]", stored)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        problems.add("the end", "the packed data ends in the middle, or is damaged")
    except OSError as error:
        raise TrafficError(f"{path}: cannot be read: {error.strerror}") from None


def _skip_line(stored: IO[bytes], part: bytes) -> None:
    """Skip to the end of a line."""
    while part and not part.endswith(b"\n"):
        part = stored.readline(MAX_LINE_BYTES)


def _header_or_trailer(line: bytes, number: int) -> dict[str, Any] | None:
    """Return the object of a first or last line; None for that of a request."""
    if _T.match(line):
        return None
    data = parse_object(line)
    return data if (number == 1 and "kind" in data) or ("end" in data and "method" not in data) else None


def _arrival_time(line: bytes) -> float | None:
    """Return the arrival time of a line; None if it has none."""
    match = _T.match(line)
    if match is not None:
        return float(match[1])
    try:
        t_s = parse_object(line).get("t")
    except TrafficError:
        return None
    return float(t_s) if isinstance(t_s, (int, float)) and 0.0 <= t_s < MAX_TIME_S else None
