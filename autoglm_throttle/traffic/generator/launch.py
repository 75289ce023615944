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
from autoglm_throttle.traffic.generator.closed_loop import ClosedLoopSender
from autoglm_throttle.traffic.generator.open_loop import OpenLoopSender
from autoglm_throttle.traffic.generator.options import ClientOptions, Observer, ProgressCallback
from autoglm_throttle.traffic.generator.sender import Sender
from autoglm_throttle.traffic.generator.target import TargetUrl
from autoglm_throttle.traffic.generator.user_schedule import UserSchedule
from autoglm_throttle.traffic.generator.worker_pool import PROGRESS_INTERVAL_S, WorkerPool
from autoglm_throttle.traffic.request_source import RequestSource
from autoglm_throttle.traffic.result import Result

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""The first signal stops the sending, the second one the run; both leave a result."""

T = TypeVar("T")


def launch(
    load: RequestSource | UserSchedule,
    target: TargetUrl,
    options: ClientOptions | None = None,
    *,
    processes: int = 1,
    observer: Observer | None = None,
    on_progress: ProgressCallback | None = None,
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
    chosen = options or ClientOptions()
    if processes > 1:
        worker_pool = WorkerPool(load, target, chosen, processes, observer)
        with on_stop_signal(worker_pool.stop):
            return worker_pool.run(on_progress)
    try:
        return run_on_loop(_run_in_process(make_sender(load, target, chosen, observer), on_progress))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def make_sender(
    load: RequestSource | UserSchedule,
    target: TargetUrl,
    options: ClientOptions,
    observer: Observer | None = None,
) -> Sender:
    """Create the sender for a load or a user schedule.

    Raises:
        TrafficError: httptools is missing, or too few files may be opened.
    """
    if isinstance(load, UserSchedule):
        return ClosedLoopSender(load, target, options, observer)
    return OpenLoopSender(load, target, options, observer)


def run_on_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run on uvloop where it is installed, else on asyncio's own loop."""
    make: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    with contextlib.suppress(ImportError):
        from uvloop import new_event_loop as make
    with asyncio.Runner(loop_factory=make) as runner:
        return runner.run(work)


@contextlib.contextmanager
def on_stop_signal(callback: Callable[[], object]) -> Iterator[None]:
    """Call ``callback`` on SIGINT and SIGTERM; outside the main thread it does nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda *_: callback()) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


async def _run_in_process(sending: Sender, on_progress: ProgressCallback | None) -> Result:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()

    def stop() -> None:
        if sending.started or task is None:
            sending.stop()
        else:
            task.cancel()

    def report_progress() -> None:
        if sending.started and on_progress is not None:
            on_progress(sending.elapsed_s, sending.launched, sending.in_flight)

    # A handler runs between any two steps of Python; the loop takes it up between two callbacks.
    handled = on_stop_signal(lambda: loop.call_soon_threadsafe(stop))
    with run_periodically(PROGRESS_INTERVAL_S, report_progress), handled, disable_gc():
        return await sending.run()


@contextlib.contextmanager
def run_periodically(period_s: float, callback: Callable[[], None]) -> Iterator[None]:
    """Call ``callback`` every ``period_s`` seconds on the running loop."""
    loop = asyncio.get_running_loop()

    def tick() -> None:
        callback()
        timers[0] = loop.call_later(period_s, tick)

    timers = [loop.call_later(period_s, tick)]
    try:
        yield
    finally:
        timers[0].cancel()


@contextlib.contextmanager
def disable_gc() -> Iterator[None]:
    """Exclude the objects that exist before the start, such as the plan, from garbage collection."""
    gc.collect()
    # A collection that scans a plan of millions of requests would delay launches.
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
