"""A file of another program as recorded requests, after the redaction that a recorder applies."""

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
    """A file of another program. What a recorder would not have kept is left out as it is read.

    The file is gone through twice: times count from the earliest request, wherever it stands.

    Args:
        path: the file; one whose name ends in ``.gz`` is unpacked on the way.
        form: what it is.
        redaction: what may be kept; None: what a recorder keeps by default.
        times_s: when the requests are to come, where the form does not tell; rising.

    Raises:
        TrafficError: it cannot be read, has no times and none were given, or no request is in it.
    """

    whole = True
    end: End | None = End("closed", 0)
    """Nothing is known of requests that the other program dropped."""

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
        """All requests in the order of the file, with whole bodies."""
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
        """What could not be read, and what was left out, so far."""
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
    """The fields of a recording that are of their type; what they say is judged by the entry."""
    texts = {name: kept[name] for name in _TEXTS if isinstance(kept.get(name), str)}
    return texts | {name: kept[name] for name, types in _NUMBERS.items() if type(kept.get(name)) in types}


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
