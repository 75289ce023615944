"""Reads files of other programs as recorded requests, with the redaction of a recorder."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, cast

from autoglm_throttle.traffic.convert import gor, har, vegeta
from autoglm_throttle.traffic.convert.file_format import FileFormat, open_packed
from autoglm_throttle.traffic.convert.moment import stamp
from autoglm_throttle.traffic.convert.parsed_request import ImportProblems, ParsedRequest
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.record import RecordedRequest, RecordingHeader, RecordingTrailer, Redaction

Read = Callable[[BinaryIO, ImportProblems], Iterator[ParsedRequest]]
_READERS: dict[FileFormat, Read] = {
    FileFormat.VEGETA: vegeta.read,
    FileFormat.GOR: gor.read,
    FileFormat.HAR: har.read,
}
_TEXTS = ("client", "priority", "decision", "reason", "body_sha256")
_NUMBERS: dict[str, tuple[type, ...]] = {"id": (int,), "body_len": (int,), "ttfb_ms": (int, float)}


class ImportedFile:
    """A file of another program, redacted as it is read.

    The file is read twice: times count from the earliest request, wherever it stands.

    Args:
        path: the file; decompressed if its name ends in ``.gz``.
        file_format: of the file.
        redaction: the data to keep; None: the defaults of a recorder.
        times_s: start times, for a format without times; rising.

    Raises:
        TrafficError: the file cannot be read, has no times and none were given, or holds no request.
    """

    has_bodies = True
    end: RecordingTrailer | None = RecordingTrailer("closed", 0)
    """Requests dropped by the other program are unknown."""

    def __init__(
        self,
        path: Path,
        file_format: FileFormat,
        redaction: Redaction | None = None,
        times_s: Sequence[float] | None = None,
    ) -> None:
        if file_format is FileFormat.VEGETA and times_s is None:
            raise TrafficError(f"{path}: targets of vegeta have no times: give a shape")
        self.path = path
        self.file_format = file_format
        self._redaction = redaction or Redaction()
        self._times_s = times_s
        self._faults = ImportProblems()
        self._fields = self._after_end = 0
        self._start_ns = self._earliest()
        start, described = stamp(self._start_ns // 1_000), self._redaction.describe() | {"key": "none"}
        self.heading: RecordingHeader = RecordingHeader(start=start, redaction=described)

    def entries(self) -> Iterator[RecordedRequest]:
        """Yield all requests in file order, with whole bodies."""
        self._faults = ImportProblems()
        self._fields = self._after_end = 0
        for serial, parsed in enumerate(self._parsed(self._faults)):
            try:
                t_s = self._time(serial, parsed)
                if t_s is not None:
                    yield self._entry(serial, t_s, parsed)
            except TrafficError as problem:
                self._faults.add(f"request {serial + 1}", problem)

    def problem_lines(self) -> list[str]:
        """Problems and removed data, so far."""
        lines = self._faults.lines()
        if self._fields:
            lines.append(f"{self._fields} header fields that a recorder does not store were left out")
        if self._after_end:
            lines.append(f"{self._after_end} requests after the end of the shape were left out")
        return lines

    def _time(self, serial: int, parsed: ParsedRequest) -> float | None:
        if parsed.at_ns is not None:
            return max(0, parsed.at_ns - self._start_ns) / 1e9
        times_s = self._times_s or ()
        if serial < len(times_s):
            return times_s[serial]
        self._after_end += 1
        return None

    def _entry(self, serial: int, t_s: float, parsed: ParsedRequest) -> RecordedRequest:
        pairs = [(_bytes(name), _bytes(value)) for name, value in parsed.headers]
        headers = tuple(self._redaction.fields(pairs))
        entry = RecordedRequest(
            **({"id": serial, "body_len": len(parsed.body or b"")} | _typed(parsed.recorded_fields)),
            t_s=round(t_s, 6),
            method=self._redaction.method(parsed.method),
            target=self._redaction.target_of(parsed.target),
            headers=headers,
            body=parsed.body,
            status=parsed.status,
            ms=parsed.ms,
        )
        self._fields += len(pairs) - len(headers)
        return entry if entry.body is None else replace(entry, body_len=len(entry.body), body_sha256="")

    def _earliest(self) -> int:
        times = (parsed.at_ns for parsed in self._parsed(ImportProblems()) if parsed.at_ns is not None)
        earliest = min(times, default=0)
        # Headings store microseconds: round down to the value that is stored.
        return earliest - earliest % 1_000

    def _parsed(self, faults: ImportProblems) -> Iterator[ParsedRequest]:
        try:
            with closing(open_packed(self.path)) as stored:
                yield from _READERS[self.file_format](cast("BinaryIO", stored), faults)
        except (EOFError, zlib.error, gzip.BadGzipFile):
            faults.add("the end", "the packed data ends in the middle, or is damaged")
        except OSError as error:
            raise TrafficError(f"{self.path}: cannot be read: {error.strerror}") from None


def _typed(recorded: Mapping[str, object]) -> dict[str, Any]:
    """Return the fields of a recording that have the right type; the entry checks their values."""
    texts = {name: recorded[name] for name in _TEXTS if isinstance(recorded.get(name), str)}
    return texts | {
        name: recorded[name] for name, types in _NUMBERS.items() if type(recorded.get(name)) in types
    }


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
