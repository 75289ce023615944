"""The forms of files that hold requests, and how to tell them apart."""

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
"""Enough of a file to tell its form."""

_GOR = re.compile(rb"[123] [!-~]+ \d+( -?\d+)?\r?\n")
_TARGET = re.compile(rb'"(method|url)"\s*:')


class Form(StrEnum):
    """The forms of files that hold requests."""

    JSONL = "jsonl"
    """Our recordings."""
    VEGETA = "vegeta"
    GOR = "gor"
    HAR = "har"


def recognise(path: Path) -> Form:
    """The form of a file, by how it begins.

    Raises:
        TrafficError: it cannot be read, or is none of the known.
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
    """The file; one whose name ends in ``.gz`` is unpacked on the way.

    Raises:
        OSError: it cannot be opened.
    """
    return cast("IO[bytes]", gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb")


def _names(line: bytes, name: str) -> bool:
    """Whether a line is a JSON object with this name in it."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and name in found
