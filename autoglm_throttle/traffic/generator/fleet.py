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

from autoglm_throttle.traffic.ending import Ending
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.generator.options import Beat, Observer, Options
from autoglm_throttle.traffic.generator.roster import Roster
from autoglm_throttle.traffic.generator.share import lost, merge, split, split_options
from autoglm_throttle.traffic.generator.target import Target
from autoglm_throttle.traffic.load import Load
from autoglm_throttle.traffic.result import Result

HEAD_START_S = 0.1
"""From the moment all are ready to the first intended start; every process has read it by then."""

READY_S = 60.0
"""Time for all processes to start, read their share and connect."""

BEAT_S = 1.0
END_S = 5.0

STOP = "stop"
WORKER = "autoglm_throttle.traffic.generator.worker"

Job = tuple[Load | Roster, Target, Options, bool]
"""A share, its target, the options, and whether results are reported."""

Said = tuple[Any, ...]
"""``ready``, ``failed`` with a text, ``seen`` with counts and results, ``done`` and a result, or ``gone``."""


class Fleet:
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
        self, what: Load | Roster, target: Target, options: Options, processes: int, observer: Observer | None
    ) -> None:
        self._what = what
        self._observer = observer
        shares = split(what, processes)
        self._jobs: list[Job] = [
            (share, target, mine, observer is not None)
            for share, mine in zip(shares, split_options(options, processes), strict=True)
        ]
        self._children: list[subprocess.Popen[bytes]] = []
        self._heard: queue.SimpleQueue[tuple[int, Said]] = queue.SimpleQueue()
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
            _say(child, STOP)

    def run(self, beat: Beat | None = None) -> Result:
        """Send everything and wait for the responses.

        Raises:
            TrafficError: a process could not connect, ended before the start, or all ended early.
        """
        with contextlib.ExitStack() as ending:
            for number, job in enumerate(self._jobs):
                ending.callback(self._end, number, self._begin(number, job))
            self._all_ready()
            start_s = time.monotonic() + HEAD_START_S
            for child in self._children:
                _say(child, start_s)
            self._start_s = start_s  # from now on all take a stop for what it is
            self._listen(beat)
        return merge(self._what, [self._results[number] for number in range(len(self._jobs))])

    def _begin(self, number: int, job: Job) -> subprocess.Popen[bytes]:
        # A session of its own: Ctrl-C in the terminal reaches only this process, which notifies the workers.
        child = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            [sys.executable, "-m", WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._children.append(child)
        threading.Thread(
            target=self._hear, args=(number, cast("IO[bytes]", child.stdout)), daemon=True
        ).start()
        _say(child, job)
        return child

    def _hear(self, number: int, said: IO[bytes]) -> None:
        with contextlib.suppress(EOFError, OSError, ValueError, pickle.UnpicklingError):
            while True:
                self._heard.put((number, pickle.load(said)))  # noqa: S301 - our own child's pipe
        self._heard.put((number, ("gone",)))

    def _all_ready(self) -> None:
        ready, give_up_s = 0, time.monotonic() + READY_S
        while ready < len(self._jobs):
            try:
                _, said = self._heard.get(timeout=max(0.0, give_up_s - time.monotonic()))
            except queue.Empty:
                raise TrafficError(f"the sending processes were not ready within {READY_S:g} s") from None
            _must_live(said)
            ready += said[0] == "ready"

    def _listen(self, beat: Beat | None) -> None:
        next_s = self._start_s + BEAT_S
        while len(self._results) < len(self._jobs):
            with contextlib.suppress(queue.Empty):
                self._take(*self._heard.get(timeout=max(0.0, next_s - time.monotonic())))
            if time.monotonic() >= next_s:
                next_s += BEAT_S
                if beat is not None:
                    launched, in_flight = (sum(count) for count in zip(*self._counts, strict=True))
                    beat(time.monotonic() - self._start_s, launched, in_flight)

    def _take(self, number: int, said: Said) -> None:
        if number in self._results:
            return
        if said[0] == "gone":
            self._lose(number)
            return
        _must_live(said)
        if said[0] == "done":
            self._results[number] = said[1]
            return
        _, launched, in_flight, endings = said
        self._counts[number] = (launched, in_flight)
        if self._observer is not None:
            for index, ending, response_s in zip(*endings, strict=True):
                self._observer(index * len(self._jobs) + number, Ending(ending), response_s)

    def _lose(self, number: int) -> None:
        """Record a process that ended early, perhaps killed for its memory; the others continue."""
        self._counts[number] = (self._counts[number][0], 0)
        self._results[number] = lost(self._jobs[number][0], time.monotonic() - self._start_s)
        if sum(result.effort.lost for result in self._results.values()) == len(self._jobs):
            _must_live(("gone",))

    def _end(self, number: int, child: subprocess.Popen[bytes]) -> None:
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


def _say(child: subprocess.Popen[bytes], what: object) -> None:
    """Send a message to a process; one that has ended is detected elsewhere."""
    pipe = cast("IO[bytes]", child.stdin)
    with contextlib.suppress(OSError):
        pickle.dump(what, pipe)
        pipe.flush()


def _must_live(said: Said) -> None:
    if said[0] == "failed":
        raise TrafficError(said[1])
    if said[0] == "gone":
        raise TrafficError("a sending process ended early; what it said is above")
