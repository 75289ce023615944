"""Runs a load from the first connection to the last answer: the one call that most need."""

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
"""The first one ends the sending, the second one the run; both leave a result."""

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
    """Send a load, or let users work, and wait for the end. Runs on uvloop where it is installed.

    Ctrl-C (or SIGTERM) ends the sending and waits for what is under way; a second one ends the run at once.
    Both give a result that says so.

    Args:
        what: a load goes out open loop, a roster of users closed loop.
        target: where to.
        options: how.
        processes: 1 sends from this process; more share requests or users, and the connections.
        observer: told of each ending; with several processes up to a second later, and without order.
        beat: called about once a second.

    Raises:
        TrafficError: nothing could be sent; the text says why.
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
    """Whoever sends such a thing.

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
    """Call this when the process is asked to stop; from another thread than the main one it does nothing."""
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
    """Call this again and again, on the running loop."""
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
    """Keep what is there before the start, such as the plan, out of every search for garbage."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
