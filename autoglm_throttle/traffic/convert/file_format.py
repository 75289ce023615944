"""File formats that hold requests, and their detection."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from contextlib import closing
from enum import StrEnum
from pathlib import Path
from typing import IO, cast

from autoglm_throttle.traffic.errors import TrafficError

DETECTION_BYTES = 4_096
"""Bytes of a file that are enough to detect its format."""

_GOR = re.compile(rb"[123] [!-~]+ \d+( -?\d+)?\r?\n")
_TARGET = re.compile(rb'"(method|url)"\s*:')


class FileFormat(StrEnum):
    """Formats of files that hold requests."""

    JSONL = "jsonl"
    """Recordings of this library."""
    VEGETA = "vegeta"
    GOR = "gor"
    HAR = "har"


def detect_format(path: Path) -> FileFormat:
    """Detect the format of a file from its first bytes.

    Raises:
        TrafficError: the file cannot be read, or has no known format.
    """
    try:
        with closing(open_packed(path)) as stored:
            begin = stored.read(DETECTION_BYTES).removeprefix(b"\xef\xbb\xbf").lstrip()
    except (OSError, EOFError, zlib.error) as problem:
        raise TrafficError(f"{path}: cannot be read: {problem}") from None
    if _GOR.match(begin):
        return FileFormat.GOR
    first = begin.partition(b"\n")[0]
    if b'"log"' in begin and begin.startswith(b"{") and not _has_key(first, "v"):
        return FileFormat.HAR
    if first.startswith(b'{"v"') or _has_key(first, "v"):
        return FileFormat.JSONL
    if begin.startswith(b"{") and _TARGET.search(first):
        return FileFormat.VEGETA
    raise TrafficError(f"{path}: none of {', '.join(FileFormat)}")


def open_packed(path: Path) -> IO[bytes]:
    """Open a file for reading; decompress it if its name ends in ``.gz``.

    Raises:
        OSError: it cannot be opened.
    """
    return cast("IO[bytes]", gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb")


def _has_key(line: bytes, name: str) -> bool:
    """Whether a line is a JSON object with this key."""
    try:
        parsed = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(parsed, dict) and name in parsed
