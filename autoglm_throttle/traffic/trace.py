"""Reads the CSV format of the Azure LLM inference traces (Azure/AzurePublicDataset, CC BY 4.0)."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from io import TextIOWrapper
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from autoglm_throttle.traffic.errors import TrafficError

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
TICKS_PER_S = 10_000_000  # 100 ns each: the resolution of the published files
MALFORMED_SHARE = 0.01  # Share of all lines; above it the file has another format and is rejected
LINE_CHARS = 1_000  # A longer line is malformed; a real one has about 40 characters

_STAMP = re.compile(
    r"(\d{4}-\d\d-\d\d[ T](?:[01]\d|2[0-3]):\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:?\d\d)?", re.ASCII
)
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_TOKENS = re.compile(r"\d{1,8}", re.ASCII)


class TraceItem(NamedTuple):
    """One recorded request."""

    t_s: float  # seconds since the first request of the file
    context_tokens: int
    generated_tokens: int


@dataclass(frozen=True, slots=True)
class Trace:
    """A whole trace."""

    items: tuple[TraceItem, ...]
    malformed: int  # lines skipped because they could not be read; at most 1 % of all

    @property
    def duration_s(self) -> float:
        """From the first to the last request."""
        return self.items[-1].t_s


def load_azure_llm(path: Path) -> Trace:
    """Read a trace file; a name that ends in ``.gz`` is decompressed while reading.

    It raises TrafficError for a file that cannot be read, has another header, holds no request, goes back in
    time, or has more than 1 % malformed lines.
    """
    try:
        with path.open("rb") as stored:
            plain = gzip.GzipFile(fileobj=stored) if path.suffix == ".gz" else stored
            with TextIOWrapper(cast("BinaryIO", plain), encoding="utf-8-sig") as lines:
                return _read(_bounded(lines), path.name)
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as problem:
        raise TrafficError(f"{path}: cannot be read: {problem}") from problem


def _bounded(lines: TextIOWrapper) -> Iterator[str]:
    """Yield each line, truncated to `LINE_CHARS` + 1 characters."""
    # readline() with a bound: one line of a compressed file may hold gigabytes.
    while line := lines.readline(LINE_CHARS + 1):
        yield line
        while len(line) > LINE_CHARS and not line.endswith("\n"):
            line = lines.readline(LINE_CHARS + 1)


def _read(lines: Iterable[str], name: str) -> Trace:
    rows = enumerate(lines, start=1)
    _, header = next(rows, (1, ""))
    if header.strip().replace(" ", "") != HEADER:
        raise TrafficError(f"{name}, line 1: expected the header {HEADER}")
    items: list[TraceItem] = []
    malformed: list[int] = []
    first = last = 0
    for number, line in rows:
        row = _row(line)
        if row is None:
            malformed.append(number)
            continue
        ticks, context, generated = row
        if not items:
            first = last = ticks
        if ticks < last:
            raise TrafficError(f"{name}, line {number}: {(last - ticks) / TICKS_PER_S:g} s back in time")
        last = ticks
        items.append(TraceItem((ticks - first) / TICKS_PER_S, context, generated))
    count = len(items) + len(malformed)
    if len(malformed) > MALFORMED_SHARE * count:
        share = f"{len(malformed)} of {count} lines are malformed"
        raise TrafficError(f"{name}: {share}, the first is line {malformed[0]}")
    if not items:
        raise TrafficError(f"{name}: no request in it")
    return Trace(tuple(items), len(malformed))


def _row(line: str) -> tuple[int, int, int] | None:
    """Ticks and both token counts of a line, or None if it is malformed."""
    if len(line) > LINE_CHARS:
        return None
    parts = [part.strip() for part in line.split(",")]
    if len(parts) != 3 or not _TOKENS.fullmatch(parts[1]) or not _TOKENS.fullmatch(parts[2]):
        return None
    ticks = _ticks(parts[0])
    return None if ticks is None else (ticks, int(parts[1]), int(parts[2]))


def _ticks(stamp: str) -> int | None:
    """Parse a time stamp into whole 100 ns since 2000, in UTC, which is also the default zone."""
    found = _STAMP.fullmatch(stamp)
    if found is None:
        return None
    second, fraction, zone = found.groups()
    try:
        moment = datetime.fromisoformat(second + (zone or "Z"))
    except ValueError:
        return None
    # The published stamps have 7 fractional digits, one more than datetime holds.
    whole = (moment - _EPOCH) // timedelta(seconds=1)
    return whole * TICKS_PER_S + int((fraction or "").ljust(7, "0")[:7])
