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

from autoglm_throttle.traffic.ending import Ending
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.generator.launch import every, on_a_loop, quiet_memory, sender
from autoglm_throttle.traffic.generator.sending import Sending

TELL_S = 0.5
"""Interval of result reports: sent in bulk, so that reporting costs the sender no measurable time."""

Tell = Callable[..., None]


class Seen:
    """Results since the last report."""

    def __init__(self) -> None:
        self._indexes, self._endings, self._responses_s = array("I"), array("B"), array("f")

    def note(self, index: int, ending: Ending, response_s: float) -> None:
        """Record one result."""
        self._indexes.append(index)
        self._endings.append(ending)
        self._responses_s.append(response_s)

    def take(self) -> tuple[array[int], array[int], array[float]]:
        """Return and clear the results since the last call."""
        taken = (self._indexes, self._endings, self._responses_s)
        self._indexes, self._endings, self._responses_s = array("I"), array("B"), array("f")
        return taken


def main() -> None:
    """Send one share."""
    heard = sys.stdin.buffer
    said = os.fdopen(os.dup(1), "wb")
    # Standard output carries pickled messages; other prints go to standard error.
    os.dup2(2, 1)

    def tell(*what: object) -> None:
        pickle.dump(what, said)
        said.flush()

    with contextlib.suppress(EOFError, BrokenPipeError):  # the parent process ended
        what, target, options, observed = _next(heard)
        seen = Seen()
        try:
            sending = sender(what, target, options, seen.note if observed else None)
            on_a_loop(_work(sending, seen, heard, tell))
        except TrafficError as problem:
            tell("failed", str(problem))


def _next(heard: IO[bytes]) -> Any:  # noqa: ANN401 - what was pickled
    return pickle.load(heard)  # noqa: S301 - from the process that started this one


async def _work(sending: Sending, seen: Seen, heard: IO[bytes], tell: Tell) -> None:
    loop = asyncio.get_running_loop()
    await sending.prepare()
    tell("ready")
    start_s = await loop.run_in_executor(None, _next, heard)
    threading.Thread(target=_obey, args=(sending, heard, loop)).start()

    def report() -> None:
        tell("seen", sending.launched, sending.in_flight, seen.take())

    with every(TELL_S, report), quiet_memory():
        result = await sending.run(start_s)
    report()
    tell("done", result)


def _obey(sending: Sending, heard: IO[bytes], loop: asyncio.AbstractEventLoop) -> None:
    """Stop the sender on each command; stop it at once at the end of the input, which ends this process."""
    with contextlib.suppress(EOFError, RuntimeError):
        while True:
            _next(heard)
            loop.call_soon_threadsafe(sending.stop)
    with contextlib.suppress(RuntimeError):
        # No parent is left to wait for: the first call stops the sending, the second one the run.
        loop.call_soon_threadsafe(sending.stop)
        loop.call_soon_threadsafe(sending.stop)


if __name__ == "__main__":
    main()
