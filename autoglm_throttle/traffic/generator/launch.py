"""Runs a load from the first connection to the last response, in one call."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

from autoglm_throttle.traffic.generator.closed_loop import ClosedLoopSender, UserSchedule
from autoglm_throttle.traffic.generator.connection_pool import ClientOptions
from autoglm_throttle.traffic.generator.sender import Observer, OpenLoopSender, ProgressCallback
from autoglm_throttle.traffic.generator.target import TargetUrl
from autoglm_throttle.traffic.request_source import RequestSource
from autoglm_throttle.traffic.results import Result

# The first signal stops the sending, the second one the run; both leave a result.
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)

PROGRESS_INTERVAL_S = 1.0

T = TypeVar("T")


def launch(
    load: RequestSource | UserSchedule,
    target: TargetUrl,
    options: ClientOptions | None = None,
    *,
    observer: Observer | None = None,
    on_progress: ProgressCallback | None = None,
) -> Result:
    """Send a load open loop, or run users closed loop, and wait for the end; on uvloop where installed.

    Ctrl-C (or SIGTERM) stops the sending and waits for requests in flight; a second one ends the run at once.
    Both leave a result marked as aborted. ``on_progress`` is called about once a second.

    Raises:
        TrafficError: nothing could be sent; the text gives the reason.
        KeyboardInterrupt: stopped before the first request was due.
    """
    sender = (
        ClosedLoopSender(load, target, options, observer)
        if isinstance(load, UserSchedule)
        else OpenLoopSender(load, target, options, observer)
    )
    try:
        return run_on_loop(_run(sender, on_progress))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def run_on_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run on uvloop where it is installed, else on asyncio's own loop."""
    make: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    with contextlib.suppress(ImportError):
        from uvloop import new_event_loop as make
    with asyncio.Runner(loop_factory=make) as runner:
        return runner.run(work)


async def _run(sender: OpenLoopSender, on_progress: ProgressCallback | None) -> Result:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()

    def stop() -> None:
        if sender.start_s or task is None:
            sender.stop()
        else:
            task.cancel()

    async def report_progress() -> None:
        while on_progress is not None:
            await asyncio.sleep(PROGRESS_INTERVAL_S)
            if sender.start_s:
                on_progress(sender.elapsed_s, sender.launched, sender.in_flight)

    reporting = loop.create_task(report_progress())
    gc.collect()
    # A collection that scans a plan of millions of requests would delay launches.
    gc.freeze()
    try:
        # A handler runs between any two steps of Python; the loop takes it up between two callbacks.
        with on_stop_signal(lambda: loop.call_soon_threadsafe(stop)):
            return await sender.run()
    finally:
        gc.unfreeze()
        reporting.cancel()


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
