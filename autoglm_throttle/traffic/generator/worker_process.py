"""One of several sending processes: reads its share from standard input and writes its result."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import sys
import threading
from array import array
from collections.abc import Callable
from typing import IO, Any

from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.generator.launch import disable_gc, make_sender, run_on_loop, run_periodically
from autoglm_throttle.traffic.generator.sender import Sender
from autoglm_throttle.traffic.request_result import RequestResult

REPORT_INTERVAL_S = 0.5
"""Interval of result reports: sent in bulk, so that reporting costs the sender no measurable time."""

SendMessage = Callable[..., None]


class WorkerCounts:
    """Results since the last report."""

    def __init__(self) -> None:
        self._indexes, self._results, self._responses_s = array("I"), array("B"), array("f")

    def record(self, index: int, result: RequestResult, response_s: float) -> None:
        """Record one result."""
        self._indexes.append(index)
        self._results.append(result)
        self._responses_s.append(response_s)

    def take(self) -> tuple[array[int], array[int], array[float]]:
        """Return and clear the results since the last call."""
        taken = (self._indexes, self._results, self._responses_s)
        self._indexes, self._results, self._responses_s = array("I"), array("B"), array("f")
        return taken


def main() -> None:
    """Send one share."""
    commands = sys.stdin.buffer
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # standard output carries pickled messages; other prints go to standard error

    def send_message(*parts: object) -> None:
        pickle.dump(parts, output)
        output.flush()

    with contextlib.suppress(EOFError, BrokenPipeError):  # the parent process ended
        load, target, options, observed = _read_message(commands)
        counts = WorkerCounts()
        try:
            sending = make_sender(load, target, options, counts.record if observed else None)
            run_on_loop(_run_sender(sending, counts, commands, send_message))
        except TrafficError as problem:
            send_message("failed", str(problem))


def _read_message(stream: IO[bytes]) -> Any:  # noqa: ANN401 - what was pickled
    return pickle.load(stream)  # noqa: S301 - from the process that started this one


async def _run_sender(
    sending: Sender, counts: WorkerCounts, commands: IO[bytes], send_message: SendMessage
) -> None:
    loop = asyncio.get_running_loop()
    await sending.prepare()
    send_message("ready")
    start_s = await loop.run_in_executor(None, _read_message, commands)
    threading.Thread(target=_follow_commands, args=(sending, commands, loop)).start()

    def report() -> None:
        send_message("seen", sending.launched, sending.in_flight, counts.take())

    with run_periodically(REPORT_INTERVAL_S, report), disable_gc():
        result = await sending.run(start_s)
    report()
    send_message("done", result)


def _follow_commands(sending: Sender, commands: IO[bytes], loop: asyncio.AbstractEventLoop) -> None:
    """Stop the sender on each command; stop it at once at the end of the input, which ends this process."""
    with contextlib.suppress(EOFError, RuntimeError):
        while True:
            _read_message(commands)
            loop.call_soon_threadsafe(sending.stop)
    with contextlib.suppress(RuntimeError):
        # No parent is left to wait for: the first call stops the sending, the second one the run.
        loop.call_soon_threadsafe(sending.stop)
        loop.call_soon_threadsafe(sending.stop)


if __name__ == "__main__":
    main()
