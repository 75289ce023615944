"""Writer of a recording: one thread writes, and the request path never waits for it."""

from __future__ import annotations

import time
from collections import deque
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
from autoglm_throttle.traffic.record.recording_file import RecordingFile
from autoglm_throttle.types import Clock

QUEUE: Final = 10_000
"""Requests that may wait to be written: two seconds at 5,000/s. Further ones are dropped and counted."""

QUEUE_BYTES: Final = 64 * 1024 * 1024
"""Memory of the queued requests until they are on disk: a thousand of the longest bodies."""

WRITE_BYTES: Final = 1024 * 1024
"""Bytes of lines after which they are flushed to the operating system, even while more wait."""

ITEM_BYTES: Final = 1024
"""Size of an item without body, target and values of header fields."""

BATCH_DELAY_S: Final = 0.5
"""Seconds between two writes of a batch; a killed process may lose this much."""

SLICE: Final = 32
"""Lines formatted at a time, about 0.2 ms; then the thread yields to the event loop."""

CLOSE_S: Final = 5.0
"""Longest wait for a slow disk on close."""

Item = tuple[float, int, RequestFields, BodyFields, DecisionFields, ResponseFields]
"""The arguments of `format_line`."""


class WriteQueue:
    """Requests that wait to be written, bounded in number and in memory; any thread may put them in."""

    __slots__ = ("_items", "dropped", "put_bytes", "written_bytes")

    def __init__(self) -> None:
        self.put_bytes: int = 0
        """Size of all requests put in so far."""
        self.written_bytes: int = 0
        """Size of those that are on disk or lost."""
        self.dropped: int = 0
        """Requests missing from the file."""
        self._items: deque[Item] = deque()

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: Item) -> int:
        """Queue a request, or count it as dropped; return the number of requests in front of it."""
        waiting = len(self._items)
        size = _size(item)
        if waiting >= QUEUE or self.put_bytes - self.written_bytes + size > QUEUE_BYTES:
            self.dropped += 1
        else:
            self.put_bytes += size
            self._items.append(item)
        return waiting

    def take(self, count: int) -> list[Item]:
        """Remove the oldest requests; there must be as many."""
        return [self._items.popleft() for _ in range(count)]

    def discard(self) -> None:
        """Count all queued requests as dropped."""
        self.dropped += len(self._items)
        self._items.clear()


class Writer:
    """Queue, thread and file of one recording.

    Args:
        store: the new file.
        header: its first line.
        settings: when the recording ends by itself.
        clock: monotonic seconds.

    Raises:
        OSError: the header cannot be written.
        RuntimeError: the system has no thread to give.
    """

    def __init__(self, store: RecordingFile, header: str, settings: RecorderSettings, clock: Clock) -> None:
        store.add(header)
        store.flush()
        self.store: RecordingFile = store
        self.began_s: float = clock()
        """Clock time of 0 s in the file."""
        self.ended: str = ""
        """Reason for the end: ``closed``, ``max_bytes``, ``max_s`` or ``failed``; empty while active."""
        self.written: int = 0
        """Requests flushed to the operating system."""
        self.in_flight: int = 0
        """Requests that have started and are not queued yet."""
        self.queue: WriteQueue = WriteQueue()
        self._unflushed = self._unflushed_bytes = 0
        self._settings = settings
        self._clock = clock
        self._worker = Worker("autoglm-throttle-recorder", self._step, on_stop=self._close_file)
        self._worker.start()
        if self._worker.has_crashed and not self._worker.is_alive:
            raise RuntimeError("no thread can be started")

    @property
    def path(self) -> Path:
        """The file being written."""
        return self.store.path

    @property
    def dropped(self) -> int:
        """Requests missing from the file."""
        return self.queue.dropped

    def put(self, item: Item) -> None:
        """Queue a request, or count it as dropped. Never waits."""
        # In-flight requests were counted as dropped when the recording ended.
        if not self.ended and self.queue.put(item) == QUEUE // 2:
            self._worker.wake()

    @property
    def done(self) -> bool:
        """Whether everything is written or discarded."""
        return not self._worker.is_alive

    def write_now(self) -> None:
        """Write the queued requests without the delay of a batch; does not wait."""
        self._worker.wake()

    def close(self, wait_s: float = CLOSE_S) -> None:
        """Request the end, and wait at most ``wait_s`` until the queued requests are written."""
        self._worker.stop(wait_s)

    def _step(self) -> float | None:
        """Write what is queued, on the thread; return the seconds until the next time."""
        try:
            reason = self._drain() or ("max_s" if self._left_s() <= 0.0 else "")
            if not reason:
                return min(BATCH_DELAY_S, max(0.0, self._left_s()))
            self._finish(reason)
        except Exception as error:  # noqa: BLE001 - the thread is the last handler
            self._fail(error)
        return None

    def _close_file(self) -> None:
        if self.ended:
            return
        try:
            self._finish(self._drain() or "closed")
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(error)

    def _left_s(self) -> float:
        return self._settings.max_s - (self._clock() - self.began_s)

    def _drain(self) -> str:
        """Write the queued requests; return the reason to end, or an empty text."""
        reason = ""
        waiting = len(self.queue)
        size = max(SLICE, waiting // 64)
        while waiting and not reason:
            count = min(waiting, size)
            waiting -= count
            items = self.queue.take(count)
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
        self.queue.written_bytes += self._unflushed_bytes
        self._unflushed = self._unflushed_bytes = 0

    def _finish(self, reason: str) -> None:
        self._discard_rest(reason)
        self.store.close(RecordingTrailer(reason, self.dropped).to_line())
        if reason != "closed":
            LOGGER.warning("recording ended (%s): %s holds %d requests", reason, self.path, self.written)

    def _discard_rest(self, reason: str) -> None:
        """End the recording: count queued and in-flight requests as lost."""
        self.ended = reason
        self.queue.discard()
        # In-flight requests will not be written either; only the sampled share would have been.
        self.queue.dropped += round(max(0, self.in_flight) * self._settings.sample)

    def _add(self, items: list[Item]) -> str:
        """Add the lines of some requests; return the reason if the rest does not fit, or an empty text."""
        max_s = self._settings.max_s
        for position, item in enumerate(items):
            reason = ""
            if item[0] > max_s:
                reason = "max_s"
            elif not self.store.add(format_line(*item)):
                reason = "max_bytes"
            if reason:
                self.queue.dropped += len(items) - position
                return reason
            self._unflushed += 1
        return ""

    def _fail(self, error: Exception) -> None:
        self._discard_rest("failed")
        self.queue.dropped += self._unflushed
        self.store.abandon()
        reason = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
        LOGGER.error("recording ended, %s cannot be written: %s; requests go on", self.path, reason)


def _size(item: Item) -> int:
    """Estimate the memory of an item in bytes."""
    (_, target, fields), body = item[2], item[3][2]
    size = ITEM_BYTES + len(target) + (len(body) if body else 0)
    for _, value in fields:
        size += len(value)
    return size
