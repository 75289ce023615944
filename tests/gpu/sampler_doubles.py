"""A provider, a listener and a clock that the tests command."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final

from autoglm_throttle.gpu.sampler import THREAD
from autoglm_throttle.types import GpuSample

ROW = GpuSample(device="GPU-a", index=0, taken_at_s=1.0, source="test", utilization_pct=50.0)
PATIENCE_S = 60.0
"""Seconds until a thread counts as dead, longer than any response of a busy machine."""


class Source:
    """A provider with a reading set by the test, which records its calls and their threads."""

    def __init__(
        self,
        reading: Callable[[], Sequence[GpuSample]] = lambda: [ROW],
        min_interval_s: float = 0.0,
        name: str = "source",
    ) -> None:
        self.name = name
        self.reading = reading
        self.min_interval_s = min_interval_s
        self.calls: list[str] = []
        self.threads: set[str] = set()
        self.entered = threading.Semaphore(0)

    def _note(self, call: str) -> None:
        self.calls.append(call)
        self.threads.add(threading.current_thread().name)

    def read(self) -> Sequence[GpuSample]:
        self._note("read")
        self.entered.release()
        return self.reading()

    def close(self) -> None:
        self._note("close")

    def reset_after_fork(self) -> None:
        self._note("forget")


class Hang:
    """A driver call that returns only when the test releases it."""

    def __init__(self) -> None:
        self.over = threading.Event()

    def __call__(self) -> Sequence[GpuSample]:
        self.over.wait()
        return [ROW]


class SampleRecorder:
    """The listener of a sampler: records its samples and failures."""

    def __init__(self) -> None:
        self.rows: list[Sequence[GpuSample]] = []
        self.errors: list[Exception] = []
        self.arrived = threading.Semaphore(0)

    def samples(self, rows: Sequence[GpuSample]) -> None:
        self.rows.append(rows)
        self.arrived.release()

    def failure(self, error: Exception) -> None:
        self.errors.append(error)
        self.arrived.release()

    def wait(self) -> None:
        assert self.arrived.acquire(timeout=PATIENCE_S), "nothing came from the sampler"


def raising(error: BaseException) -> Callable[[], Sequence[GpuSample]]:
    def read() -> Sequence[GpuSample]:
        raise error

    return read


class StepClock:
    """A clock that only the test advances."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


OLDER: Final[set[threading.Thread]] = set()
"""Threads that existed before the test: those of another test may not have ended yet."""


def sampler_threads() -> list[threading.Thread]:
    """Return the sampler threads started by this test."""
    found = [thread for thread in threading.enumerate() if thread.name.startswith(THREAD)]
    return [thread for thread in found if thread not in OLDER]
