"""Opens a file of any format as recorded requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Protocol

from autoglm_throttle.settings.groups.recorder import identifies_caller
from autoglm_throttle.traffic.convert.file_format import FileFormat, detect_format
from autoglm_throttle.traffic.convert.imported import ImportedFile
from autoglm_throttle.traffic.convert.moment import nanoseconds
from autoglm_throttle.traffic.convert.parsed_request import target_of
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.record import (
    RecordedRequest,
    RecordingHeader,
    RecordingReader,
    RecordingTrailer,
    Redaction,
    open_recording,
)
from autoglm_throttle.types import Priority


class ImportSource(Protocol):
    """A file of recorded requests."""

    heading: RecordingHeader
    """Header of the recording."""
    has_bodies: bool
    """Whether entries carry bodies that a recording need not store."""

    @property
    def end(self) -> RecordingTrailer | None:
        """Reason why the recording ended; None if unknown. Known after the entries."""
        ...

    def entries(self) -> Iterator[RecordedRequest]:
        """Yield all entries; each call reads the file anew."""
        ...

    def problem_lines(self) -> list[str]:
        """Problems and removed data, so far."""
        ...


class RecordingSource:
    """A recording of this library. Data that may never be recorded is removed, wherever it came from.

    Args:
        recording: the file.
        redaction: applied once more; None: unchanged.
    """

    has_bodies = False

    def __init__(self, recording: RecordingReader, redaction: Redaction | None = None) -> None:
        self._recording = recording
        self._redaction = redaction
        self._fields = self._targets = 0
        self.heading: RecordingHeader = recording.header
        if redaction is not None:
            described = dict(recording.header.redaction) | redaction.describe()
            self.heading = replace(recording.header, redaction=described)

    @property
    def end(self) -> RecordingTrailer | None:
        """The last line of the recording."""
        return self._recording.end

    def entries(self) -> Iterator[RecordedRequest]:
        """All entries in order of time."""
        self._fields = self._targets = 0
        for entry in self._recording.entries():
            yield self._filtered(entry)

    def _filtered(self, entry: RecordedRequest) -> RecordedRequest:
        headers, target = entry.headers, _origin_form(entry.target)
        if self._redaction is not None:
            pairs = [(name.encode("ascii"), value.encode("ascii")) for name, value in headers]
            headers, target = tuple(self._redaction.fields(pairs)), self._redaction.target_of(target)
        headers = tuple(pair for pair in headers if not identifies_caller(pair[0]) or Priority.knows(pair[1]))
        self._fields += len(entry.headers) - len(headers)
        self._targets += target != entry.target
        return (
            entry
            if (headers, target) == (entry.headers, entry.target)
            else replace(entry, headers=headers, target=target)
        )

    def problem_lines(self) -> list[str]:
        """Problems and removed data, so far."""
        faults = self._recording.problems
        more = len(faults) - len(faults.messages)
        lines = [*faults.messages, *([f"and {more} more"] if more else [])]
        if self._fields:
            lines.append(f"{self._fields} header fields were left out")
        if self._targets:
            lines.append(f"of {self._targets} requests a part of the URL was left out or masked")
        return lines


def open_source(
    path: Path,
    file_format: FileFormat | None = None,
    redaction: Redaction | None = None,
    times_s: Sequence[float] | None = None,
) -> ImportSource:
    """Open a file of any format.

    Args:
        path: the file.
        file_format: of the file; None: detected.
        redaction: the data to keep; None: everything recorded, or the defaults of a recorder.
        times_s: start times, for a format without times.

    Raises:
        TrafficError: the file cannot be read, or has no known format.
    """
    chosen = file_format or detect_format(path)
    if chosen is FileFormat.JSONL:
        return RecordingSource(open_recording(path), redaction)
    return ImportedFile(path, chosen, redaction, times_s)


def _origin_form(target: str) -> str:
    """Remove host, user and fragment from a target; one that is no path, such as ``*``, stays."""
    try:
        return target_of(target)
    except TrafficError:
        return target.partition("#")[0] or "/"


def recorded_names(path: Path, file_format: FileFormat | None = None) -> tuple[list[str], list[str]]:
    """Return the names of header fields and of query parameters that a recording lists as stored.

    Both are empty for a file of another program. A name that may not be allowed is left out. A `Redaction`
    with these names removes no more from such a file than requested.

    Args:
        path: the file.
        file_format: of the file; None: detected.

    Raises:
        TrafficError: the file cannot be read, or has no known format.
    """
    if (file_format or detect_format(path)) is not FileFormat.JSONL:
        return [], []
    redaction = open_recording(path).header.redaction
    headers = [name for name in _names(redaction, "headers") if _is_allowed_header(name)]
    return headers, _names(redaction, "query")


def _names(redaction: Mapping[str, object], key: str) -> list[str]:
    names = redaction.get(key)
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _is_allowed_header(name: str) -> bool:
    try:
        Redaction(allow_headers=[name])
    except TrafficError:
        return False
    return True


def start_ns(heading: RecordingHeader) -> int:
    """Return the start of a recording in nanoseconds since 1970; 0 if it is missing or invalid."""
    try:
        moment = datetime.fromisoformat(heading.start)
    except ValueError:
        return 0
    return nanoseconds(moment) or 0
