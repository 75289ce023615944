"""Adds up the counts of the workers of one service on one host, which share them through files.

Each worker writes its counts once per step to a file of its own, and reads those of the others. Files need no
port, no server and no lock: a worker that hangs or dies stops nobody.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import quote

Labels: TypeAlias = tuple[str, ...]
Counts: TypeAlias = tuple[float, ...]
"""The value of a gauge or counter, or the counts of a histogram's buckets and the sum of its durations."""
Series: TypeAlias = dict[str, dict[Labels, Counts]]
"""Name -> label values -> counts."""

STALE_S: Final = 15.0  # three steps: a worker that has written nothing for longer has no load
FORGOTTEN_S: Final = 86_400.0  # the folder of a service that has ended is removed by another one a day later
ENDED: Final = "ended.json"
LOCK: Final = "merging"
MAX_MERGED: Final = 1000  # names of files that were merged: a slow reader may still have read one of them


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One worker, as its file shows it."""

    process: int
    age_s: float
    """Seconds since it wrote its counts."""
    series: Series
    """Its counts."""
    passed_s: float
    """Seconds between its last two steps; 0 after its first one."""
    increases: Series
    """Growth of its counters between these steps."""

    @property
    def is_stale(self) -> bool:
        """Whether it has written nothing for `STALE_S`: it hangs, or has ended."""
        return self.age_s > STALE_S


def folder_of(service: str) -> Path:
    """Return the folder of the workers with this parent process, which the user of this process owns.

    Raises:
        OSError: it cannot be made, or another user may write to it.
    """
    base = Path(tempfile.gettempdir()) / f"autoglm_throttle-{os.getuid()}"
    for path in (base, base / f"{os.getppid()}-{quote(service, safe='')}"):
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise PermissionError(f"{path} must be a folder that only its owner, this user, may enter")
    for other in base.iterdir():
        with contextlib.suppress(OSError):  # another process may have removed it
            if other != path and time.time() - other.stat().st_mtime > FORGOTTEN_S:
                shutil.rmtree(other, ignore_errors=True)
    return path


class Siblings:
    """Exchanges counts with the other workers; results are replaced as a whole.

    Counts of a worker that has ended stay in the totals: a counter that falls would look like a restart. Its
    file is merged into that of all ended ones, so that replaced workers leave none behind.

    Args:
        folder: the same for all workers.
        counters: names whose values only grow; all others are gauges.
        process: the number of this process.
    """

    def __init__(self, folder: Path, counters: Iterable[str], process: int) -> None:
        self.totals: Series = {}
        """Sums over all workers: of counters also those that ended, of gauges those that are not stale."""
        self.workers: tuple[WorkerView, ...] = ()
        """The living workers, this one included, by process."""
        self._folder = folder
        self._counters = frozenset(counters)
        self._process = process
        self._path = folder / f"{process}-{secrets.token_hex(4)}.json"
        self._before: tuple[float, Series] | None = None
        self._lock = threading.Lock()  # the last exchange comes from the thread that ends the service

    def exchange(self, now: float, own: Series) -> None:
        """Add up all at the monotonic time ``now``, then write the counts of this worker.

        Raises:
            OSError: the counts could not be written: the others have the older ones.
        """
        with self._lock:
            self._exchange(now, own)

    def _exchange(self, now: float, own: Series) -> None:
        before_s, before = self._before or (now, {})
        self._before = now, own
        grown = {name: _minus(own[name], before.get(name, {})) for name in self._counters & own.keys()}
        mine = WorkerView(self._process, 0.0, own, now - before_s, grown)
        others = (path for path in sorted(self._folder.glob("*-*.json")) if path != self._path)
        found = {path.name: _read(path) for path in others}
        # After the files: one that is merged meanwhile is in `ENDED`, or was read and is left out here.
        ended = _read(self._folder / ENDED)
        present = {name: one for name, one in found.items() if one and name not in ended.get("merged", ())}
        totals, workers, gone = _series(ended), [mine], dict[str, Series]()
        _add(totals, own)
        for name, one in present.items():
            worker = _view(one, now)
            counts = {key: rows for key, rows in worker.series.items() if key in self._counters}
            _add(totals, counts if worker.is_stale else worker.series)
            if _is_alive(worker.process):
                workers.append(worker)
            elif worker.is_stale:  # its gauges are not counted any more, and no total falls by the merge
                gone[name] = counts
        self.workers, self.totals = tuple(sorted(workers, key=lambda one: one.process)), totals
        _write(self._path, self._process, now, own, {"passed_s": mine.passed_s, "increases": _packed(grown)})
        if gone:
            self._merge(gone)

    def _merge(self, gone: Mapping[str, Series]) -> None:
        """Add the counts of ended workers to the file of all of them, unless another worker does so now."""
        lock = self._folder / LOCK
        try:
            os.close(os.open(lock, os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            if time.time() - lock.stat().st_mtime > STALE_S:  # its owner has ended amid a merge
                lock.unlink(missing_ok=True)
            return
        try:
            ended = _read(self._folder / ENDED)
            merged, totals = ended.get("merged", []), _series(ended)
            for series in (series for name, series in gone.items() if name not in merged):
                _add(totals, series)
            names = [*merged, *(name for name in gone if name not in merged)][-MAX_MERGED:]
            _write(self._folder / ENDED, 0, 0.0, totals, {"merged": names})
            for name in gone:
                (self._folder / name).unlink(missing_ok=True)
        finally:
            lock.unlink(missing_ok=True)


def _view(found: Mapping[str, Any], now: float) -> WorkerView:
    return WorkerView(
        found["process"],
        max(0.0, now - found["at"]),
        _series(found),
        found["passed_s"],
        _series(found, "increases"),
    )


def _packed(series: Series) -> list[Any]:
    return [[name, [[labels, counts] for labels, counts in rows.items()]] for name, rows in series.items()]


def _series(found: Mapping[str, Any], key: str = "series") -> Series:
    return {
        name: {tuple(labels): tuple(counts) for labels, counts in rows} for name, rows in found.get(key, ())
    }


def _add(totals: Series, series: Series) -> None:
    for name, rows in series.items():
        sums = totals.setdefault(name, {})
        for labels, counts in rows.items():
            known = sums.get(labels, (0.0,) * len(counts))
            sums[labels] = tuple(map(sum, zip(known, counts, strict=True)))


def _minus(after: Mapping[Labels, Counts], before: Mapping[Labels, Counts]) -> dict[Labels, Counts]:
    return {
        labels: tuple(
            new - old for new, old in zip(counts, before.get(labels, (0.0,) * len(counts)), strict=True)
        )
        for labels, counts in after.items()
    }


def _write(path: Path, process: int, at: float, series: Series, more: Mapping[str, object]) -> None:
    """Replace a file as a whole, so that no reader sees a part of it."""
    text = json.dumps(
        {"process": process, "at": at, "series": _packed(series), **more}, separators=(",", ":")
    )
    fresh = path.with_suffix(".new")
    fresh.write_text(text, "utf-8")
    fresh.replace(path)


def _read(path: Path) -> dict[str, Any]:
    """Return the content of a file; empty if it is not there any more, or damaged."""
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return found


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
