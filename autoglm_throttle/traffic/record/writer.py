"""Writer of a recording: one thread fills the file, and the request path never waits for it."""

from __future__ import annotations

import contextlib
import os
import time
import zlib
from collections import deque
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final

from autoglm_throttle._runtime.worker import Worker
from autoglm_throttle.events import LOGGER
from autoglm_throttle.settings.groups.observe import RecorderSettings
from autoglm_throttle.traffic.record.recorded_request import (
    BodyFields,
    DecisionFields,
    RecordingTrailer,
    RequestFields,
    ResponseFields,
    format_line,
)
from autoglm_throttle.types import Clock

# Requests that may wait to be written: two seconds at 5,000/s. Further ones are dropped and counted.
QUEUE: Final = 10_000

# Memory of the queued requests until they are on disk: a thousand of the longest bodies.
QUEUE_BYTES: Final = 64 * 1024 * 1024

# Bytes of lines after which they are flushed to the operating system, even while more wait.
WRITE_BYTES: Final = 1024 * 1024

ITEM_BYTES: Final = 1024  # Size of an item without body, target and values of header fields
BATCH_DELAY_S: Final = 0.5  # Seconds between two writes of a batch; a killed process may lose this much
SLICE: Final = 32  # Lines formatted at a time, about 0.2 ms; then the thread yields to the event loop
CLOSE_S: Final = 5.0  # Longest wait for a slow disk on close

# Files of one base name side by side; a service that fails at every start creates one each time.
MAX_SAME_NAME: Final = 100

RESERVE: Final = 512  # Bytes reserved for the last line and for the overhead of gzip
GZIP: Final = 31  # ``wbits`` of zlib for the gzip format

# The arguments of `format_line`.
Item = tuple[float, int, RequestFields, BodyFields, DecisionFields, ResponseFields]


class RecordingFile:
    """A new file of lines; one that ends in ``.gz`` is compressed.

    Of an existing name the next free one is created: several workers must not write into one recording.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._fd, created = _create(path)
        self.path: Path = created
        self._max_bytes = max_bytes
        self._packer = zlib.compressobj(6, zlib.DEFLATED, GZIP) if path.suffix == ".gz" else None
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._size = 0

    def add(self, line: str) -> bool:
        """Add a line and its end; False if the file would become too large."""
        raw = line.encode() + b"\n"
        if self._min_bytes_left() < len(raw):
            self.flush()  # packed it is shorter than it was reckoned
            if self._min_bytes_left() < len(raw):
                return False
        self._pending.append(raw)
        self._pending_bytes += len(raw)
        return True

    def flush(self, mode: int = zlib.Z_SYNC_FLUSH) -> None:
        """Write everything to the operating system, so that it survives this process."""
        data = b"".join(self._pending)
        self._pending.clear()
        self._pending_bytes = 0
        if self._packer is not None and data:
            data = self._packer.compress(data) + self._packer.flush(mode)
        while data:
            written = os.write(self._fd, data)
            self._size += written
            data = data[written:]

    def close(self, line: str) -> None:
        """Add the last line, from the reserved space, and close the file, also after an error."""
        try:
            self._pending.append(line.encode() + b"\n")
            self.flush(zlib.Z_FINISH)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the file without flushing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _min_bytes_left(self) -> int:
        # Worst case of zlib: stored blocks add far less than 1/256 of the input.
        return self._max_bytes - RESERVE - self._size - self._pending_bytes - (self._pending_bytes >> 8)


class Writer:
    """Queue, thread and file of one recording. An error of its constructor means that nothing is recorded."""

    def __init__(self, store: RecordingFile, header: str, settings: RecorderSettings, clock: Clock) -> None:
        store.add(header)
        store.flush()
        self.store: RecordingFile = store
        self.began_s: float = clock()  # Clock time of 0 s in the file
        # Reason for the end: ``closed``, ``max_bytes``, ``max_s`` or ``failed``; empty while active.
        self.ended: str = ""
        self.written: int = 0  # Requests flushed to the operating system
        self.in_flight: int = 0  # Requests that have started and are not queued yet
        self.dropped: int = 0  # Requests missing from the file
        self.queued: deque[Item] = deque()  # Bounded in number and in memory; any thread may put them in
        self.put_bytes: int = 0  # Size of all requests put in so far
        self.written_bytes: int = 0  # Size of those that are on disk or lost
        self._serials = count()
        self._unflushed = self._unflushed_bytes = 0
        self._settings = settings
        self._clock = clock
        self.worker: Worker = Worker(
            "autoglm-throttle-recorder", self._step, on_stop=partial(self._step, "closed")
        )
        self.worker.start()
        if self.worker.has_crashed and not self.worker.is_alive:
            raise RuntimeError("no thread can be started")

    def begin(self) -> int:
        """Count a request as in flight; return its serial number."""
        self.in_flight += 1
        return next(self._serials)

    def put(self, item: Item) -> None:
        """Queue a request, or count it as dropped. Never waits."""
        if self.ended:  # In-flight requests were counted as dropped then.
            return
        waiting, size = len(self.queued), _size(item)
        if waiting >= QUEUE or self.put_bytes - self.written_bytes + size > QUEUE_BYTES:
            self.dropped += 1
        else:
            self.put_bytes += size
            self.queued.append(item)
        if waiting == QUEUE // 2:
            self.worker.wake()

    def _step(self, end_reason: str = "") -> float | None:
        """Write what is queued, on the thread; return the seconds until the next time, None after the end."""
        if self.ended:
            return None
        try:
            left_s = self._settings.max_s - (self._clock() - self.began_s)
            reason = self._drain() or end_reason or ("max_s" if left_s <= 0.0 else "")
            if not reason:
                return min(BATCH_DELAY_S, left_s)
            self._discard_rest(reason)
            self.store.close(RecordingTrailer(reason, self.dropped).to_line())
        except Exception as error:  # noqa: BLE001 - the thread is the last handler
            self._fail(error)
            return None
        if reason != "closed":
            LOGGER.warning(
                "recording ended (%s): %s holds %d requests", reason, self.store.path, self.written
            )
        return None

    def _drain(self) -> str:
        """Write the queued requests; return the reason to end, or an empty text."""
        reason = ""
        queued, waiting = self.queued, len(self.queued)
        size = max(SLICE, waiting // 64)
        while waiting and not reason:
            items = [queued.popleft() for _ in range(min(waiting, size))]
            waiting -= len(items)
            reason = self._add(items)
            self._unflushed_bytes += sum(map(_size, items))
            if self._unflushed_bytes >= WRITE_BYTES:
                self._flush()
            time.sleep(0)  # the event loop wants the interpreter, too
        self._flush()
        return reason

    def _flush(self) -> None:
        self.store.flush()
        self.written += self._unflushed
        self.written_bytes += self._unflushed_bytes
        self._unflushed = self._unflushed_bytes = 0

    def _add(self, items: list[Item]) -> str:
        """Add the lines of some requests; return the reason if the rest does not fit, or an empty text."""
        for position, item in enumerate(items):
            is_late = item[0] > self._settings.max_s
            if is_late or not self.store.add(format_line(*item)):
                self.dropped += len(items) - position
                return "max_s" if is_late else "max_bytes"
            self._unflushed += 1
        return ""

    def _discard_rest(self, reason: str) -> None:
        """End the recording: count queued and in-flight requests as lost."""
        self.ended = reason
        self.dropped += len(self.queued)
        self.queued.clear()
        # In-flight requests will not be written either; only the sampled share would have been.
        self.dropped += round(max(0, self.in_flight) * self._settings.sample)

    def _fail(self, error: Exception) -> None:
        self._discard_rest("failed")
        self.dropped += self._unflushed
        self.store.abandon()
        reason = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
        LOGGER.error("recording ended, %s cannot be written: %s; requests go on", self.store.path, reason)


def _size(item: Item) -> int:
    """Estimate the memory of an item in bytes."""
    (_, target, fields), body = item[2], item[3][2]
    size = ITEM_BYTES + len(target) + (len(body) if body else 0)
    for _, value in fields:
        size += len(value)
    return size


def _create(path: Path) -> tuple[int, Path]:
    # O_EXCL and O_NOFOLLOW: never write into an existing file or through a link; mode 0600.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
    packed = path.suffix if path.suffix == ".gz" else ""
    plain = Path(path.name.removesuffix(packed))
    others = (f"{plain.stem}-{number}{plain.suffix}{packed}" for number in range(2, MAX_SAME_NAME + 1))
    for name in (path.name, *others):
        with contextlib.suppress(FileExistsError):
            return os.open(path.with_name(name), flags, 0o600), path.with_name(name)
    raise OSError(f"{MAX_SAME_NAME} recordings of this name are there already")
