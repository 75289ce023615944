"""Opens recordings and files of GoReplay as recorded requests, and writes them as a new recording."""

from __future__ import annotations

import gzip
import hashlib
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from autoglm_throttle.settings.groups.observe import RecordBody, identifies_caller
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.gor import GorFile, is_gor
from autoglm_throttle.traffic.record import (
    RecordedRequest,
    RecordingProblems,
    RecordingReader,
    Redaction,
    open_recording,
)
from autoglm_throttle.traffic.record.recorded_request import MAX_BODY_BYTES
from autoglm_throttle.traffic.record.recording_reader import open_packed
from autoglm_throttle.traffic.record.redaction import HEADER_NAME
from autoglm_throttle.version import __version__

BEGIN_BYTES = 4_096  # Bytes of a file that are enough to detect its format


RequestFile = RecordingReader | GorFile  # A file of recorded requests


def open_source(path: Path, redaction: Redaction | None = None) -> RequestFile:
    """Open a recording, with everything recorded, or a file of GoReplay, redacted as a recorder would."""
    if is_gor(read_begin(path)):
        return GorFile(path, redaction)
    return RecordingReader(path, redaction)


def read_begin(path: Path) -> bytes:
    """Return the first bytes of a file, decompressed; raise TrafficError if it cannot be read."""
    problems = RecordingProblems()
    with open_packed(path, problems) as stored:
        return stored.read(BEGIN_BYTES)
    raise TrafficError(f"{path}: cannot be read: {problems.messages[0]}")


def recorded_names(path: Path) -> tuple[list[str], list[str]]:
    """Return the header fields and query parameters that a recording lists as stored; none for GoReplay.

    A name that may not be allowed is left out.
    """
    if is_gor(read_begin(path)):
        return [], []
    redaction = open_recording(path).header.redaction
    listed = (redaction.get(key) for key in ("headers", "query"))
    headers, query = (
        [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
        for names in listed
    )
    return [name for name in headers if HEADER_NAME.fullmatch(name) and not identifies_caller(name)], query


def copy_to_recording(source: RequestFile, destination: Path, bodies: RecordBody = RecordBody.HASH) -> int:
    """Write a new recording, with mode 0600; return its number of requests. After an error no file is left.

    ``bodies`` states how imported bodies are stored, up to 64 KiB each; a recording keeps its stored bodies.
    """
    try:
        # O_EXCL: an existing file or link is never replaced.
        number = os.open(destination, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise TrafficError(f"{destination}: exists already") from None
    except OSError as error:
        raise TrafficError(f"{destination}: cannot be written: {error.strerror}") from None
    try:
        with os.fdopen(number, "wb") as stored:
            if destination.suffix != ".gz":
                return _write(source, stored.write, bodies)
            # No time stamp inside: the same source gives the same bytes.
            with gzip.GzipFile(fileobj=stored, mode="wb", filename="", mtime=0) as packed:
                return _write(source, packed.write, bodies)
    except BaseException as error:
        destination.unlink()
        if isinstance(error, OSError):
            raise TrafficError(f"{destination}: cannot be written: {error.strerror}") from None
        raise


def _write(source: RequestFile, write: Callable[[bytes], object], bodies: RecordBody) -> int:
    header, count = source.header, 0
    if source.has_bodies:
        redaction = dict(header.redaction) | {"body": bodies.value}
        header = replace(header, made_by=__version__, redaction=redaction)
    write(header.to_line().encode() + b"\n")
    for entry in source.entries():
        kept = _with_stored_body(entry, bodies) if source.has_bodies else entry
        write(kept.to_line().encode() + b"\n")
        count += 1
    if source.end is not None:
        write(source.end.to_line().encode() + b"\n")
    return count


def _with_stored_body(entry: RecordedRequest, bodies: RecordBody) -> RecordedRequest:
    body = entry.body or b""
    hashed = hashlib.sha256(body).hexdigest() if body and bodies is not RecordBody.NONE else ""
    is_stored = bodies is RecordBody.FULL and 0 < len(body) <= MAX_BODY_BYTES
    return replace(entry, body=body if is_stored else None, body_sha256=hashed)
