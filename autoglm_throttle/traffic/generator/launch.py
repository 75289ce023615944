"""Runs a load from the first connection to the last response, in one call."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.generator.crew import Crew
from autoglm_throttle.traffic.generator.fleet import BEAT_S, Fleet
from autoglm_throttle.traffic.generator.open_loop import Generator
from autoglm_throttle.traffic.generator.options import Beat, Observer, Options
from autoglm_throttle.traffic.generator.roster import Roster
from autoglm_throttle.traffic.generator.sending import Sending
from autoglm_throttle.traffic.generator.target import Target
from autoglm_throttle.traffic.load import Load
from autoglm_throttle.traffic.result import Result

STOPPING = (signal.SIGINT, signal.SIGTERM)
"""The first signal stops the sending, the second one the run; both leave a result."""

T = TypeVar("T")


def launch(
    what: Load | Roster,
    target: Target,
    options: Options | None = None,
    *,
    processes: int = 1,
    observer: Observer | None = None,
    beat: Beat | None = None,
) -> Result:
    """Send a load or run users, and wait for the end. Runs on uvloop where it is installed.

    Ctrl-C (or SIGTERM) stops the sending and waits for requests in flight; a second one ends the run at once.
    Both leave a result marked as aborted.

    Args:
        load: a load is sent open loop, a user schedule closed loop.
        target: destination of the requests.
        options: client options.
        processes: 1 sends from this process; more share requests or users, and the connections.
        observer: called with each result; with several processes up to a second later, and without order.
        on_progress: called about once a second.

    Raises:
        TrafficError: nothing could be sent; the text gives the reason.
        KeyboardInterrupt: stopped before the first request was due.
    """
    if processes < 1:
        raise TrafficError(f"processes must be at least 1, not {processes}")
    chosen = options or Options()
    if processes > 1:
        fleet = Fleet(what, target, chosen, processes, observer)
        with stopping(fleet.stop):
            return fleet.run(beat)
    try:
        return on_a_loop(_alone(sender(what, target, chosen, observer), beat))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def sender(
    what: Load | Roster, target: Target, options: Options, observer: Observer | None = None
) -> Sending:
    """Create the sender for a load or a user schedule.

    Raises:
        TrafficError: httptools is missing, or too few files may be opened.
    """
    if isinstance(what, Roster):
        return Crew(what, target, options, observer)
    return Generator(what, target, options, observer)


def on_a_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run on uvloop where it is installed, else on asyncio's own loop."""
    make: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    with contextlib.suppress(ImportError):
        from uvloop import new_event_loop as make
    with asyncio.Runner(loop_factory=make) as runner:
        return runner.run(work)


@contextlib.contextmanager
def stopping(act: Callable[[], object]) -> Iterator[None]:
    """Call ``callback`` on SIGINT and SIGTERM; outside the main thread it does nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda *_: act()) for number in STOPPING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


async def _alone(sending: Sending, beat: Beat | None) -> Result:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()

    def stop() -> None:
        if sending.started or task is None:
            sending.stop()
        else:
            task.cancel()

    def pulse() -> None:
        if sending.started and beat is not None:
            beat(sending.elapsed_s, sending.launched, sending.in_flight)

    # A handler runs between any two steps of Python; the loop takes it up between two callbacks.
    handled = stopping(lambda: loop.call_soon_threadsafe(stop))
    with every(BEAT_S, pulse), handled, quiet_memory():
        return await sending.run()


@contextlib.contextmanager
def every(period_s: float, act: Callable[[], None]) -> Iterator[None]:
    """Call ``callback`` every ``period_s`` seconds on the running loop."""
    loop = asyncio.get_running_loop()

    def turn() -> None:
        act()
        timers[0] = loop.call_later(period_s, turn)

    timers = [loop.call_later(period_s, turn)]
    try:
        yield
    finally:
        timers[0].cancel()


@contextlib.contextmanager
def quiet_memory() -> Iterator[None]:
    """Exclude the objects that exist before the start, such as the plan, from garbage collection."""
    gc.collect()
    # A collection that scans a plan of millions of requests would delay launches.
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
