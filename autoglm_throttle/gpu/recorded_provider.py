"""Provides recorded or hand-written samples: for tests, demonstrations and replays."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoglm_throttle.gpu import recording
from autoglm_throttle.types import GpuSample, ProviderMisconfigured, ProviderUnavailable

if TYPE_CHECKING:
    from autoglm_throttle.gpu.recording import GpuRecording, RecordedRow
    from autoglm_throttle.types import Clock

Row = float | Mapping[str, object] | GpuSample
"""One device: its utilization in percent, some fields of a sample by name, or a whole sample."""
Tick = Row | Sequence[Row] | Exception
"""One reading: a device, several devices, or an exception to raise."""
Script = Iterable[Tick] | Callable[[], Tick] | str | os.PathLike[str]
"""A list or generator of readings, a function that returns one, or the path of a file."""


class RecordedProvider:
    """Plays samples back.

    A list or generator gives one reading per ``read`` and then repeats its last one;
    a function is called for each. A file with a column ``t_s`` is a recording, of which each reading
    gives the rows of the latest time passed; one without is a live state, read again when it changes.

    Args:
        source: the script. A text is the path of a file: ``.jsonl`` holds JSON objects, others CSV.
        clock: monotonic seconds; ``t_s`` counts from the first ``read``.
        name: the source named in the samples.
        hang: how to wait in a row with the event ``hang:SECONDS``.
            None, for use without a thread: readings give no rows for that time instead.
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
        return f"RecordedProvider({self._script})"

    def read(self) -> Sequence[GpuSample]:
        """Return the next reading.

        Raises:
            ProviderUnavailable: the script says so, has not begun, is empty, or its file cannot be read.
            ProviderMisconfigured: the script has faults; all are listed.
        """
        if isinstance(self._script, _GpuRecordingFile):
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

    def _sample(self, row: Row, index: int) -> GpuSample:
        if isinstance(row, GpuSample):
            return row
        if isinstance(row, Mapping):
            return self._build(recording.row(row), index)
        return self._build(recording.row({"utilization_pct": row}), index)

    def _build(self, values: Mapping[str, Any], index: int) -> GpuSample:
        index = values.get("index", index)
        given = {"device": f"FAKE-{index}", **values, "index": index}
        return GpuSample(taken_at_s=self._clock(), source=self.name, **given)

    def _replay(self, file: _GpuRecordingFile) -> Sequence[GpuSample]:
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

    def _current_rows(self, file: _GpuRecordingFile) -> tuple[object, Sequence[RecordedRow]]:
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


def _script(source: Script) -> Callable[[], Tick] | _GpuRecordingFile:
    if isinstance(source, str | os.PathLike):
        return _GpuRecordingFile(Path(source))
    return source if callable(source) else _Steps(source)


class _Steps:
    """A list or generator of readings; the last one is repeated."""

    def __init__(self, steps: Iterable[Tick]) -> None:
        self._steps = iter(steps)
        self._last: Tick | None = None

    def __repr__(self) -> str:
        return "steps"

    def __call__(self) -> Tick:
        self._last = next(self._steps, self._last)
        if self._last is None:
            raise ProviderUnavailable("the script is empty")
        return self._last


class _GpuRecordingFile:
    """A file that is parsed again when its size or its time of change is new."""

    def __init__(self, path: Path) -> None:
        self.path: Path = path
        self.changes: int = 0
        self._stamp: tuple[int, int] | None = None
        self._recording: GpuRecording | None = None

    def __repr__(self) -> str:
        return str(self.path)

    def load(self) -> GpuRecording:
        """Return the recording, read again if it is a live state and has changed.

        Raises:
            ProviderUnavailable: it cannot be read now, or a live state that was good has faults,
                as when it is being written at this moment.
            ProviderMisconfigured: it has had faults from the beginning.
        """
        if self._recording is not None and self._recording.times:
            return self._recording
        try:
            stat = self.path.stat()
            # Size too: two writes within one tick of the file system share their mtime.
            stamp = (stat.st_size, stat.st_mtime_ns)
            if stamp != self._stamp or self._recording is None:
                text = self.path.read_text(encoding="utf-8-sig", errors="replace")
                self._recording = recording.parse(text, jsonl=self.path.suffix.lower() == ".jsonl")
                self._stamp = stamp
                self.changes += 1
        except OSError as error:
            raise ProviderUnavailable(f"{self.path}: {error.strerror or error}") from error
        except ProviderMisconfigured as error:
            kind = ProviderMisconfigured if self._recording is None else ProviderUnavailable
            raise kind(f"{self.path}: {error}") from error
        return self._recording
