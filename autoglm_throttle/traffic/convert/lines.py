"""Reads lines of an untrusted file with bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

from autoglm_throttle.traffic.convert.parsed_request import ImportProblems
from autoglm_throttle.traffic.record.recorded_request import MAX_LINE_BYTES


def numbered(stored: BinaryIO, faults: ImportProblems) -> Iterator[tuple[int, bytes]]:
    """Yield each line with its number from 1 and its line end; skip oversized lines and report them."""
    number = 0
    while line := stored.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) <= MAX_LINE_BYTES:
            yield number, line
            continue
        faults.add(f"line {number}", f"longer than {MAX_LINE_BYTES} bytes")
        # Skip the rest of the oversized line.
        while line and not line.endswith(b"\n"):
            line = stored.readline(MAX_LINE_BYTES + 1)
