"""Reads a recording: its requests in order of arrival, and its problems.

Lines are in order of completion, so the file is read twice. The first pass measures how far they are out
of order; the second sorts them with no more memory than necessary.
"""

from __future__ import annotations

import gzip
import heapq
import math
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final, cast

from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.record.entry import LAST_S, LINE_AT_MOST, VERSION, Entry, parsed
from autoglm_throttle.traffic.record.heading import KIND, End, Heading

SORTED_WITHIN_S: Final = 120.0
"""Greatest distance of a line behind later arrivals; beyond it is a fault, not a long request."""

FAULTS_SHOWN: Final = 20
"""Problems listed by line; the others are only counted."""

_T = re.compile(rb'\{"v":1,"t":(\d{1,9}(?:\.\d{1,9})?),')
"""Start of a line written by this library."""


@dataclass(slots=True)
class Faults:
    """Problems found in a file, in texts that quote nothing of it."""

    told: list[str] = field(default_factory=list)
    """The first problems, each with its line."""
    count: int = 0
    """Total number of problems."""

    def add(self, number: int, what: str) -> None:
        """Record one problem."""
        self.count += 1
        if len(self.told) < FAULTS_SHOWN:
            self.told.append(f"line {number}: {what}")

    def __iter__(self) -> Iterator[str]:
        return iter(self.told)

    def __len__(self) -> int:
        return self.count


class Recording:
    """Reads a recording on disk; `open_recording` creates it.

    Args:
        path: the file; a name that ends in ``.gz`` is decompressed while reading.

    Raises:
        TrafficError: it cannot be read, is no recording, or of another version.
    """

    def __init__(self, path: Path) -> None:
        self.path: Path = path
        self.faults: Faults = Faults()
        """Unreadable lines; complete once the entries were read to the end."""
        self.end: End | None = None
        """The last line; None where the recorder had no time to write it. Known after the entries."""
        self.heading: Heading = Heading()
        """The first line."""
        self._late_s = self._look_through()

    def entries(self) -> Iterator[Entry]:
        """Yield all requests in order of arrival; each call reads the file again."""
        self.faults = Faults()
        waiting: list[tuple[float, int, int, Entry]] = []
        newest = -math.inf
        for number, line in self._lines(self.faults):
            entry = self._entry(number, line)
            if entry is None:
                continue
            if entry.t_s < newest - SORTED_WITHIN_S:
                self.faults.add(number, f"more than {SORTED_WITHIN_S:g} s out of order")
                continue
            newest = max(newest, entry.t_s)
            heapq.heappush(waiting, (entry.t_s, entry.id, number, entry))
            while waiting[0][0] < newest - self._late_s:
                # No later line can have arrived before this one.
                yield heapq.heappop(waiting)[-1]
        while waiting:
            yield heapq.heappop(waiting)[-1]

    def written(self, shown: Callable[[int, bytes], None] | None = None) -> Iterator[tuple[int, Entry]]:
        """Yield all requests with their line numbers, in file order.

        Args:
            on_line: called with each line, including those without a request.
        """
        self.faults = Faults()
        for number, line in self._lines(self.faults):
            if shown is not None:
                shown(number, line)
            entry = self._entry(number, line)
            if entry is not None:
                yield number, entry

    def _entry(self, number: int, line: bytes) -> Entry | None:
        try:
            found = _special(line, number)
            if found is None:
                return Entry.from_line(line)
            if "end" in found:
                self.end = End.of(found)
        except TrafficError as error:
            self.faults.add(number, str(error) + ("" if line.endswith(b"\n") else "; the file ends in it"))
        return None

    def _look_through(self) -> float:
        """Read the header; return how many seconds a line may be behind later arrivals."""
        newest, late_s = -math.inf, 0.0
        seen = 0
        for number, line in self._lines(Faults()):
            seen = number
            if number == 1:
                self._read_heading(line)
            t_s = _time(line)
            if t_s is not None:
                newest = max(newest, t_s)
                late_s = max(late_s, newest - t_s)
        if not seen:
            raise TrafficError(f"{self.path}: empty, so no recording")
        return min(late_s, SORTED_WITHIN_S)

    def _read_heading(self, line: bytes) -> None:
        try:
            found = parsed(line)
        except TrafficError:
            raise TrafficError(
                f"{self.path}: no recording of this library: its first line is not JSON"
            ) from None
        if "v" not in found or ("kind" in found and found["kind"] != KIND):
            raise TrafficError(f"{self.path}: no recording of this library")
        if found["v"] != VERSION:
            raise TrafficError(f"{self.path}: of another version; this one reads version {VERSION}")
        if "kind" in found:
            self.heading = Heading.of(found)

    def _lines(self, faults: Faults) -> Iterator[tuple[int, bytes]]:
        """Yield line numbers and lines; long lines are skipped."""
        number = 0
        try:
            with closing(_opened(self.path)) as stored:
                while line := stored.readline(LINE_AT_MOST + 1):
                    number += 1
                    if len(line) > LINE_AT_MOST:
                        faults.add(number, f"longer than {LINE_AT_MOST} bytes")
                        _skip(stored, line)
                        if number > 1:
                            continue
                    yield number, line
        except (EOFError, zlib.error, gzip.BadGzipFile):
            faults.add(number + 1, "the packed data ends in the middle, or is damaged")
        except OSError as error:
            raise TrafficError(f"{self.path}: cannot be read: {error.strerror}") from None


def open_recording(path: Path | str) -> Recording:
    """Open a recording.

    Raises:
        TrafficError: it cannot be read, is no recording, or of another version.
    """
    return Recording(Path(path))


def _opened(path: Path) -> IO[bytes]:
    return cast("IO[bytes]", gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb")


def _skip(stored: IO[bytes], part: bytes) -> None:
    """Skip to the end of a line."""
    while part and not part.endswith(b"\n"):
        part = stored.readline(LINE_AT_MOST)


def _special(line: bytes, number: int) -> dict[str, Any] | None:
    """Return the object of a first or last line; None for that of a request."""
    if _T.match(line):
        return None
    found = parsed(line)
    return found if (number == 1 and "kind" in found) or ("end" in found and "method" not in found) else None


def _time(line: bytes) -> float | None:
    """Return the arrival time of a line; None if it has none."""
    match = _T.match(line)
    if match is not None:
        return float(match[1])
    try:
        t_s = parsed(line).get("t")
    except TrafficError:
        return None
    return float(t_s) if isinstance(t_s, (int, float)) and 0.0 <= t_s < LAST_S else None
