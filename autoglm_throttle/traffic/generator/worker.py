"""One of several sending processes: takes its share from standard input, and tells its result."""

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
"""How often endings are told: in bulk, so that the telling costs the sending nothing that shows."""

Tell = Callable[..., None]


class Seen:
    """The endings since they were last told."""

    def __init__(self) -> None:
        self._indexes, self._endings, self._responses_s = array("I"), array("B"), array("f")

    def note(self, index: int, ending: Ending, response_s: float) -> None:
        """Keep one."""
        self._indexes.append(index)
        self._endings.append(ending)
        self._responses_s.append(response_s)

    def take(self) -> tuple[array[int], array[int], array[float]]:
        """All since the last time."""
        taken = (self._indexes, self._endings, self._responses_s)
        self._indexes, self._endings, self._responses_s = array("I"), array("B"), array("f")
        return taken


def main() -> None:
    """Send one share."""
    heard = sys.stdin.buffer
    said = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever else is printed must not come between

    def tell(*what: object) -> None:
        pickle.dump(what, said)
        said.flush()

    with contextlib.suppress(EOFError, BrokenPipeError):  # whoever started this process is gone
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
    """Stop when told to; at once when nobody is left to tell. The end of the input ends this process, too."""
    with contextlib.suppress(EOFError, RuntimeError):
        while True:
            _next(heard)
            loop.call_soon_threadsafe(sending.stop)
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(sending.stop)
        loop.call_soon_threadsafe(sending.stop)


if __name__ == "__main__":
    main()
