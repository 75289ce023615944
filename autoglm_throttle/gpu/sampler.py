"""Runs one daemon thread per provider, so that no request and no event loop waits for a driver.

A driver call can take milliseconds or hang for ever, and a thread cannot interrupt it.
So each provider has one daemon thread, and never a second one beside a hung read (a hung driver usually
hangs for every caller). Readers of the samples check their age; they never wait for a thread.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import weakref
from typing import TYPE_CHECKING, Final, TypeVar

from autoglm_throttle.events.rate_limited_logger import RateLimitedLogger
from autoglm_throttle.gpu.provider_errors import NoSourceError
from autoglm_throttle.gpu.sanity import drop_implausible
from autoglm_throttle.gpu.schedule import NextRead, RestartPolicy, Schedule
from autoglm_throttle.types import ProviderMisconfigured, ThrottleError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autoglm_throttle.types import Clock, GpuProvider, GpuSample

_T = TypeVar("_T")

_log = logging.getLogger("autoglm_throttle")

THREAD: Final = "autoglm-throttle-gpu"
"""Prefix of the name of each sampler's thread; the provider's name follows after a hyphen."""

DEADLINE_SHARE: Final = 0.5
DEADLINE_MIN_S: Final = 0.2
"""A read longer than half the interval, and than 0.2 s, is an overrun: the next tick is in danger."""


class Sampler:
    """Reads a provider repeatedly on its own daemon thread and passes the rows on.

    Args:
        provider: source of the samples; while the thread lives only it calls the provider.
        on_samples: gets the rows of each successful read, on the sampler's thread, with
            implausible fields emptied. Its exceptions are caught, counted and logged.
        on_failure: gets the exception of each read that gave no rows, on the same thread.
        interval_s: seconds from start to start of two reads; raised to ``provider.min_interval_s``.
            ``set_interval`` changes it later.
        clock: monotonic seconds.

    Raises:
        ValueError: ``interval_s`` is not a finite number above 0.
    """

    def __init__(
        self,
        provider: GpuProvider,
        on_samples: Callable[[Sequence[GpuSample]], object],
        on_failure: Callable[[Exception], object] | None = None,
        *,
        interval_s: float,
        clock: Clock = time.monotonic,
    ) -> None:
        self.provider: GpuProvider = provider
        self.running: bool = False
        """True from ``start`` to ``stop``, also after a misconfiguration ended the thread. The request path
        starts stopped samplers, so False would make it try for ever.
        """
        self.failures: int = 0
        """Reads that raised, since construction."""
        self.overruns: int = 0
        """Reads that took longer than the deadline."""
        self.implausible: int = 0
        """Fields emptied because their value is implausible."""
        self.callback_errors: int = 0
        """Exceptions from ``on_samples`` and ``on_failure``."""
        self.crashes: int = 0
        """Exceptions that no read may raise, such as ``SystemExit``."""
        self.crashed: bool = False
        """True while the thread waits, 1 to 60 s, to start again after that."""
        self.last_read_s: float | None = None
        """When the newest read that gave samples ended, on ``clock``; None: none has."""
        self.reading_since_s: float | None = None
        """When the current read began, on ``clock``, else None: shows a hang while it lasts."""
        self.last_error: str | None = None
        """Text of the newest failure, kept after a recovery."""
        self.misconfigured: str | None = None
        """Why the thread ended for good, with the remedy; None unless it did."""
        self.no_source: str | None = None
        """Candidates of the automatic choice, while it finds nothing; None otherwise."""
        self._on_samples = on_samples
        self._on_failure = on_failure
        self._clock = clock
        self._schedule = Schedule(max(interval_s, provider.min_interval_s))
        self._next_read = NextRead(due_s=0.0)
        self._restart_policy = RestartPolicy()
        self._logger = RateLimitedLogger("GPU telemetry", clock)
        # Held for moments, never while the provider or a callback runs: requests may wait for it.
        self._lock = threading.RLock()  # re-entrant: a finalizer may call stop() in the middle of start()
        self._wake_event = threading.Event()
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._woken = False
        _SAMPLERS.add(self)

    def __repr__(self) -> str:
        return f"Sampler({self.name}, {self._state()}, failures={self.failures}, overruns={self.overruns})"

    @property
    def name(self) -> str:
        """Name of the provider."""
        return self.provider.name

    @property
    def failing(self) -> bool:
        """Whether the newest read gave nothing."""
        return self._schedule.consecutive_failures > 0

    @property
    def interval_s(self) -> float:
        """Seconds promised between the starts of two reads."""
        return self._schedule.interval_s

    def set_interval(self, interval_s: float) -> None:
        """Change the time between two reads, from any thread, that of the sampler included.

        A shorter one holds at once, a longer one after the read that is planned already.
        Pauses after failures stay as they are. The deadline of a read follows.

        Args:
            interval_s: seconds; raised to ``provider.min_interval_s``.

        Raises:
            ValueError: it is not a finite number above 0.
        """
        interval_s = max(interval_s, self.provider.min_interval_s)
        if interval_s == self._schedule.interval_s:
            return
        with self._lock:
            due_s = self._next_read.due_s
            self._next_read = self._schedule.set_interval(interval_s, self._next_read)
            sooner = self._next_read.due_s < due_s
        if sooner:
            self._wake_event.set()

    def start(self) -> None:
        """Start the thread unless there is one; returns at once and never calls the provider.

        A thread that ``stop`` left behind in a hung read continues when its call returns.
        """
        with self._lock:
            self._stopping = False
            self.running = True
            if self._thread is None:
                self.misconfigured = None
                self.running = self._start_thread()

    def restart_if_dead(self, now: float) -> bool:
        """Start the thread again if it is missing and should not be; else do nothing.

        For the request path; it costs one attribute access. After a crash the thread restarts by itself; this
        covers crashes that end it. It never starts a thread after ``stop``, after a misconfiguration, or
        beside a live thread, hung or not.

        Args:
            now: the time on ``clock``.

        Returns:
            Whether it started the thread.
        """
        if self._thread is not None or not self._is_dead() or now < self._restart_policy.due_s:
            return False
        with self._lock:
            if not self._is_dead():  # stopped, or started by another request
                return False
            if self._start_thread():
                return True
            self._restart_policy.postpone(now)
            return False

    def stop(self, join_s: float = 1.0) -> None:
        """Signal the thread to end, and wait for it.

        Args:
            join_s: seconds to wait at most; a thread in a hung read is left behind.
        """
        with self._lock:
            self.running = False
            self._stopping = True
            thread = self._thread
        self._wake_event.set()
        if thread is None:
            self._close()  # manual mode: there was never a thread to do it
        elif thread is not threading.current_thread():
            thread.join(join_s)

    def wake(self) -> None:
        """Read now instead of at the next tick, but not faster than ``provider.min_interval_s``."""
        self._woken = True
        self._wake_event.set()

    def tick(self) -> None:
        """Read once in the caller (manual mode), with the same checks and the same error handling.

        Raises:
            RuntimeError: the sampler's thread is alive; two concurrent readers are not allowed.
        """
        if self._thread is not None:
            raise RuntimeError("the sampler's thread reads; tick() is for a sampler that was not started")
        self._stopping = False
        self._read()

    def reset_after_fork(self) -> None:
        """Drop the parent's thread and handles in a forked child; no driver call.

        Lock and event are new: the parent's thread may have held them at the fork.
        """
        self.running = self.crashed = False
        self.misconfigured = None
        self._lock = threading.RLock()
        self._wake_event = threading.Event()
        self._thread = None
        self._stopping = self._woken = False
        self.reading_since_s = None
        # The parent's failures say nothing about the handles of the child.
        self._schedule.consecutive_failures = 0
        self._next_read = NextRead(due_s=0.0)
        self.provider.reset_after_fork()

    def _state(self) -> str:
        if self.misconfigured:
            return "misconfigured"
        if not self.running:
            return "stopped"
        return "crashed" if self.crashed or self._is_dead() else "running"

    def _is_dead(self) -> bool:
        """Return whether the thread is missing and should run."""
        return self._thread is None and self.running and self.misconfigured is None

    def _start_thread(self) -> bool:
        self._thread = threading.Thread(target=self._run, name=f"{THREAD}-{self.name}", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # no threads left: the request that started us must not fail
            self._thread = None
            self.failures += 1
            self.last_error = _text(error)
            self._logger.warn("start", f"{self.name}: {self.last_error}", level=logging.ERROR)
            return False
        return True

    def _run(self) -> None:
        try:
            while not self._run_until_stopped():
                self._pause()
        finally:
            with self._lock:
                # stop() and start() may have replaced this thread while it ended.
                if self._thread is threading.current_thread():
                    self._thread = None

    def _run_until_stopped(self) -> bool:
        """Read until the thread should end; False after a crash."""
        try:
            self._restart_policy.record_start(self._clock())
            self.crashed = False
            while not self._should_end():
                started = self._clock()
                if not self._read():
                    self._close()
                    break
                self._sleep(started)
        except BaseException as error:  # noqa: BLE001 - the thread outlives any error of a driver binding
            self._record_crash(error)
            return False
        return True

    def _record_crash(self, error: BaseException) -> None:
        """Count a crash, log it once, and close, so that the next read reopens the driver."""
        self.crashed = True
        self.crashes += 1
        self.last_error = _text(error)
        pause_s = self._restart_policy.postpone(self._clock())
        try:
            text = "GPU telemetry: %s: the sampler crashed with %s; it starts again in %g s"
            _log.error(text, self.name, self.last_error, pause_s, exc_info=error)
        finally:
            with contextlib.suppress(BaseException):
                self._close()

    def _pause(self) -> None:
        """Wait until the pause after a crash is over, or for ``stop``."""
        while not self._stopping and (remaining_s := self._restart_policy.due_s - self._clock()) > 0.0:
            self._wake_event.wait(remaining_s)
            self._wake_event.clear()

    def _should_end(self) -> bool:
        """Decide under the lock whether the thread ends, so that ``start`` never counts on a dying one."""
        with self._lock:
            if not self._stopping:
                return False
        self._close()
        with self._lock:
            if self._stopping:
                self._thread = None
            return self._stopping

    def _sleep(self, started: float) -> None:
        """Wait for the next tick, ``wake`` or ``stop``."""
        # wake() shortens the wait, but the driver still gets its minimum interval.
        floor = started + self.provider.min_interval_s
        while not self._stopping:
            due = min(floor, self._next_read.due_s) if self._woken else self._next_read.due_s
            remaining_s = due - self._clock()
            if remaining_s <= 0.0:
                return
            self._wake_event.wait(remaining_s)
            self._wake_event.clear()

    def _read(self) -> bool:
        """Read once and plan the next read; False if reading again cannot help."""
        started = self._clock()
        self._woken = False
        try:
            rows = self._rows(started)
        except ProviderMisconfigured as error:
            self._record_misconfigured(error)
            return False
        except NoSourceError as error:
            self._record_no_source(error)
        except Exception as error:  # noqa: BLE001 - a driver binding may raise anything; none may end the thread
            self._record_failure(error, started)
        else:
            self._record_success(rows, started)
        return True

    def _rows(self, started: float) -> list[GpuSample]:
        self.reading_since_s = started
        try:
            if self._next_read.reopen:
                self._close()
            return [self._check(row) for row in self.provider.read()]
        finally:
            self.reading_since_s = None

    def _check(self, row: GpuSample) -> GpuSample:
        row, wrong = drop_implausible(row)
        if wrong:
            self.implausible += len(wrong)
            self._logger.warn("implausible", f"{row.device}: implausible {', '.join(wrong)}")
        return row

    def _record_success(self, rows: Sequence[GpuSample], started: float) -> None:
        now = self._clock()
        self._count_overrun(started, now)
        with self._lock:  # or a set_interval() from another thread is lost
            self._next_read = self._schedule.succeeded(started, now)
        if rows:
            self.last_read_s = now
        if rows and not self._stopping:  # an empty reading has no data, a stopped sampler no listener
            self.no_source = self.misconfigured = None
            self._call(self._on_samples, rows)

    def _record_failure(self, error: Exception, started: float) -> None:
        now = self._clock()
        self._count_overrun(started, now)
        with self._lock:
            self._next_read = self._schedule.failed(started, now)
        self.failures += 1
        self.no_source = None
        self.last_error = _text(error)
        named = self.last_error.startswith(self.name)
        self._logger.warn("failed", self.last_error if named else f"{self.name}: {self.last_error}")
        self._report(error)

    def _record_no_source(self, error: NoSourceError) -> None:
        with self._lock:
            self._next_read = self._schedule.no_source(self._clock())
        self.no_source = str(error)
        self._report(error)

    def _record_misconfigured(self, error: ProviderMisconfigured) -> None:
        self.failures += 1
        self.no_source = None
        self.last_error = self.misconfigured = str(error)
        _log.critical("GPU telemetry ends: %s", error)
        self._report(error)

    def _count_overrun(self, started: float, now: float) -> None:
        if now - started > max(DEADLINE_SHARE * self.interval_s, DEADLINE_MIN_S):
            self.overruns += 1
            self._logger.warn("overrun", f"{self.name}: a read took {now - started:.1f} s")

    def _report(self, error: Exception) -> None:
        if self._on_failure is not None and not self._stopping:
            self._call(self._on_failure, error)

    def _call(self, callback: Callable[[_T], object], argument: _T) -> None:
        try:
            callback(argument)
        except Exception as error:  # noqa: BLE001 - a listener must not end the sampling
            self.callback_errors += 1
            self._logger.warn("callback", f"the receiver of GPU samples raised {_text(error)}", level=logging.ERROR)

    def _close(self) -> None:
        try:
            self.provider.close()
        except Exception as error:  # noqa: BLE001 - a handle that cannot be closed ends with the process
            self.last_error = _text(error)
            self._logger.warn("close", f"{self.name}: closing failed: {self.last_error}")


def _text(error: BaseException) -> str:
    """Return the text of our own errors; other errors get their type in front, which may be all they have."""
    text = str(error)
    return text if text and isinstance(error, ThrottleError) else f"{type(error).__name__}: {text}"


_SAMPLERS: weakref.WeakSet[Sampler] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for sampler in list(_SAMPLERS):
        with contextlib.suppress(Exception):  # one provider's fault must not leave the others unprepared
            sampler.reset_after_fork()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_after_fork_in_child)
