"""Parses recorded or hand-written samples: CSV with a header, or one JSON object per line.

Columns are the names of ``GpuSample`` plus ``t_s`` (seconds from the start) and ``event``:
``lost``, ``error``, ``stale`` or ``hang:SECONDS``. An empty cell is "not known"; ``throttle`` is a list of
reasons, in a CSV with ``;`` between them, and ``none`` for a device without any.
All faults of a file are reported together.
"""

from __future__ import annotations

import csv
import difflib
import itertools
import json
import math
from bisect import bisect_right
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

from autoglm_throttle.gpu.sanity import THROTTLE_BITS
from autoglm_throttle.types import GpuSample, ProviderMisconfigured

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

GIVEN: Final = frozenset({"taken_at_s", "source"})
"""Fields that the replaying provider fills in."""

EVENTS: Final = frozenset({"lost", "error", "stale", "hang"})
_FAULTS_SHOWN: Final = 20

Cell = Any
"""Unchecked content of a cell: a CSV gives text, JSON gives any of its types."""


@dataclass(frozen=True, slots=True)
class RecordedRow:
    """One row of a file."""

    values: dict[str, Cell]
    """Fields of a ``GpuSample`` that were given."""
    t_s: float | None = None
    event: str = ""
    hang_s: float = 0.0


@dataclass(frozen=True, slots=True)
class GpuRecording:
    """A file's rows, grouped by their time."""

    times: tuple[float, ...]
    """Ascending seconds from the start; empty for a live state, which is always current."""
    groups: tuple[tuple[RecordedRow, ...], ...]

    def at(self, elapsed_s: float) -> tuple[int, tuple[RecordedRow, ...]]:
        """Return the number and the rows of the latest group not after ``elapsed_s``.

        Before the first time of a recording these are -1 and no rows.
        """
        number = bisect_right(self.times, elapsed_s) - 1 if self.times else 0
        return (number, self.groups[number]) if number >= 0 else (-1, ())


def parse(text: str, *, jsonl: bool) -> GpuRecording:
    """Read a file's text.

    Args:
        text: the whole file.
        jsonl: whether it holds JSON objects, one a line, instead of CSV.

    Raises:
        ProviderMisconfigured: the text has faults; up to twenty are listed.
    """
    faults: list[str] = []
    lines: list[RecordedRow] = []
    for number, cells in (_json_rows if jsonl else _csv_rows)(text, faults):
        before = len(faults)
        line = _recorded_row(cells, f"line {number}: ", faults)
        if len(faults) == before:
            lines.append(line)
    if not faults:
        faults += _order_faults(lines)
    if faults:
        more = f" and {len(faults) - _FAULTS_SHOWN} more" if len(faults) > _FAULTS_SHOWN else ""
        raise ProviderMisconfigured("; ".join(faults[:_FAULTS_SHOWN]) + more)
    if lines[0].t_s is None:
        return GpuRecording((), (tuple(lines),))
    grouped = [
        (t_s, tuple(group)) for t_s, group in itertools.groupby(lines, key=lambda line: line.t_s or 0.0)
    ]
    return GpuRecording(tuple(t_s for t_s, _ in grouped), tuple(group for _, group in grouped))


def row(cells: Mapping[str, Cell]) -> dict[str, Cell]:
    """Check one row of ``GpuSample`` names and values given in code.

    Raises:
        ProviderMisconfigured: a name is unknown or a value is of the wrong kind; all faults are listed.
    """
    faults = [_unknown(name) for name in cells if name not in COLUMNS or name in {"t_s", "event"}]
    values = _values({name: value for name, value in cells.items() if name in _READ}, "", faults)
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
        faults += [
            f"column {name!r} is there twice" for name in sorted({n for n in header if header.count(n) > 1})
        ]
        for cells in reader:
            if len(cells) > len(header):
                faults.append(f"line {reader.line_num}: {len(cells)} cells, but {len(header)} columns")
            elif any(cell.strip() for cell in cells):
                yield reader.line_num, dict(zip(header, cells, strict=False))
    except csv.Error as error:
        faults.append(f"line {reader.line_num}: no CSV: {error}")


def _recorded_row(cells: Mapping[str, Cell], where: str, faults: list[str]) -> RecordedRow:
    t_s = _cell(cells, "t_s", _seconds, where, faults)
    event = _cell(cells, "event", _event, where, faults) or ("", 0.0)
    return RecordedRow(_values(cells, where, faults), t_s, *event)


def _values(cells: Mapping[str, Cell], where: str, faults: list[str]) -> dict[str, Cell]:
    read = {
        name: _cell(cells, name, convert, where, faults) for name, convert in _READ.items() if name in cells
    }
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
    number = _number(value)
    if not (number >= 0 and number.is_integer()):
        raise ValueError("is no index")
    return int(number)


def _seconds(value: Cell) -> float:
    number = _number(value)
    if not 0.0 <= number < math.inf:
        raise ValueError("is no time from the start in seconds")
    return number


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


def _one_of(*allowed: str) -> Callable[[Cell], str]:
    def convert(value: Cell) -> str:
        if value not in allowed:
            raise ValueError(f"is none of {', '.join(allowed)}")
        return str(value)

    return convert


def _event(value: Cell) -> tuple[str, float]:
    name, colon, rest = _text(value).partition(":")
    if name not in EVENTS or (name == "hang") != bool(colon):
        raise ValueError("is none of lost, error, stale, hang:SECONDS")
    return name, _seconds(rest) if colon else 0.0


_SPECIAL: Final[dict[str, Callable[[Cell], Cell]]] = {
    "index": _index,
    "device": _text,
    "host": _text,
    "name": _text,
    "gpu_instance": _text,
    "notes": _notes,
    "kind": _one_of("gpu", "mig", "engine"),
    "health": _one_of("ok", "degraded", "lost"),
    "throttle": _throttle,
}
_READ: Final = {
    field.name: _SPECIAL.get(field.name, _whole if field.type == "int | None" else _number)
    for field in fields(GpuSample)
    if field.name not in GIVEN
}
COLUMNS: Final = (*_READ, "t_s", "event")
"""Every column a file may have."""


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name, COLUMNS, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(COLUMNS)}"
    return f"column {name!r} is unknown, {hint}"


def _order_faults(lines: list[RecordedRow]) -> Iterable[str]:
    if not lines:
        yield "there are no rows"
        return
    times = [line.t_s for line in lines]
    timed = [t_s for t_s in times if t_s is not None]
    if timed and len(timed) != len(times):
        yield f"t_s is given in {len(timed)} of {len(times)} rows: give it in all or in none"
    elif any(later < earlier for earlier, later in itertools.pairwise(timed)):
        yield "t_s goes back: rows stand in the order of their time"
    named = [
        (line.t_s, line.values.get("host"), line.values["device"])
        for line in lines
        if "device" in line.values
    ]
    if len(set(named)) < len(named):
        yield "a device stands twice at one time"
