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
from autoglm_throttle.traffic.convert.form import Form, opened
from autoglm_throttle.traffic.convert.found import Faults, Found
from autoglm_throttle.traffic.convert.moment import stamp
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.record import End, Entry, Heading, Redaction

Read = Callable[[BinaryIO, Faults], Iterator[Found]]
_READERS: dict[Form, Read] = {Form.VEGETA: vegeta.read, Form.GOR: gor.read, Form.HAR: har.read}
_TEXTS = ("client", "priority", "decision", "reason", "body_sha256")
_NUMBERS: dict[str, tuple[type, ...]] = {"id": (int,), "body_len": (int,), "ttfb_ms": (int, float)}


class Imported:
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

    whole = True
    end: End | None = End("closed", 0)
    """Requests dropped by the other program are unknown."""

    def __init__(
        self,
        path: Path,
        form: Form,
        redaction: Redaction | None = None,
        times_s: Sequence[float] | None = None,
    ) -> None:
        if form is Form.VEGETA and times_s is None:
            raise TrafficError(f"{path}: targets of vegeta have no times: give a shape")
        self.path = path
        self.form = form
        self._redaction = redaction or Redaction()
        self._times_s = times_s
        self._faults = Faults()
        self._fields = self._beyond = 0
        self._start_ns = self._earliest()
        self.heading: Heading = Heading(
            start=stamp(self._start_ns // 1_000), redaction=self._redaction.described() | {"key": "none"}
        )

    def entries(self) -> Iterator[Entry]:
        """Yield all requests in file order, with whole bodies."""
        self._faults = Faults()
        self._fields = self._beyond = 0
        for serial, found in enumerate(self._found(self._faults)):
            try:
                t_s = self._time(serial, found)
                if t_s is not None:
                    yield self._entry(serial, t_s, found)
            except TrafficError as problem:
                self._faults.add(f"request {serial + 1}", problem)

    def told(self) -> list[str]:
        """Problems and removed data, so far."""
        lines = self._faults.lines()
        if self._fields:
            lines.append(f"{self._fields} header fields that a recorder does not keep were left out")
        if self._beyond:
            lines.append(f"{self._beyond} requests after the end of the shape were left out")
        return lines

    def _time(self, serial: int, found: Found) -> float | None:
        if found.at_ns is not None:
            return max(0, found.at_ns - self._start_ns) / 1e9
        times_s = self._times_s or ()
        if serial < len(times_s):
            return times_s[serial]
        self._beyond += 1
        return None

    def _entry(self, serial: int, t_s: float, found: Found) -> Entry:
        pairs = [(_bytes(name), _bytes(value)) for name, value in found.headers]
        headers = tuple(self._redaction.fields(pairs))
        entry = Entry(
            **({"id": serial, "body_len": len(found.body or b"")} | _typed(found.kept)),
            t_s=round(t_s, 6),
            method=self._redaction.method(found.method),
            target=self._redaction.target_of(found.target),
            headers=headers,
            body=found.body,
            status=found.status,
            ms=found.ms,
        )
        self._fields += len(pairs) - len(headers)
        return entry if entry.body is None else replace(entry, body_len=len(entry.body), body_sha256="")

    def _earliest(self) -> int:
        times = (found.at_ns for found in self._found(Faults()) if found.at_ns is not None)
        earliest = min(times, default=0)
        # Headings store microseconds: round down to the value that is stored.
        return earliest - earliest % 1_000

    def _found(self, faults: Faults) -> Iterator[Found]:
        try:
            with closing(opened(self.path)) as stored:
                yield from _READERS[self.form](cast("BinaryIO", stored), faults)
        except (EOFError, zlib.error, gzip.BadGzipFile):
            faults.add("the end", "the packed data ends in the middle, or is damaged")
        except OSError as error:
            raise TrafficError(f"{self.path}: cannot be read: {error.strerror}") from None


def _typed(kept: Mapping[str, object]) -> dict[str, Any]:
    """Return the fields of a recording that have the right type; the entry checks their values."""
    texts = {name: kept[name] for name in _TEXTS if isinstance(kept.get(name), str)}
    return texts | {name: kept[name] for name, types in _NUMBERS.items() if type(kept.get(name)) in types}


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
