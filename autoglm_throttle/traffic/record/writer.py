"""Writer of a recording: one thread writes, and the request path never waits for it."""

from __future__ import annotations

import threading
import time
from collections import deque
from pathlib import Path
from typing import Final

from autoglm_throttle.events import LOGGER
from autoglm_throttle.traffic.record.recorded_request import (
    BodyFields,
    DecisionFields,
    RequestFields,
    ResponseFields,
    format_line,
)
from autoglm_throttle.traffic.record.recording_file import RecordingFile
from autoglm_throttle.traffic.record.recording_header import RecordingTrailer
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
"""Delay for batching requests before a write; a killed process may lose this much."""

SLICE: Final = 32
"""Lines formatted at a time, about 0.2 ms; then the thread yields to the event loop."""

CLOSE_S: Final = 5.0
"""Longest wait for a slow disk on close."""

Item = tuple[float, int, RequestFields, BodyFields, DecisionFields, ResponseFields]
"""The arguments of `format_line`."""


class Writer:
    """Queue, thread and file of one recording.

    Args:
        store: the new file.
        header: its first line.
        max_s: seconds after which the recording ends.
        clock: monotonic seconds.
        sample: share of the requests that are recorded.

    Raises:
        OSError: the header cannot be written.
    """

    def __init__(
        self, store: RecordingFile, header: str, max_s: float, clock: Clock, sample: float = 1.0
    ) -> None:
        store.add(header)
        store.flush()
        self._store = store
        self._max_s = max_s
        self._clock = clock
        self.began_s: float = clock()
        """Clock time of 0 s in the file."""
        self.ended: str = ""
        """Reason for the end: ``closed``, ``max_bytes``, ``max_s`` or ``failed``; empty while active."""
        self.written: int = 0
        """Requests flushed to the operating system."""
        self.in_flight: int = 0
        """Requests that have started and are not queued yet."""
        self._sample = sample
        self._put_bytes = 0
        self._done_bytes = 0
        self._full = 0
        self._lost = 0
        self._held = 0
        self._held_bytes = 0
        self._closing = False
        self._queue: deque[Item] = deque()
        self._filled = threading.Event()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="autoglm-throttle-recorder", daemon=True)
        self._thread.start()

    @property
    def path(self) -> Path:
        """The file being written."""
        return self._store.path

    @property
    def dropped(self) -> int:
        """Requests missing from the file."""
        return self._full + self._lost

    def put(self, item: Item) -> None:
        """Queue a request, or count it as dropped. Never waits."""
        if self.ended:  # and what was under way then is counted
            return
        queue = self._queue
        waiting = len(queue)
        size = _size(item)
        if waiting >= QUEUE or self._put_bytes - self._done_bytes + size > QUEUE_BYTES:
            self._full += 1
            return
        self._put_bytes += size
        queue.append(item)
        if not self._filled.is_set():
            self._filled.set()
        if waiting == QUEUE // 2:
            self._wake.set()

    @property
    def done(self) -> bool:
        """Whether everything is written or discarded."""
        return not self._thread.is_alive()

    def end(self) -> None:
        """Request the end: queued requests and the last line are still written; does not wait."""
        self._closing = True
        self._filled.set()
        self._wake.set()

    def close(self, wait_s: float = CLOSE_S) -> None:
        """Request the end, and wait for it for at most ``wait_s``."""
        self.end()
        if threading.current_thread() is not self._thread:
            self._thread.join(wait_s)

    def _run(self) -> None:
        reason = ""
        try:
            while not reason:
                closing = self._wait()
                reason = self._drain() or ("closed" if closing else self._over())
            self._discard_rest(reason)
            self._store.close(RecordingTrailer(reason, self.dropped).to_line())
        except Exception as error:  # noqa: BLE001 - the thread is the last handler
            self._fail(error)
        else:
            if reason != "closed":
                LOGGER.warning("recording ended (%s): %s holds %d requests", reason, self.path, self.written)

    def _wait(self) -> bool:
        """Wait for work; return whether the end was requested."""
        if self._filled.wait(max(0.0, min(self._max_s, threading.TIMEOUT_MAX))):
            if not self._closing:
                self._wake.wait(BATCH_DELAY_S)
            self._wake.clear()
            self._filled.clear()
        return self._closing

    def _over(self) -> str:
        return "max_s" if self._clock() - self.began_s >= self._max_s else ""

    def _drain(self) -> str:
        """Write the queued requests; return the reason to end, or an empty text."""
        queue = self._queue
        reason = ""
        waiting = len(queue)
        size = max(SLICE, waiting // 64)
        while waiting and not reason:
            count = min(waiting, size)
            waiting -= count
            items = [queue.popleft() for _ in range(count)]
            reason = self._add(items)
            self._held_bytes += sum(map(_size, items))
            if self._held_bytes >= WRITE_BYTES:
                self._flush()
            time.sleep(0)  # the event loop wants the interpreter, too
        self._flush()
        return reason

    def _flush(self) -> None:
        self._store.flush()
        self.written += self._held
        self._done_bytes += self._held_bytes
        self._held = self._held_bytes = 0

    def _discard_rest(self, reason: str) -> None:
        """End the recording: count queued and in-flight requests as lost."""
        self.ended = reason
        # In-flight requests will not be written either; only the sampled share would have been.
        self._lost += len(self._queue) + round(max(0, self.in_flight) * self._sample)
        self._queue.clear()

    def _add(self, items: list[Item]) -> str:
        """Add the lines of some requests; return the reason if the rest does not fit, or an empty text."""
        for position, item in enumerate(items):
            reason = (
                "max_s"
                if item[0] > self._max_s
                else ""
                if self._store.add(format_line(*item))
                else "max_bytes"
            )
            if reason:
                self._lost += len(items) - position
                return reason
            self._held += 1
        return ""

    def _fail(self, error: Exception) -> None:
        self._discard_rest("failed")
        self._lost += self._held
        self._store.abandon()
        reason = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
        LOGGER.error("recording ended, %s cannot be written: %s; requests go on", self.path, reason)


def _size(item: Item) -> int:
    """Estimate the memory of an item in bytes."""
    (_, target, fields), body = item[2], item[3][2]
    size = ITEM_BYTES + len(target) + (len(body) if body else 0)
    for _, value in fields:
        size += len(value)
    return size
