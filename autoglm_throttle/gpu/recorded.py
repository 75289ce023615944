"""Provides the samples of a file, recorded or hand-written: for demonstrations, rehearsals and replays.

CSV with a header, or one JSON object per line. Columns are the names of ``GpuSample`` plus ``t_s`` (seconds
from the start) and ``event``: ``lost``, ``error``, ``stale`` or ``hang:SECONDS``. An empty cell is "not
known"; ``throttle`` is a list of reasons, in a CSV with ``;`` between them, and ``none`` for no reason.
"""

from __future__ import annotations

import csv
import difflib
import json
import math
import os
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, Final

from autoglm_throttle.gpu.sanity import THROTTLE_BITS
from autoglm_throttle.types import Clock, GpuSample, ProviderMisconfigured, ProviderUnavailable

GIVEN: Final = frozenset({"taken_at_s", "source"})  # Fields that the provider fills in
EVENTS: Final = frozenset({"lost", "error", "stale", "hang"})
_FAULTS_SHOWN: Final = 20
Cell = Any  # Unchecked content of a cell: a CSV gives text, JSON gives any of its types
RecordedRow = tuple[dict[str, Cell], str, float]  # Fields of a sample, event, and seconds of a hang
# Rows by their time, ascending seconds from the start; -inf for a live state, which is always current.
Recording = list[tuple[float, list[RecordedRow]]]


class RecordedProvider:
    """Plays a file back: ``.jsonl`` or CSV.

    A file with a column ``t_s`` gives the rows of the latest time passed since the first reading; one without
    is a live state, read again when it changes. ``hang`` waits; None: a hang gives no rows for its time.
    """

    min_interval_s: float = 0.0

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        clock: Clock = time.monotonic,
        name: str = "fake",
        hang: Callable[[float], object] | None = time.sleep,
    ) -> None:
        self.name: str = name
        self._path = Path(path)
        self._clock = clock
        self._hang = hang
        self._recording: Recording = []
        self._stamp: tuple[int, int] | None = None  # Size and time of change of the file as it was parsed
        self._started_s: float | None = None
        self._last_hang: object = None
        self._hang_until_s = -math.inf
        self._previous: dict[tuple[str, str], GpuSample] = {}

    def read(self) -> Sequence[GpuSample]:
        """Return the rows of this moment; unavailable: the file says so, has not begun or is unreadable."""
        mark, lines = self._current_rows()
        hang_s = max((line_hang_s for _, _, line_hang_s in lines), default=0.0)
        if hang_s and mark != self._last_hang:
            self._last_hang = mark
            if self._hang is not None:
                self._hang(hang_s)
                _, lines = self._current_rows()
            else:
                self._hang_until_s = self._clock() + hang_s
        if self._clock() < self._hang_until_s:
            return []
        if not lines:
            raise ProviderUnavailable(f"{self._path}: the recording has not begun")
        if any(event == "error" for _, event, _ in lines):
            raise ProviderUnavailable(f"{self._path}: the row says error")
        rows = [
            row
            for index, (values, event, _) in enumerate(lines)
            if (row := self._play(values, event, index)) is not None
        ]
        self._previous |= {(row.host, row.device): row for row in rows}
        return rows

    def close(self) -> None:
        """Do nothing: a recording continues at its position, as a measured device would."""

    def reset_after_fork(self) -> None:
        """Do nothing: there is no handle to drop."""

    def _play(self, values: dict[str, Cell], event: str, index: int) -> GpuSample | None:
        index = values.get("index", index)
        given = {"device": f"FAKE-{index}", **values, "index": index}
        if event == "lost":
            given = {name: given[name] for name in ("device", "index", "host", "kind") if name in given}
            given["health"] = "lost"
        row = GpuSample(taken_at_s=self._clock(), source=self.name, **given)
        return self._previous.get((row.host, row.device)) if event == "stale" else row

    def _current_rows(self) -> tuple[object, list[RecordedRow]]:
        """Return the rows of this moment, none before the first, and a mark that changes with them."""
        now = self._clock()
        if self._started_s is None:
            self._started_s = now
        self._load()
        number = bisect_right(self._recording, now - self._started_s, key=lambda group: group[0])
        return (self._stamp, number), self._recording[number - 1][1] if number else []

    def _load(self) -> None:
        """Parse the file, again if it is a live state and its size or time of change is new."""
        if self._recording and self._recording[0][0] > -math.inf:
            return
        try:
            stat = self._path.stat()
            # Size too: two writes within one tick of the file system share their mtime.
            stamp = (stat.st_size, stat.st_mtime_ns)
            if stamp != self._stamp:
                text = self._path.read_text(encoding="utf-8-sig", errors="replace")
                self._recording = parse(text, jsonl=self._path.suffix.lower() == ".jsonl")
                self._stamp = stamp
        except OSError as error:
            raise ProviderUnavailable(f"{self._path}: {error.strerror or error}") from error
        except ProviderMisconfigured as error:
            kind = ProviderUnavailable if self._recording else ProviderMisconfigured
            raise kind(f"{self._path}: {error}") from error


def parse(text: str, *, jsonl: bool) -> Recording:
    """Read a file's text; raise ``ProviderMisconfigured`` that lists up to twenty of its faults."""
    faults: list[str] = []
    times: list[float | None] = []
    lines: list[RecordedRow] = []
    for number, cells in (_json_rows if jsonl else _csv_rows)(text, faults):
        values = _values(cells, f"line {number}: ", faults)
        times.append(values.pop("t_s", None))
        event, hang_s = values.pop("event", ("", 0.0))
        lines.append((values, event, hang_s))
    faults = faults or _order_faults(times, lines)
    if faults:
        more = f" and {len(faults) - _FAULTS_SHOWN} more" if len(faults) > _FAULTS_SHOWN else ""
        raise ProviderMisconfigured("; ".join(faults[:_FAULTS_SHOWN]) + more)
    groups: dict[float, list[RecordedRow]] = {}
    for t_s, line in zip(times, lines, strict=True):
        groups.setdefault(-math.inf if t_s is None else t_s, []).append(line)
    return list(groups.items())


def row(cells: Mapping[str, Cell]) -> dict[str, Cell]:
    """Check one row given in code; raise ``ProviderMisconfigured`` that lists all its faults."""
    faults = [_unknown(name) for name in cells if name not in _CONVERTERS or name in _OF_A_FILE]
    values = _values(cells, "", faults)
    if faults:
        raise ProviderMisconfigured("; ".join(faults))
    return values


def _json_rows(text: str, faults: list[str]) -> Iterator[tuple[int, Mapping[str, Cell]]]:
    named: set[str] = set()
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            cells = json.loads(line)
        except (ValueError, RecursionError) as error:
            faults.append(f"line {number}: no JSON: {error}")
            continue
        if not isinstance(cells, dict):
            faults.append(f"line {number}: not a JSON object")
            continue
        faults += [_unknown(name) for name in cells if name not in COLUMNS and name not in named]
        named.update(cells)
        yield number, cells


def _csv_rows(text: str, faults: list[str]) -> Iterator[tuple[int, Mapping[str, Cell]]]:
    reader = csv.reader(text.splitlines(), strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        faults += [_unknown(name) for name in header if name not in COLUMNS]
        twice = sorted({name for name in header if header.count(name) > 1})
        faults += [f"column {name!r} is there twice" for name in twice]
        for cells in reader:
            if len(cells) > len(header):
                faults.append(f"line {reader.line_num}: {len(cells)} cells, but {len(header)} columns")
            elif any(cell.strip() for cell in cells):
                yield reader.line_num, dict(zip(header, cells, strict=False))
    except csv.Error as error:
        faults.append(f"line {reader.line_num}: no CSV: {error}")


def _values(cells: Mapping[str, Cell], where: str, faults: list[str]) -> dict[str, Cell]:
    """Convert the cells of known columns that are not empty."""
    values: dict[str, Cell] = {}
    for name, convert in _CONVERTERS.items():
        value = cells.get(name)
        if value is None or (isinstance(value, str) and not value.strip()):
            continue
        try:
            values[name] = convert(value)
        except (ValueError, TypeError, OverflowError) as error:
            faults.append(f"{where}{name}: {value!r:.80} {error}")
    return values


def _number(value: Cell) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError("is no number")
    try:
        return float(value)
    except (ValueError, OverflowError):
        raise ValueError("is no number") from None


def _whole(value: Cell) -> float | int:
    number = _number(value)
    return int(number) if math.isfinite(number) else number


def _index(value: Cell) -> int:
    if (number := _number(value)) >= 0 and number.is_integer():
        return int(number)
    raise ValueError("is no index")


def _seconds(value: Cell) -> float:
    if 0.0 <= (number := _number(value)) < math.inf:
        return number
    raise ValueError("is no time from the start in seconds")


def _text(value: Cell) -> str:
    if not isinstance(value, str):
        raise TypeError("is no text")
    return value.strip()


def _notes(value: Cell) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(note.strip() for note in value.split(";") if note.strip())
    return tuple(_text(note) for note in value)


def _throttle(value: Cell) -> frozenset[str]:
    bits = frozenset(_notes(value)) - {"none"}
    if not bits <= THROTTLE_BITS:
        raise ValueError(f"is none of {', '.join(sorted(THROTTLE_BITS))}, none")
    return bits


def _one_of(allowed: tuple[str, ...], value: Cell) -> str:
    if value not in allowed:
        raise ValueError(f"is none of {', '.join(allowed)}")
    return str(value)


def _event(value: Cell) -> tuple[str, float]:
    name, colon, rest = _text(value).partition(":")
    if name not in EVENTS or (name == "hang") != bool(colon):
        raise ValueError("is none of lost, error, stale, hang:SECONDS")
    return name, _seconds(rest) if colon else 0.0


_SPECIAL: Final[dict[str, Callable[[Cell], Cell]]] = {
    "index": _index,
    **dict.fromkeys(("device", "host", "name", "gpu_instance"), _text),
    "notes": _notes,
    "kind": partial(_one_of, ("gpu", "mig", "engine")),
    "health": partial(_one_of, ("ok", "degraded", "lost")),
    "throttle": _throttle,
}
_OF_A_FILE: Final = {"t_s": _seconds, "event": _event}
_CONVERTERS: Final = {
    field.name: _SPECIAL.get(field.name, _whole if field.type == "int | None" else _number)
    for field in fields(GpuSample)
    if field.name not in GIVEN
} | _OF_A_FILE
COLUMNS: Final = tuple(_CONVERTERS)


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name, COLUMNS, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(COLUMNS)}"
    return f"column {name!r} is unknown, {hint}"


def _order_faults(times: Sequence[float | None], lines: Sequence[RecordedRow]) -> list[str]:
    faults = [] if lines else ["there are no rows"]
    timed = [t_s for t_s in times if t_s is not None]
    if timed and len(timed) != len(lines):
        faults.append(f"t_s is given in {len(timed)} of {len(lines)} rows: give it in all or in none")
    elif timed != sorted(timed):
        faults.append("t_s goes back: rows stand in the order of their time")
    named = [
        (t_s, values.get("host"), values["device"])
        for t_s, (values, _, _) in zip(times, lines, strict=True)
        if "device" in values
    ]
    if len(set(named)) < len(named):
        faults.append("a device stands twice at one time")
    return faults
