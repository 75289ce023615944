"""Lines of a file that may be hostile: none is held that is longer than any real one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

from autoglm_throttle.traffic.convert.found import Faults
from autoglm_throttle.traffic.record.entry import LINE_AT_MOST


def numbered(stored: BinaryIO, faults: Faults) -> Iterator[tuple[int, bytes]]:
    """Each line with its number from 1, with its end; one that is too long is a fault and passed over."""
    number = 0
    while line := stored.readline(LINE_AT_MOST + 1):
        number += 1
        if len(line) <= LINE_AT_MOST:
            yield number, line
            continue
        faults.add(f"line {number}", f"longer than {LINE_AT_MOST} bytes")
        while line and not line.endswith(b"\n"):
            line = stored.readline(LINE_AT_MOST + 1)
