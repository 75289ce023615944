"""Provides recorded or hand-written samples: for tests, demonstrations and replays.

A file is CSV with a header, or one JSON object per line. Columns are the names of ``GpuSample`` plus ``t_s``
(seconds from the start) and ``event``: ``lost``, ``error``, ``stale`` or ``hang:SECONDS``. An empty cell is
"not known"; ``throttle`` is a list of reasons, in a CSV with ``;`` between them, and ``none`` for a device
without any. All faults of a file are reported together.
"""

from __future__ import annotations

import csv
import difflib
import itertools
import json
import math
import os
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from autoglm_throttle.gpu.sanity import THROTTLE_BITS
from autoglm_throttle.types import Clock, GpuSample, ProviderMisconfigured, ProviderUnavailable

GIVEN: Final = frozenset({"taken_at_s", "source"})  # Fields that the provider fills in

EVENTS: Final = frozenset({"lost", "error", "stale", "hang"})
_FAULTS_SHOWN: Final = 20

Cell = Any  # Unchecked content of a cell: a CSV gives text, JSON gives any of its types
# One device: its utilization in percent, some fields of a sample by name, or a whole sample.
Row = float | Mapping[str, object] | GpuSample
Tick = Row | Sequence[Row] | Exception  # One reading: a device, several devices, or an exception to raise
# A list or generator of readings, a function that returns one, or the path of a file.
Script = Iterable[Tick] | Callable[[], Tick] | str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class RecordedRow:
    """One row of a file."""

    values: dict[str, Cell]
    t_s: float | None = None
    event: str = ""
    hang_s: float = 0.0


@dataclass(frozen=True, slots=True)
class GpuRecording:
    """A file's rows, grouped by their time."""

    # Ascending seconds from the start; empty for a live state, which is always current.
    times: tuple[float, ...]
    groups: tuple[tuple[RecordedRow, ...], ...]

    def at(self, elapsed_s: float) -> tuple[int, tuple[RecordedRow, ...]]:
        """Return number and rows of the latest group up to ``elapsed_s``; -1 and none before the first."""
        number = bisect_right(self.times, elapsed_s) - 1 if self.times else 0
        return (number, self.groups[number]) if number >= 0 else (-1, ())


class RecordedProvider:
    """Plays samples back.

    A list or generator gives one reading per ``read`` and then repeats its last one; a function is called for
    each. A text is the path of a file, ``.jsonl`` or CSV. One with a column ``t_s`` is a recording, which
    gives the rows of the latest time passed since the first reading; one without is a live state, read again
    when it changes. ``hang`` waits in a row with the event ``hang:SECONDS``; None: readings give no rows for
    that time.
    """

    min_interval_s: float = 0.0

    def __init__(
        self,
        source: Script,
        *,
        clock: Clock = time.monotonic,
        name: str = "fake",
        hang: Callable[[float], object] | None = time.sleep,
    ) -> None:
        self.name: str = name
        self._clock = clock
        self._hang = hang
        self._script = _script(source)
        self._started_s: float | None = None
        self._last_hang: object = None
        self._hang_until_s = float("-inf")
        self._previous: dict[tuple[str, str], GpuSample] = {}

    def __repr__(self) -> str:
        return f"RecordedProvider({self._script.path if isinstance(self._script, _File) else 'steps'})"

    def read(self) -> Sequence[GpuSample]:
        """Return the next reading; unavailable: the script says so, has not begun, is empty or unreadable."""
        if isinstance(self._script, _File):
            return self._replay(self._script)
        tick = self._script()
        if isinstance(tick, Exception):
            raise tick
        rows = tick if isinstance(tick, Sequence) else (tick,)
        return [self._sample(row, index) for index, row in enumerate(rows)]

    def close(self) -> None:
        """Do nothing: a script continues at its position, as a measured device would."""

    def reset_after_fork(self) -> None:
        """Do nothing: there is no handle to drop."""

    def _sample(self, cells: Row, index: int) -> GpuSample:
        if isinstance(cells, GpuSample):
            return cells
        return self._build(row(cells if isinstance(cells, Mapping) else {"utilization_pct": cells}), index)

    def _build(self, values: Mapping[str, Any], index: int) -> GpuSample:
        index = values.get("index", index)
        given = {"device": f"FAKE-{index}", **values, "index": index}
        return GpuSample(taken_at_s=self._clock(), source=self.name, **given)

    def _replay(self, file: _File) -> Sequence[GpuSample]:
        number, lines = self._current_rows(file)
        hang_s = max((line.hang_s for line in lines), default=0.0)
        if hang_s and number != self._last_hang:
            self._last_hang = number
            if self._hang is not None:
                self._hang(hang_s)
                _, lines = self._current_rows(file)
            else:
                self._hang_until_s = self._clock() + hang_s
        if self._clock() < self._hang_until_s:
            return []
        if not lines:
            raise ProviderUnavailable(f"{file.path}: the recording has not begun")
        if any(line.event == "error" for line in lines):
            raise ProviderUnavailable(f"{file.path}: the row says error")
        rows = [row for index, line in enumerate(lines) if (row := self._play(line, index)) is not None]
        self._previous |= {(row.host, row.device): row for row in rows}
        return rows

    def _current_rows(self, file: _File) -> tuple[object, Sequence[RecordedRow]]:
        """Return the rows of this moment, and a mark that changes with them."""
        now = self._clock()
        if self._started_s is None:
            self._started_s = now
        number, lines = file.load().at(now - self._started_s)
        return (file.changes, number), lines

    def _play(self, line: RecordedRow, index: int) -> GpuSample | None:
        row = self._build(line.values, index)
        if line.event == "stale":
            return self._previous.get((row.host, row.device))
        if line.event == "lost":
            name = {"device": row.device, "host": row.host, "kind": row.kind}
            return replace(self._build(name, row.index), health="lost")
        return row


def _script(source: Script) -> Callable[[], Tick] | _File:
    if isinstance(source, str | os.PathLike):
        return _File(Path(source))
    if callable(source):
        return source
    steps = iter(source)
    last: Tick | None = None

    def step() -> Tick:
        nonlocal last
        last = next(steps, last)
        if last is None:
            raise ProviderUnavailable("the script is empty")
        return last

    return step


class _File:
    """A file that is parsed again when its size or its time of change is new."""

    def __init__(self, path: Path) -> None:
        self.path: Path = path
        self.changes: int = 0
        self._stamp: tuple[int, int] | None = None
        self._recording: GpuRecording | None = None

    def load(self) -> GpuRecording:
        """Return the recording, read again if it is a live state and has changed."""
        if self._recording is not None and self._recording.times:
            return self._recording
        try:
            stat = self.path.stat()
            # Size too: two writes within one tick of the file system share their mtime.
            stamp = (stat.st_size, stat.st_mtime_ns)
            if stamp != self._stamp or self._recording is None:
                text = self.path.read_text(encoding="utf-8-sig", errors="replace")
                self._recording = parse(text, jsonl=self.path.suffix.lower() == ".jsonl")
                self._stamp = stamp
                self.changes += 1
        except OSError as error:
            raise ProviderUnavailable(f"{self.path}: {error.strerror or error}") from error
        except ProviderMisconfigured as error:
            kind = ProviderMisconfigured if self._recording is None else ProviderUnavailable
            raise kind(f"{self.path}: {error}") from error
        return self._recording


def parse(text: str, *, jsonl: bool) -> GpuRecording:
    """Read a file's text; raise ``ProviderMisconfigured`` that lists up to twenty of its faults."""
    faults: list[str] = []
    lines: list[RecordedRow] = []
    for number, cells in (_json_rows if jsonl else _csv_rows)(text, faults):
        where = f"line {number}: "
        t_s = _cell(cells, "t_s", _seconds, where, faults)
        event = _cell(cells, "event", _event, where, faults) or ("", 0.0)
        lines.append(RecordedRow(_values(cells, where, faults), t_s, *event))
    faults = faults or _order_faults(lines)
    if faults:
        more = f" and {len(faults) - _FAULTS_SHOWN} more" if len(faults) > _FAULTS_SHOWN else ""
        raise ProviderMisconfigured("; ".join(faults[:_FAULTS_SHOWN]) + more)
    if lines[0].t_s is None:
        return GpuRecording((), (tuple(lines),))
    groups = {t_s: tuple(group) for t_s, group in itertools.groupby(lines, key=lambda line: line.t_s or 0.0)}
    return GpuRecording(tuple(groups), tuple(groups.values()))


def row(cells: Mapping[str, Cell]) -> dict[str, Cell]:
    """Check one row given in code; raise ``ProviderMisconfigured`` that lists all its faults."""
    faults = [_unknown(name) for name in cells if name not in _READ]
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
    read = {name: _cell(cells, name, convert, where, faults) for name, convert in _READ.items()}
    return {name: value for name, value in read.items() if value is not None}


def _cell(
    cells: Mapping[str, Cell], name: str, convert: Callable[[Cell], Cell], where: str, faults: list[str]
) -> Cell:
    value = cells.get(name)
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    try:
        return convert(value)
    except (ValueError, TypeError, OverflowError) as error:
        faults.append(f"{where}{name}: {value!r:.80} {error}")
        return None


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
_READ: Final = {
    field.name: _SPECIAL.get(field.name, _whole if field.type == "int | None" else _number)
    for field in fields(GpuSample)
    if field.name not in GIVEN
}
COLUMNS: Final = (*_READ, "t_s", "event")


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name, COLUMNS, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(COLUMNS)}"
    return f"column {name!r} is unknown, {hint}"


def _order_faults(lines: list[RecordedRow]) -> list[str]:
    faults = [] if lines else ["there are no rows"]
    timed = [line.t_s for line in lines if line.t_s is not None]
    if timed and len(timed) != len(lines):
        faults.append(f"t_s is given in {len(timed)} of {len(lines)} rows: give it in all or in none")
    elif any(later < earlier for earlier, later in itertools.pairwise(timed)):
        faults.append("t_s goes back: rows stand in the order of their time")
    named = [
        (line.t_s, line.values.get("host"), line.values["device"])
        for line in lines
        if "device" in line.values
    ]
    if len(set(named)) < len(named):
        faults.append("a device stands twice at one time")
    return faults
