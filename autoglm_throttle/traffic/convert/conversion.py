"""Converts between file formats and reports the data that was lost."""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO, cast

from autoglm_throttle.traffic.convert import gor, har, vegeta
from autoglm_throttle.traffic.convert.file_format import FileFormat
from autoglm_throttle.traffic.convert.fill import Fill, MissingBodies
from autoglm_throttle.traffic.convert.source import ImportSource, start_ns
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.record import RecordedRequest, RecordingHeader
from autoglm_throttle.traffic.record.recorded_request import MAX_BODY_BYTES
from autoglm_throttle.version import __version__

PLACEHOLDER_URL = "http://localhost"
"""Base URL for formats that need a host, if none was given; never requested."""

_BASE = re.compile(r"https?://[A-Za-z0-9._~:\[\]-]+", re.IGNORECASE)


class Bodies(StrEnum):
    """How an import stores request bodies."""

    HASH = "hash"
    NONE = "none"
    FULL = "full"
    """A recording stores bodies up to 64 KiB, and the hash of longer ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertOptions:
    """Options of a conversion.

    Raises:
        TrafficError: a base URL that is not a scheme and a host.
    """

    base_url: str = ""
    """Scheme and host of the service, such as ``http://127.0.0.1:8000``; required for vegeta."""
    bodies: Fill = field(default_factory=Fill)
    """Replaces bodies that were not recorded, in formats that need them."""
    keep: Bodies = Bodies.HASH
    """How bodies of an import are stored, in every target format; a recording keeps its stored bodies."""

    def __post_init__(self) -> None:
        if self.base_url and not _BASE.fullmatch(self.base_url):
            # The URL is not quoted in the message: it may hold a password.
            raise TrafficError("a base URL is a scheme and a host alone, http://HOST:PORT")


@dataclass(slots=True)
class ImportSummary:
    """Result of a conversion."""

    written: int = 0
    """Number of requests."""
    lost: tuple[str, ...] = ()
    """Kinds of data that the target format cannot hold."""
    faults: list[str] = field(default_factory=list)
    """Problems of reading and writing, and counts of removed data."""

    def lines(self) -> list[str]:
        """Format the result for people."""
        lost = [f"lost: {', '.join(self.lost)}"] if self.lost else []
        return [f"{self.written} requests written", *lost, *self.faults]


def convert(
    source: ImportSource, destination: Path, file_format: FileFormat, options: ConvertOptions | None = None
) -> ImportSummary:
    """Convert a source to a file, which appears only when complete, with mode 0600.

    Args:
        source: result of `open_source`.
        destination: compressed if its name ends in ``.gz``.
        file_format: of the destination.
        options: of the conversion.

    Raises:
        TrafficError: the file exists or cannot be written, bodies are missing (the message says how many), or
            the format needs a base URL. No file is written then.
    """
    if destination.exists() or destination.is_symlink():
        raise TrafficError(f"{destination}: exists already")
    try:
        number, name = tempfile.mkstemp(prefix=f".{destination.name}.", dir=destination.parent)
    except OSError as error:
        raise TrafficError(f"{destination}: cannot be written: {error.strerror}") from None
    try:
        # mkstemp creates the file with mode 0600, which the hard link keeps.
        with os.fdopen(number, "wb") as stored:
            summary = _write_packed(
                source, stored, file_format, options or ConvertOptions(), packed=destination.suffix == ".gz"
            )
        _publish(Path(name), destination)
    except FileExistsError:
        raise TrafficError(f"{destination}: exists already") from None
    except OSError as error:
        raise TrafficError(f"{destination}: cannot be written: {error.strerror}") from None
    finally:
        with suppress(FileNotFoundError):
            Path(name).unlink()
    return summary


def _publish(made: Path, destination: Path) -> None:
    """Give the file its final name without replacing a file that appeared meanwhile."""
    try:
        destination.hardlink_to(made)
    except FileExistsError:
        raise
    except OSError:  # no hard links here: reserve the name first
        os.close(os.open(destination, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        try:
            made.replace(destination)
        except OSError:
            destination.unlink()
            raise


def write(
    source: ImportSource, out: BinaryIO, file_format: FileFormat, options: ConvertOptions | None = None
) -> ImportSummary:
    """Convert a source to a stream.

    Raises:
        TrafficError: as in `convert`, but parts written before remain.
    """
    return _Conversion(source, file_format, options or ConvertOptions()).write(out)


def _write_packed(
    source: ImportSource, stored: BinaryIO, file_format: FileFormat, options: ConvertOptions, *, packed: bool
) -> ImportSummary:
    if not packed:
        return write(source, stored, file_format, options)
    # No time stamp inside: the same source gives the same bytes.
    with closing(gzip.GzipFile(fileobj=stored, mode="wb", filename="", mtime=0)) as out:
        return write(source, cast("BinaryIO", out), file_format, options)


class _Conversion:
    def __init__(self, source: ImportSource, file_format: FileFormat, options: ConvertOptions) -> None:
        if file_format is FileFormat.VEGETA and not options.base_url:
            raise TrafficError("targets of vegeta are absolute: give --base-url http://HOST:PORT")
        self._source = source
        self._options = options
        self._base_url = options.base_url or PLACEHOLDER_URL
        self._start_ns = start_ns(source.heading)
        self._missing = MissingBodies(importing=source.has_bodies)
        self._rejected: list[str] = []
        self._file_format = file_format

    def write(self, out: BinaryIO) -> ImportSummary:
        parts, lost = _WRITERS[self._file_format]
        summary = ImportSummary(lost=lost)
        for entry in self._framed_entries(out):
            try:
                part = parts(self, entry, summary.written)
            except TrafficError as problem:
                self._rejected.append(str(problem))
                continue
            if part is not None:
                out.write(part)
                summary.written += 1
        self._missing.raise_if_any()
        summary.faults = [*self._source.problem_lines(), *self._rejected]
        return summary

    def _framed_entries(self, out: BinaryIO) -> Iterator[RecordedRequest]:
        """Yield the entries; write the opening before the first and the closing after the last."""
        if self._file_format is FileFormat.JSONL:
            out.write(self._heading().to_line().encode() + b"\n")
        elif self._file_format is FileFormat.HAR:
            out.write(har.opening(__version__))
        yield from self._source.entries()
        if self._file_format is FileFormat.JSONL:
            if self._source.end is not None:
                out.write(self._source.end.to_line().encode() + b"\n")
        elif self._file_format is FileFormat.HAR:
            out.write(har.closing())

    def _heading(self) -> RecordingHeader:
        heading = self._source.heading
        if not self._source.has_bodies:
            return heading
        redaction = dict(heading.redaction) | {"body": self._options.keep.value}
        return replace(heading, made_by=__version__, redaction=redaction)

    def jsonl(self, entry: RecordedRequest, _: int) -> bytes:
        stored = self._with_stored_body(entry)
        if stored.body is not None and len(stored.body) > MAX_BODY_BYTES and self._source.has_bodies:
            stored = replace(stored, body=None)
        return stored.to_line().encode() + b"\n"

    def vegeta(self, entry: RecordedRequest, _: int) -> bytes | None:
        body = self._body(_require_path(entry))
        return None if body is None else vegeta.write(entry, body, self._base_url)

    def gor(self, entry: RecordedRequest, _: int) -> bytes | None:
        body = self._body(entry)
        host = self._base_url.partition("://")[2]
        return None if body is None else gor.write(entry, body, self._start_ns, host)

    def har(self, entry: RecordedRequest, written: int) -> bytes:
        return har.write(
            self._with_stored_body(_require_path(entry)), self._start_ns, self._base_url, first=not written
        )

    def _body(self, entry: RecordedRequest) -> bytes | None:
        stored = self._with_stored_body(entry)
        body = self._options.bodies.of(stored)
        if body is None:
            self._missing.add(stored)
        return body

    def _with_stored_body(self, entry: RecordedRequest) -> RecordedRequest:
        body, keep = entry.body, self._options.keep
        if body is None or not self._source.has_bodies:
            return entry
        hashed = hashlib.sha256(body).hexdigest() if body and keep is not Bodies.NONE else ""
        stored = body if body and keep is Bodies.FULL else None
        return replace(entry, body=stored, body_sha256=hashed)


def _require_path(entry: RecordedRequest) -> RecordedRequest:
    """Return the entry unchanged.

    Raises:
        TrafficError: its target is no path, so that no URL can be built.
    """
    if not entry.target.startswith("/"):
        raise TrafficError(f"request {entry.id}: its target is no path")
    return entry


_Part = Callable[[_Conversion, RecordedRequest, int], bytes | None]
_WRITERS: dict[FileFormat, tuple[_Part, tuple[str, ...]]] = {
    FileFormat.JSONL: (_Conversion.jsonl, ()),
    FileFormat.VEGETA: (_Conversion.vegeta, vegeta.LOST),
    FileFormat.GOR: (_Conversion.gor, gor.LOST),
    FileFormat.HAR: (_Conversion.har, har.LOST),
}
