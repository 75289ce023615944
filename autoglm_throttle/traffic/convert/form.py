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

LOOK_BYTES = 4_096
"""Bytes of a file that are enough to detect its format."""

_GOR = re.compile(rb"[123] [!-~]+ \d+( -?\d+)?\r?\n")
_TARGET = re.compile(rb'"(method|url)"\s*:')


class Form(StrEnum):
    """Formats of files that hold requests."""

    JSONL = "jsonl"
    """Recordings of this library."""
    VEGETA = "vegeta"
    GOR = "gor"
    HAR = "har"


def recognise(path: Path) -> Form:
    """Detect the format of a file from its first bytes.

    Raises:
        TrafficError: the file cannot be read, or has no known format.
    """
    try:
        with closing(opened(path)) as stored:
            begin = stored.read(LOOK_BYTES).removeprefix(b"\xef\xbb\xbf").lstrip()
    except (OSError, EOFError, zlib.error) as problem:
        raise TrafficError(f"{path}: cannot be read: {problem}") from None
    if _GOR.match(begin):
        return Form.GOR
    first = begin.partition(b"\n")[0]
    if b'"log"' in begin and begin.startswith(b"{") and not _names(first, "v"):
        return Form.HAR
    if first.startswith(b'{"v"') or _names(first, "v"):
        return Form.JSONL
    if begin.startswith(b"{") and _TARGET.search(first):
        return Form.VEGETA
    raise TrafficError(f"{path}: none of {', '.join(Form)}")


def opened(path: Path) -> IO[bytes]:
    """Open a file for reading; decompress it if its name ends in ``.gz``.

    Raises:
        OSError: it cannot be opened.
    """
    return cast("IO[bytes]", gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb")


def _names(line: bytes, name: str) -> bool:
    """Whether a line is a JSON object with this key."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and name in found
