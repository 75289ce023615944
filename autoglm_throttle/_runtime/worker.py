"""A background thread with one life cycle for all that need one: start, stop, wake, crash and restart."""

from __future__ import annotations

import contextlib
import math
import queue
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Final

from autoglm_throttle._runtime import backoff_s
from autoglm_throttle._runtime.serial_lock import SerialLock

# Longest wait in seconds for the end of a thread; one in a call that hangs is left behind.
JOIN_S: Final = 1.0
HEALTHY_RUN_S: Final = 60.0  # a thread that ran as long as the longest pause begins with the shortest again
WAIT_MAX_S: Final = 3600.0  # waiting functions reject durations above some hundred years


class Worker:
    """A daemon thread that runs one step after another until it is stopped.

    There is never a second thread beside one that hangs in a step: it goes on after a new `start`, when its
    call returns. All methods may be called from any thread, and amid another.

    Args:
        name: of the thread.
        step: returns the seconds until it runs again, which `wake` shortens. None ends the thread; `start`
            starts it again. After an exception it is repeated in 1, 2, 4 ... 60 s.
        on_stop: runs on the thread after `stop`, before it ends.
        on_crash: receives an exception of ``step``, or the RuntimeError of a system without threads.
        clock: monotonic seconds, for the pauses.
    """

    __slots__ = (
        *("_clock", "_crashes", "_is_requested", "_lock", "_name", "_on_crash", "_on_stop", "_started_s"),
        *("_step", "_thread", "_wakes", "__weakref__", "has_crashed", "is_stopping", "restart_due_s"),
    )

    def __init__(
        self,
        name: str,
        step: Callable[[], float | None],
        *,
        on_stop: Callable[[], object] | None = None,
        on_crash: Callable[[BaseException], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._step = step
        self._on_stop = on_stop
        self._on_crash = on_crash
        self._lock = SerialLock()
        self._thread: threading.Thread | None = None
        # Its `put` may be called in the midst of another one; the `set` of an Event may not.
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._clock = clock
        # Whether the thread should not run: before `start` and after `stop`. A long step may poll it.
        self.is_stopping: bool = True
        self._is_requested = False  # Whether a start was requested since the present step began
        self._forget_crashes()

    def _forget_crashes(self) -> None:
        # Whether the last step raised, and the pause after it is not over.
        self.has_crashed: bool = False
        self.restart_due_s: float = -math.inf  # When the pause after the newest crash is over, on ``clock``
        self._crashes = 0
        self._started_s = -math.inf

    @property
    def is_alive(self) -> bool:
        """Whether there is a thread, also one that hangs after `stop`."""
        return self._thread is not None

    @property
    def is_current(self) -> bool:
        """Whether the caller runs on the thread."""
        return self._thread is threading.current_thread()

    def stop_with(self, owner: object) -> None:
        """Stop the thread when the owner, which ``step`` must not hold, is gone; not at interpreter exit."""
        weakref.finalize(owner, self.stop, 0.0).atexit = False

    def start(self) -> None:
        """Start the thread unless it lives; in the pause after a crash or failed start this does nothing."""
        self.is_stopping = False
        self._lock.run(self._launch)

    def restart_if_dead(self, now: float) -> None:
        """Start a missing thread that should run, unless it was tried less than the pause ago."""
        if self._thread is None and not self.is_stopping and now >= self.restart_due_s:
            self._lock.run(self._launch)

    def stop(self, join_s: float = JOIN_S) -> None:
        """Ask the thread to end, and wait for it, at most ``join_s`` seconds."""
        self.is_stopping = True
        self._forget_crashes()  # a later start is a new attempt
        thread = self._thread
        self._wakes.put(None)
        if thread is not None and join_s > 0.0 and thread is not threading.current_thread():
            thread.join(join_s)

    def wake(self) -> None:
        """Run the next step now."""
        self._wakes.put(None)

    def _launch(self) -> None:
        self._is_requested = True
        if self._thread is not None or self.is_stopping or self._clock() < self.restart_due_s:
            return
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread = thread
        try:
            thread.start()
        except RuntimeError as error:  # no threads left: the request that starts the thread must not fail
            self._thread = None
            self._postpone()
            self._lock.pending.append(partial(self._report, error))

    def _run(self) -> None:
        self._started_s = self._clock()
        try:
            while not (self.is_stopping and self._has_ended()):
                self._is_requested = False
                pause_s = self._run_step()
                if pause_s is not None:
                    self._wait(pause_s)
                    continue
                with self._lock:  # `start` may have been called during the last step
                    self.is_stopping = self.is_stopping or not self._is_requested
        finally:
            with self._lock:
                if self._thread is threading.current_thread():  # `start` may have replaced it already
                    self._thread = None

    def _run_step(self) -> float | None:
        left_s = self.restart_due_s - self._clock()
        if left_s > 0.0:
            return left_s
        self.has_crashed = False
        try:
            return self._step()
        except BaseException as error:  # noqa: BLE001 - the thread outlives any error of a driver binding
            pause_s = self._postpone()
            self._report(error)
            return pause_s

    def _postpone(self) -> float:
        """Record a crash, or a failed start, and return the seconds to wait."""
        now = self._clock()
        if now - self._started_s >= HEALTHY_RUN_S:
            self._crashes = 0
        self._crashes += 1
        self.has_crashed = True
        pause_s = backoff_s(self._crashes)
        self._started_s = self.restart_due_s = now + pause_s
        return pause_s

    def _has_ended(self) -> bool:
        """Decide under the lock whether the thread ends, so that `start` never relies on a dying one."""
        if self._on_stop is not None:
            with contextlib.suppress(Exception):  # what cannot be closed or sent now is lost
                self._on_stop()
        with self._lock:
            ended = self.is_stopping  # read once: `start` may clear it meanwhile, and then launches a thread
            if ended:
                self._thread = None
            return ended

    def _report(self, error: BaseException) -> None:
        if self._on_crash is not None:
            with contextlib.suppress(BaseException):  # even a failing log handler must not end the thread
                self._on_crash(error)

    def _wait(self, seconds: float) -> None:
        if seconds > 0.0:
            with contextlib.suppress(queue.Empty):
                self._wakes.get(timeout=min(seconds, WAIT_MAX_S))
        with contextlib.suppress(queue.Empty):  # one step answers all wake-ups so far
            while True:
                self._wakes.get_nowait()
