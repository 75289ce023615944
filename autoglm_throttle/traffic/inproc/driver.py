"""Drives an ASGI application with a load in virtual time."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from random import Random
from typing import Any, TypedDict, Unpack, cast

from starlette.types import ASGIApp, Message

from autoglm_throttle.settings.groups.callers import PRIORITY_HEADER
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.inproc.exchange import AsgiExchange, scopes
from autoglm_throttle.traffic.inproc.loop import MovableClock, VirtualLoop, VirtualTimeError
from autoglm_throttle.traffic.request_log import RequestLog, RequestResult, parse_reason, parse_retry_after
from autoglm_throttle.traffic.request_source import RequestSource
from autoglm_throttle.traffic.results import Result, RunCost

logger: logging.Logger = logging.getLogger(__name__)

# Disconnect time of an impatient client, log-uniform: from before any response to after most of them.
PATIENCE_S = (0.001, 10.0)

# Time for tasks of disconnected clients to finish after the last result; then they are cancelled.
LEFTOVER_S = 30.0

LIFESPAN_S = 600.0  # Limit for startup and for shutdown: ten times the load time of the slowest model
WATCH_S = 1.0  # Between two samples

# A timer may fire this much early: asyncio rounds by the resolution of the machine's clock.
TIMER_SLACK_S = 1e-6

WatchCallback = Callable[[float], Mapping[str, float] | None]
"""Called once a virtual second with the seconds since the start, from 0 on; its values are stored in
``Result.watched``. A throttle with ``sampling="manual"`` can read its GPUs here.
"""


class ClientBehavior(TypedDict, total=False):
    """Behavior of clients."""

    # Share of requests with an impatient client. It disconnects after a random time of `PATIENCE_S` unless
    # it has its response by then; such a request ends as ``connection``. Default 0.
    abort: float
    seed: int  # Seed of the disconnects. Default 0
    timeout_s: float  # From the intended start to the last byte of the response. Default 30 s, as over HTTP
    priority_header: str  # Field with the priority; empty: none. Default ``x-priority``
    identity_header: str  # Field with the client's identity text; empty: none. Default ``x-client``


def run_inprocess(
    app: ASGIApp,
    load: RequestSource,
    *,
    clock: MovableClock | None = None,
    watch: WatchCallback | None = None,
    **behavior: Unpack[ClientBehavior],
) -> Result:
    """Run a load against an application: same results, request log and report as over HTTP, in virtual time.

    Pass the clock to everything that reads the time, such as ``Throttle(clock=...)`` and
    ``SimulatedGpu(clock=...)``. The application is started and shut down as by a server.

    Raises:
        VirtualTimeError: the application uses threads (sync endpoints do), sockets or processes.
        TrafficError: it does not start, or a field of ``behavior`` is out of range.
        RuntimeError: it waits for something that can never happen, its startup or shutdown takes more than
            `LIFESPAN_S`, one of its tasks cannot be cancelled, or an event loop is already running.
    """
    _check_no_running_loop()
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(clock)) as runner:
        loop = cast("VirtualLoop", runner.get_loop())
        try:
            return runner.run(_Run(app, load, behavior, loop).run(watch))
        finally:
            loop.limit(LEFTOVER_S, "the cancellation of what the application left running")


def _check_no_running_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(
        "run_inprocess() starts its own event loop: call it from sync code, not from a coroutine"
    )


class _Lifespan:
    """The startup and shutdown of the application, as by a server, and its state."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._to_app: asyncio.Queue[Message] = asyncio.Queue()
        self._from_app: asyncio.Queue[Message | None] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self.state: dict[str, Any] = {}

    async def start(self) -> None:
        """Start the application; raise TrafficError if it reports that it cannot start."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="lifespan")
        if not await self._announce("startup", "start"):
            self._task = None

    async def stop(self) -> None:
        """Shut the application down; raise TrafficError if it reports that it cannot."""
        if self._task is not None:
            await self._announce("shutdown", "shut down")
            await self._task

    async def _announce(self, event: str, action: str) -> bool:
        """Send an event; return whether the application has answered it."""
        self._to_app.put_nowait({"type": f"lifespan.{event}"})
        message = await self._from_app.get()
        if message is not None and message["type"] == f"lifespan.{event}.failed":
            raise TrafficError(f"the application did not {action}: {message.get('message', '')}")
        return message is not None

    async def _run(self) -> None:
        scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": self.state}
        with suppress(Exception):  # the specification's way to say that there is no lifespan
            await self._app(scope, self._to_app.get, self._from_app.put)
        self._from_app.put_nowait(None)


class _Run:
    """One run of one load."""

    def __init__(
        self, app: ASGIApp, load: RequestSource, behavior: ClientBehavior, loop: VirtualLoop
    ) -> None:
        self._abort_share, self._timeout_s = behavior.get("abort", 0.0), behavior.get("timeout_s", 30.0)
        if not 0.0 <= self._abort_share <= 1.0:
            raise TrafficError(f"abort must be from 0 to 1, not {self._abort_share!r}")
        if not 0.0 < self._timeout_s < math.inf:
            raise TrafficError(f"timeout_s must be a finite number above 0, not {self._timeout_s!r}")
        self._app = app
        self._lifespan = _Lifespan(app)
        priority_header = behavior.get("priority_header", PRIORITY_HEADER)
        identity_header = behavior.get("identity_header", "x-client")
        self._scope = scopes(load, priority_header, identity_header, self._lifespan.state)
        self._load = load
        self._loop = loop
        self._request_log = RequestLog(len(load.plan))
        self._aborts = Random(f"autoglm-throttle aborts {behavior.get('seed', 0)}")
        self._over = asyncio.Event()  # All requests have ended, or the run has failed
        self._start_s = 0.0
        self._next = 0  # The first request that was not sent
        self._oldest = 0  # The first request that may be open
        self._left = len(load.plan)  # Requests that have not ended
        self._is_timing = False  # Whether the timer of the timeouts is set
        self._is_drained = False  # Whether no request is left, so that no further sample is taken
        self._has_raised = False  # Whether an exception of the application was logged
        self._open: dict[int, AsgiExchange] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._watched: list[dict[str, float]] = []
        self._watch_error: Exception | None = None  # The first error of the `WatchCallback`

    async def run(self, watch: WatchCallback | None) -> Result:
        """Start the application, send everything, shut down."""
        self._loop.limit(LIFESPAN_S, "the startup of the application")
        await self._lifespan.start()
        self._loop.limit(math.inf, "")
        self._start_s = self._loop.time()
        if watch is not None:
            self._sample(watch, 0)
        if self._left:
            self._loop.call_at(self._intended_s(0), self._launch)
            await self._over.wait()
        elapsed_s = self._loop.time() - self._start_s
        await self._drain_tasks()
        self._is_drained = True
        if self._watch_error is not None:
            raise self._watch_error
        self._loop.limit(LIFESPAN_S, "the shutdown of the application")
        await self._lifespan.stop()
        run_cost = RunCost(elapsed_s=elapsed_s, loop="virtual")
        return Result(self._load, self._request_log, run_cost, watched=tuple(self._watched))

    def _intended_s(self, index: int) -> float:
        return self._start_s + self._load.plan.offsets[index]

    def _ended(self, exchange: AsgiExchange, result: RequestResult) -> None:
        index, request_log, now = exchange.index, self._request_log, self._loop.time()
        offset_s = self._load.plan.offsets[index]
        response_s = now - self._start_s - offset_s
        request_log.close(index, result, response_s)
        request_log.service_s[index] = now - self._open.pop(index).sent_s
        if result < RequestResult.CONNECTION:
            request_log.statuses[index] = exchange.status
            request_log.first_byte_s[index] = response_s
        if exchange.first_s is not None:
            request_log.first_byte_s[index] = exchange.first_s - self._start_s - offset_s
        if result.rejected:
            request_log.record_rejection(
                index, parse_reason(exchange.body_start), parse_retry_after(exchange.retry_after)
            )
        self._left -= 1
        if not self._left:
            self._over.set()

    def _sample(self, watch: WatchCallback, number: int) -> None:
        """Set the timer to the next sample, without drift, and take this one."""
        if self._is_drained:
            return
        self._loop.call_at(self._start_s + (number + 1) * WATCH_S, self._sample, watch, number + 1)
        t_s = round(self._loop.time() - self._start_s, 6)
        try:
            values = watch(t_s)
        except Exception as error:  # noqa: BLE001 - a callback cannot raise it to anybody
            self._watch_error = self._watch_error or error
            self._over.set()
        else:
            if values is not None:
                self._watched.append({"t_s": t_s, **values})

    def _launch(self) -> None:
        """Send all due requests, and set the timer to the next."""
        due_s = self._loop.time() + TIMER_SLACK_S
        while self._next < len(self._load.plan):
            intended_s = self._intended_s(self._next)
            if intended_s > due_s:
                self._loop.call_at(intended_s, self._launch)
                return
            self._send(self._next)
            self._next += 1

    def _send(self, index: int) -> None:
        loop, now = self._loop, self._loop.time()
        self._request_log.lag_s[index] = max(0.0, now - self._start_s - self._load.plan.offsets[index])
        request = self._load.requests[self._load.plan.kinds[index]]
        exchange = self._open[index] = AsgiExchange(index, request, now, self._ended)
        self._tasks[index] = loop.create_task(self._serve(exchange), name=request.label)
        if self._aborts.random() < self._abort_share:
            first_s, last_s = PATIENCE_S
            patience_s = first_s * (last_s / first_s) ** self._aborts.random()
            loop.call_later(patience_s, exchange.end, RequestResult.CONNECTION)
        if not self._is_timing:
            self._is_timing = True
            loop.call_later(self._timeout_s, self._expire)

    async def _serve(self, exchange: AsgiExchange) -> None:
        try:
            await self._app(self._scope(exchange.index), exchange.receive, exchange.send)
        except VirtualTimeError:
            pass  # the loop itself is about to end with it
        except Exception:
            if not self._has_raised:  # thousands of equal ones would hide the first
                self._has_raised = True
                logger.exception("the application raised; later exceptions of this run are not logged")
        finally:
            exchange.app_returned()
            del self._tasks[exchange.index]

    def _expire(self) -> None:
        """Time out overdue requests."""
        due_s = self._loop.time() + TIMER_SLACK_S
        while self._oldest < self._next:
            if not self._request_log.is_closed(self._oldest):
                # All requests have the same timeout, so they expire in the order of their launch.
                expires_s = self._intended_s(self._oldest) + self._timeout_s
                if expires_s > due_s:
                    self._loop.call_at(expires_s, self._expire)
                    return
                self._open[self._oldest].end(RequestResult.TIMEOUT)
            self._oldest += 1
        self._is_timing = False

    async def _drain_tasks(self) -> None:
        """Let tasks of disconnected clients finish, and cancel the rest after `LEFTOVER_S`."""
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=LEFTOVER_S)
        self._loop.limit(LEFTOVER_S, "the cancellation of requests of disconnected clients")
        leftover = list(self._tasks.values())
        for task in leftover:
            task.cancel()
        await asyncio.gather(*leftover, return_exceptions=True)
