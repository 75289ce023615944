"""Reads each provider on a thread of its own, so that no request and no event loop waits for a driver.

A driver call can hang for ever, and a thread cannot interrupt it. So each provider has one daemon thread, and
never a second one beside a hung read: a hung driver usually hangs for every caller.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

from autoglm_throttle._runtime.worker import JOIN_S, Worker
from autoglm_throttle.events import RateLimitedLogger
from autoglm_throttle.gpu.interval import Schedule
from autoglm_throttle.gpu.sanity import drop_implausible
from autoglm_throttle.types import Clock, GpuProvider, GpuSample, ProviderMisconfigured, ThrottleError
from autoglm_throttle.types.errors import NoSourceError

_T = TypeVar("_T")
_log = logging.getLogger("autoglm_throttle")
# Prefix of the name of each sampler's thread; the provider's name follows after a hyphen.
THREAD: Final = "autoglm-throttle-gpu"
DEADLINE_SHARE: Final = 0.5
# A read longer than half the interval, and than 0.2 s, is an overrun: the next tick is in danger.
DEADLINE_MIN_S: Final = 0.2


@dataclass(slots=True)
class SamplerStatus:
    """Counts of a sampler since its construction, and its newest times and errors."""

    failures: int = 0  # Reads that raised, and threads that the system refused
    overruns: int = 0
    implausible: int = 0
    callback_errors: int = 0
    crashes: int = 0  # Exceptions that no read may raise, such as ``SystemExit``
    # When the newest read that gave samples ended, on the sampler's clock; None: none has.
    last_read_s: float | None = None
    # When the current read began, else None: shows a hang while it lasts.
    reading_since_s: float | None = None
    last_error: str | None = None
    misconfigured: str | None = None  # Why the thread ended for good, with the remedy; None unless it did
    no_source: str | None = None  # Candidates of the automatic choice, while it finds nothing; None otherwise


SourceState = Literal["starting", "reading", "failing", "hanging", "crashed", "misconfigured", "no_source"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceView:
    """One source of GPU samples at one moment. Its counts only grow, except across a fork."""

    name: str
    state: SourceState
    last_error: str
    """The newest failure, kept after a recovery, or the attempts of a failed discovery; else empty."""
    failures: int
    """Reads without samples."""
    overruns: int
    implausible: int
    """Fields emptied because their value is impossible."""
    crashes: int
    interval_s: float
    """Promised seconds between two reads."""
    age_s: float | None
    """Seconds since the newest read with samples; None: there was none."""


class Sampler:
    """Reads a provider repeatedly on its own daemon thread and passes the rows on.

    ``on_samples`` gets the rows of each successful read, with implausible fields emptied, ``on_failure`` the
    exception of each other one; their own exceptions are counted and logged.
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
        # True from ``start`` to ``stop``, also after the thread ended for good, or it were started again.
        self.is_running: bool = False
        self.status: SamplerStatus = SamplerStatus()
        self.schedule: Schedule = Schedule(max(interval_s, provider.min_interval_s))
        self._on_samples = on_samples
        self._on_failure = on_failure
        self._clock = clock
        self._logger = RateLimitedLogger("GPU telemetry", clock)
        name = f"{THREAD}-{provider.name}"
        self._worker = Worker(name, self._step, on_stop=self._end, on_crash=self._record_crash, clock=clock)

    @property
    def name(self) -> str:
        """Name of the provider."""
        return self.provider.name

    @property
    def has_crashed(self) -> bool:
        """Whether the thread crashed, or could not be started, and the pause after that is not over."""
        return self._worker.has_crashed

    @property
    def interval_s(self) -> float:
        """Seconds promised between the starts of two reads."""
        return self.schedule.interval_s

    def view(self, now: float) -> SourceView:
        """Return an immutable picture; of several states the first that holds, the most severe first."""
        status, since_s, read_s = self.status, self.status.reading_since_s, self.status.last_read_s
        states: tuple[tuple[bool, SourceState], ...] = (
            (status.misconfigured is not None, "misconfigured"),
            (self.has_crashed, "crashed"),
            (since_s is not None and now - since_s > self._deadline_s, "hanging"),
            (status.no_source is not None, "no_source"),
            (self.schedule.consecutive_failures > 0, "failing"),
            (read_s is None, "starting"),
            (True, "reading"),
        )
        return SourceView(
            name=self.name,
            state=next(state for holds, state in states if holds),
            last_error=status.no_source or status.last_error or "",
            failures=status.failures,
            overruns=status.overruns,
            implausible=status.implausible,
            crashes=status.crashes,
            interval_s=self.interval_s,
            age_s=None if read_s is None else max(0.0, now - read_s),
        )

    def set_interval(self, interval_s: float) -> None:
        """Change the time between two reads, from any thread; a longer one holds after the next read."""
        interval_s, before_s = max(interval_s, self.provider.min_interval_s), self.schedule.interval_s
        if interval_s != before_s:
            self.schedule.set_interval(interval_s)
            if interval_s < before_s:
                self._worker.wake()

    def start(self) -> None:
        """Start the thread unless there is one, be it in a hung read; returns at once, calls no provider."""
        if not self._worker.is_alive:
            self.status.misconfigured = None
        self.is_running = True
        self._worker.start()
        if not self._worker.is_alive and self.status.misconfigured is None:
            self.is_running = False  # no thread to be had: the next request tries again

    def restart_if_dead(self, now: float) -> None:
        """Start the thread again if the system had none to give, at most once in 1 to 60 s; cheap."""
        if not self._worker.is_alive:
            self._worker.restart_if_dead(now)
            self.is_running = self.is_running or self._worker.is_alive

    def stop(self, join_s: float = JOIN_S) -> None:
        """Signal the thread to end, and wait ``join_s`` for it; one in a hung read is left behind."""
        self.is_running = False
        had_thread = self._worker.is_alive
        self._worker.stop(join_s)
        if not had_thread:
            self._end()  # manual mode: there was never a thread to do it

    def stop_with(self, owner: object) -> None:
        """Stop the thread when the owner is gone, which no callback may hold."""
        self._worker.stop_with(owner)

    def wake(self) -> None:
        """Read now instead of at the next tick, but not faster than ``provider.min_interval_s``."""
        self.schedule.wake()
        self._worker.wake()

    def tick(self) -> None:
        """Read once in the caller (manual mode); raise ``RuntimeError`` if the thread is alive."""
        if self._worker.is_alive:
            raise RuntimeError("the sampler's thread reads; tick() is for a sampler that was not started")
        self._read()

    @property
    def _deadline_s(self) -> float:
        return max(DEADLINE_SHARE * self.interval_s, DEADLINE_MIN_S)

    def _step(self) -> float | None:
        """Read if it is time to, on the thread; return the seconds until the next read."""
        wait_s, shortest_s = self.schedule.wait_s, self.provider.min_interval_s
        until_s = wait_s(self._clock(), shortest_s)
        if until_s > 0.0:  # woken for a new interval
            return until_s
        return wait_s(self._clock(), shortest_s) if self._read() else None

    def _record_crash(self, error: BaseException) -> None:
        """Count a crash, log it once, and close, so that the next read reopens the driver."""
        self.status.last_error = _text(error)
        if not self._worker.is_current:
            self.status.failures += 1
            self._logger.warn("start", f"{self.name}: {self.status.last_error}", level=logging.ERROR)
            return
        self.status.crashes += 1
        pause_s = self._worker.restart_due_s - self._clock()
        try:
            text = "GPU telemetry: %s: the sampler crashed with %s; it starts again in %g s"
            _log.error(text, self.name, self.status.last_error, pause_s, exc_info=error)
        finally:
            with contextlib.suppress(BaseException):
                self._end()

    def _end(self) -> None:
        """Close the provider; a thread that starts or continues afterwards reads at once."""
        self.schedule.read_at_once()
        self._close()

    def _read(self) -> bool:
        """Read once and plan the next read; False if reading again cannot help."""
        started, status = self._clock(), self.status
        self.schedule.begin(started)
        try:
            rows = self._rows(started)
        except ProviderMisconfigured as error:
            status.failures += 1
            status.no_source, status.last_error, status.misconfigured = None, str(error), str(error)
            _log.critical("GPU telemetry ends: %s", error)
            self._report(error)
            return False
        except NoSourceError as error:
            self.schedule.no_source(self._clock())
            status.no_source = str(error)
            self._report(error)
        except Exception as error:  # noqa: BLE001 - a driver binding may raise anything; none may end the thread
            self.schedule.failed(self._end_of_read(started))
            status.failures += 1
            status.no_source, status.last_error = None, _text(error)
            own_name = status.last_error.startswith(self.name)
            self._logger.warn("failed", ("" if own_name else f"{self.name}: ") + status.last_error)
            self._report(error)
        else:
            self._pass_on(rows, self._end_of_read(started))
        return True

    def _rows(self, started: float) -> list[GpuSample]:
        self.status.reading_since_s = started
        try:
            if self.schedule.reopens:
                self._close()
            return [self._check(row) for row in self.provider.read()]
        finally:
            self.status.reading_since_s = None

    def _check(self, row: GpuSample) -> GpuSample:
        row, wrong = drop_implausible(row)
        if wrong:
            self.status.implausible += len(wrong)
            self._logger.warn("implausible", f"{row.device}: implausible {', '.join(wrong)}")
        return row

    def _end_of_read(self, started: float) -> float:
        """Return the time now, and count a read that took too long."""
        now = self._clock()
        if now - started > self._deadline_s:
            self.status.overruns += 1
            self._logger.warn("overrun", f"{self.name}: a read took {now - started:.1f} s")
        return now

    def _pass_on(self, rows: Sequence[GpuSample], now: float) -> None:
        self.schedule.succeeded(now)
        if rows:  # an empty reading has no data
            self.status.last_read_s = now
            if not self._is_abandoned():
                self.status.no_source = self.status.misconfigured = None
                self._call(self._on_samples, rows)

    def _report(self, error: Exception) -> None:
        if self._on_failure is not None and not self._is_abandoned():
            self._call(self._on_failure, error)

    def _is_abandoned(self) -> bool:
        """Return whether the caller is the thread, and `stop` was called during its read."""
        return self._worker.is_current and self._worker.is_stopping

    def _call(self, callback: Callable[[_T], object], argument: _T) -> None:
        try:
            callback(argument)
        except Exception as error:  # noqa: BLE001 - a listener must not end the sampling
            self.status.callback_errors += 1
            text = f"the receiver of GPU samples raised {_text(error)}"
            self._logger.warn("callback", text, level=logging.ERROR)

    def _close(self) -> None:
        try:
            self.provider.close()
        except Exception as error:  # noqa: BLE001 - a handle that cannot be closed ends with the process
            self.status.last_error = _text(error)
            self._logger.warn("close", f"{self.name}: closing failed: {self.status.last_error}")


def _text(error: BaseException) -> str:
    """Return the text of our own errors; other errors get their type in front, which may be all they have."""
    text = str(error)
    return text if text and isinstance(error, ThrottleError) else f"{type(error).__name__}: {text}"
