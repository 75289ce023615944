"""Pool of sending processes: started and stopped together, with their results merged."""

from __future__ import annotations

import contextlib
import pickle
import queue
import subprocess
import sys
import threading
import time
from typing import IO, Any, cast

from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.generator.options import ClientOptions, Observer, ProgressCallback
from autoglm_throttle.traffic.generator.sharding import lost_result, merge, split, split_options
from autoglm_throttle.traffic.generator.target import TargetUrl
from autoglm_throttle.traffic.generator.user_schedule import UserSchedule
from autoglm_throttle.traffic.request_result import RequestResult
from autoglm_throttle.traffic.request_source import RequestSource
from autoglm_throttle.traffic.result import Result

START_DELAY_S = 0.1
"""From the moment all are ready to the first intended start; every process has read it by then."""

READY_S = 60.0
"""Time for all processes to start, read their share and connect."""

PROGRESS_INTERVAL_S = 1.0
END_S = 5.0

STOP = "stop"
WORKER = "autoglm_throttle.traffic.generator.worker_process"

Job = tuple[RequestSource | UserSchedule, TargetUrl, ClientOptions, bool]
"""A share, its target, the options, and whether results are reported."""

WorkerMessage = tuple[Any, ...]
"""``ready``, ``failed`` with a text, ``seen`` with counts and results, ``done`` and a result, or ``gone``."""


class WorkerPool:
    """One run by several processes; use it once.

    Args:
        load: a load or a user schedule.
        target: destination of the requests.
        options: client options; connections and requests in flight are divided.
        processes: number of processes.
        observer: called with each result.

    Raises:
        TrafficError: fewer requests or users than processes.
    """

    def __init__(
        self,
        load: RequestSource | UserSchedule,
        target: TargetUrl,
        options: ClientOptions,
        processes: int,
        observer: Observer | None,
    ) -> None:
        self._load = load
        self._observer = observer
        shares = split(load, processes)
        self._jobs: list[Job] = [
            (share, target, mine, observer is not None)
            for share, mine in zip(shares, split_options(options, processes), strict=True)
        ]
        self._children: list[subprocess.Popen[bytes]] = []
        self._messages: queue.SimpleQueue[tuple[int, WorkerMessage]] = queue.SimpleQueue()
        self._counts = [(0, 0)] * processes
        self._results: dict[int, Result] = {}
        self._start_s = 0.0

    def stop(self) -> None:
        """Stop the sending; a second call ends the run.

        Raises:
            KeyboardInterrupt: the run has not begun.
        """
        if not self._start_s:
            raise KeyboardInterrupt
        for child in self._children:
            send_message(child, STOP)

    def run(self, on_progress: ProgressCallback | None = None) -> Result:
        """Send everything and wait for the responses.

        Raises:
            TrafficError: a process could not connect, ended before the start, or all ended early.
        """
        with contextlib.ExitStack() as exit_stack:
            for number, job in enumerate(self._jobs):
                exit_stack.callback(self._stop_worker, number, self._start_worker(number, job))
            self._await_ready()
            start_s = time.monotonic() + START_DELAY_S
            for child in self._children:
                send_message(child, start_s)
            self._start_s = start_s  # from now on all take a stop for what it is
            self._collect_results(on_progress)
        return merge(self._load, [self._results[number] for number in range(len(self._jobs))])

    def _start_worker(self, number: int, job: Job) -> subprocess.Popen[bytes]:
        # A session of its own: Ctrl-C in the terminal reaches only this process, which notifies the workers.
        child = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            [sys.executable, "-m", WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._children.append(child)
        threading.Thread(
            target=self._receive, args=(number, cast("IO[bytes]", child.stdout)), daemon=True
        ).start()
        send_message(child, job)
        return child

    def _receive(self, number: int, stream: IO[bytes]) -> None:
        with contextlib.suppress(EOFError, OSError, ValueError, pickle.UnpicklingError):
            while True:
                self._messages.put((number, pickle.load(stream)))  # noqa: S301 - our own child's pipe
        self._messages.put((number, ("gone",)))

    def _await_ready(self) -> None:
        ready, deadline_s = 0, time.monotonic() + READY_S
        while ready < len(self._jobs):
            try:
                _, message = self._messages.get(timeout=max(0.0, deadline_s - time.monotonic()))
            except queue.Empty:
                raise TrafficError(f"the sending processes were not ready within {READY_S:g} s") from None
            _raise_if_failed(message)
            ready += message[0] == "ready"

    def _collect_results(self, on_progress: ProgressCallback | None) -> None:
        next_s = self._start_s + PROGRESS_INTERVAL_S
        while len(self._results) < len(self._jobs):
            with contextlib.suppress(queue.Empty):
                self._handle_message(*self._messages.get(timeout=max(0.0, next_s - time.monotonic())))
            if time.monotonic() >= next_s:
                next_s += PROGRESS_INTERVAL_S
                if on_progress is not None:
                    launched, in_flight = (sum(count) for count in zip(*self._counts, strict=True))
                    on_progress(time.monotonic() - self._start_s, launched, in_flight)

    def _handle_message(self, number: int, message: WorkerMessage) -> None:
        if number in self._results:
            return
        if message[0] == "gone":
            self._mark_lost(number)
            return
        _raise_if_failed(message)
        if message[0] == "done":
            self._results[number] = message[1]
            return
        _, launched, in_flight, results = message
        self._counts[number] = (launched, in_flight)
        if self._observer is not None:
            for index, result, response_s in zip(*results, strict=True):
                self._observer(index * len(self._jobs) + number, RequestResult(result), response_s)

    def _mark_lost(self, number: int) -> None:
        """Record a process that ended early, perhaps killed for its memory; the others continue."""
        self._counts[number] = (self._counts[number][0], 0)
        self._results[number] = lost_result(self._jobs[number][0], time.monotonic() - self._start_s)
        if sum(result.run_cost.lost for result in self._results.values()) == len(self._jobs):
            _raise_if_failed(("gone",))

    def _stop_worker(self, number: int, child: subprocess.Popen[bytes]) -> None:
        if number not in self._results:
            child.kill()
        for pipe in (child.stdin, child.stdout):
            with contextlib.suppress(OSError):
                cast("IO[bytes]", pipe).close()
        try:
            child.wait(END_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def send_message(child: subprocess.Popen[bytes], message: object) -> None:
    """Send a message to a process; one that has ended is detected elsewhere."""
    pipe = cast("IO[bytes]", child.stdin)
    with contextlib.suppress(OSError):
        pickle.dump(message, pipe)
        pipe.flush()


def _raise_if_failed(message: WorkerMessage) -> None:
    if message[0] == "failed":
        raise TrafficError(message[1])
    if message[0] == "gone":
        raise TrafficError("a sending process ended early; its output is above")
