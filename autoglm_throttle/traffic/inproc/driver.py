"""Drives an ASGI application with a load in virtual time."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypedDict, Unpack

from starlette.types import ASGIApp, Message

from autoglm_throttle.settings.groups.callers import PRIORITY_HEADER
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.inproc.exchange import AsgiExchange, Scopes
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

# Called once a virtual second with the seconds since the start, from 0 on; its values are stored in
# ``Result.watched``. A throttle with ``sampling="manual"`` can read its GPUs here.
WatchCallback = Callable[[float], Mapping[str, float] | None]


class ClientBehavior(TypedDict, total=False):
    """Behavior of clients."""

    abort: float
    """Share of requests with an impatient client. It disconnects after a random time of `PATIENCE_S` unless
    it has its response by then; such a request ends as ``connection``. Default 0.
    """
    seed: int
    """Seed of the disconnects. Default 0."""
    timeout_s: float
    """From the intended start to the last byte of the response. Default 30 s, as over HTTP."""
    priority_header: str
    """Field with the priority; empty: none. Default ``x-priority``."""
    identity_header: str
    """Field with the client's identity text; empty: none. Default ``x-client``."""


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

    Args:
        app: the application, with its middleware.
        load: requests and plan.
        clock: the clock to advance; None: a new one.
        watch: called once a virtual second.
        **behavior: behavior of clients: fields of `ClientBehavior`.

    Raises:
        VirtualTimeError: the application uses threads (sync endpoints do), sockets or processes.
        TrafficError: it does not start, or a field of ``behavior`` is out of range.
        RuntimeError: it waits for something that can never happen, its startup or shutdown takes more than
            `LIFESPAN_S`, one of its tasks cannot be cancelled, or an event loop is already running.
    """
    clients = _Clients(**behavior)
    _check_no_running_loop()
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(clock)) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, VirtualLoop)  # noqa: S101 - for the type checker
        return runner.run(_Run(app, load, clients, loop).run(watch))


def _check_no_running_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(
        "run_inprocess() starts its own event loop: call it from sync code, not from a coroutine"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Clients:
    abort: float = 0.0
    seed: int = 0
    timeout_s: float = 30.0
    priority_header: str = PRIORITY_HEADER
    identity_header: str = "x-client"

    def __post_init__(self) -> None:
        if not 0.0 <= self.abort <= 1.0:
            raise TrafficError(f"abort must be from 0 to 1, not {self.abort!r}")
        if not 0.0 < self.timeout_s < math.inf:
            raise TrafficError(f"timeout_s must be a finite number above 0, not {self.timeout_s!r}")


class _Application:
    """The application: its lifespan, as run by a server, and its requests."""

    def __init__(self, app: ASGIApp, load: RequestSource, clients: _Clients) -> None:
        self._app = app
        self._to_app: asyncio.Queue[Message] = asyncio.Queue()
        self._from_app: asyncio.Queue[Message | None] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._state: dict[str, Any] = {}
        self._scopes = Scopes(load, clients.priority_header, clients.identity_header, self._state)
        self._has_raised = False

    async def start(self) -> None:
        """Start the application; raise TrafficError if it reports that it cannot start."""
        self._task = asyncio.get_running_loop().create_task(self._run_lifespan(), name="lifespan")
        self._to_app.put_nowait({"type": "lifespan.startup"})
        message = await self._from_app.get()
        if message is None:
            self._task = None
        elif message["type"] == "lifespan.startup.failed":
            raise TrafficError(f"the application did not start: {message.get('message', '')}")

    async def stop(self) -> None:
        """Shut the application down; raise TrafficError if it reports that it cannot."""
        if self._task is None:
            return
        self._to_app.put_nowait({"type": "lifespan.shutdown"})
        message = await self._from_app.get()
        if message is not None and message["type"] == "lifespan.shutdown.failed":
            raise TrafficError(f"the application did not shut down: {message.get('message', '')}")
        await self._task

    async def serve(self, exchange: AsgiExchange) -> None:
        """Serve one request."""
        try:
            await self._app(self._scopes.scope(exchange.index), exchange.receive, exchange.send)
        except VirtualTimeError:
            pass  # the loop itself is about to end with it
        except Exception:
            if not self._has_raised:  # thousands of equal ones would hide the first
                self._has_raised = True
                logger.exception("the application raised; later exceptions of this run are not logged")
        finally:
            exchange.app_returned()

    async def _run_lifespan(self) -> None:
        scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": self._state}
        with suppress(Exception):  # the specification's way to say that there is no lifespan
            await self._app(scope, self._to_app.get, self._from_app.put)
        self._from_app.put_nowait(None)


@dataclass(slots=True)
class _Progress:
    """Position of a run in its plan, and the values of its `WatchCallback`."""

    over: asyncio.Future[None]
    start_s: float = 0.0
    next: int = 0  # The first request that was not sent
    oldest: int = 0  # The first request that may be open
    done: int = 0  # Requests that have ended
    is_timing: bool = False  # Whether the timer of the timeouts is set
    watched: list[dict[str, float]] = field(default_factory=list)
    watch_error: Exception | None = None  # The first error that the callback raised

    def finish(self) -> None:
        """End the run."""
        if not self.over.done():
            self.over.set_result(None)


class _Run:
    """One run of one load."""

    def __init__(self, app: ASGIApp, load: RequestSource, clients: _Clients, loop: VirtualLoop) -> None:
        self._application = _Application(app, load, clients)
        self._load = load
        self._clients = clients
        self._loop = loop
        self._request_log = RequestLog(len(load.plan))
        self._aborts = Random(f"autoglm-throttle aborts {clients.seed}")
        self._progress = _Progress(loop.create_future())
        # Exchange and time of the start of each open request.
        self._open: dict[int, tuple[AsgiExchange, float]] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}

    async def run(self, watch: WatchCallback | None) -> Result:
        """Start the application, send everything, shut down."""
        try:
            return await self._run(watch)
        finally:
            self._loop.limit(LEFTOVER_S, "the cancellation of what the application left running")

    async def _run(self, watch: WatchCallback | None) -> Result:
        self._loop.limit(LIFESPAN_S, "the startup of the application")
        await self._application.start()
        self._loop.limit(math.inf, "")
        self._progress.start_s = self._loop.time()
        stop = self._start_watching(watch)
        if len(self._request_log):
            self._loop.call_at(self._intended_s(0), self._launch)
            await self._progress.over
        elapsed_s = self._loop.time() - self._progress.start_s
        await self._drain_tasks()
        stop()
        if self._progress.watch_error is not None:
            raise self._progress.watch_error
        self._loop.limit(LIFESPAN_S, "the shutdown of the application")
        await self._application.stop()
        run_cost = RunCost(elapsed_s=elapsed_s, loop="virtual")
        return Result(self._load, self._request_log, run_cost, watched=tuple(self._progress.watched))

    def _intended_s(self, index: int) -> float:
        """Intended start of a request."""
        return self._progress.start_s + self._load.plan.offsets[index]

    def _body_began(self, index: int) -> None:
        elapsed_s = self._loop.time() - self._progress.start_s
        self._request_log.first_byte_s[index] = elapsed_s - self._load.plan.offsets[index]

    def _ended(self, exchange: AsgiExchange, result: RequestResult) -> None:
        index, request_log, now = exchange.index, self._request_log, self._loop.time()
        response_s = now - self._progress.start_s - self._load.plan.offsets[index]
        request_log.close(index, result, response_s)
        request_log.service_s[index] = now - self._open.pop(index)[1]
        response = exchange.response
        if result < RequestResult.CONNECTION:
            request_log.statuses[index] = response.status
            if response.body_start is None:
                request_log.first_byte_s[index] = response_s
        if result.rejected:
            request_log.record_rejection(
                index, parse_reason(response.body_start or b""), parse_retry_after(response.retry_after)
            )
        self._progress.done += 1
        if self._progress.done == len(request_log):
            self._progress.finish()

    def _start_watching(self, watch: WatchCallback | None) -> Callable[[], None]:
        if watch is None:
            return lambda: None

        def sample() -> None:
            t_s = round(self._loop.time() - self._progress.start_s, 6)
            try:
                values = watch(t_s)
            except Exception as error:  # noqa: BLE001 - a callback cannot raise it to anybody
                self._progress.watch_error = self._progress.watch_error or error
                self._progress.finish()
                return
            if values is not None:
                self._progress.watched.append({"t_s": t_s, **values})

        sample()
        return self._loop.every(WATCH_S, sample)

    def _launch(self) -> None:
        """Send all due requests, and set the timer to the next."""
        due_s, progress = self._loop.time() + TIMER_SLACK_S, self._progress
        while progress.next < len(self._load.plan):
            intended_s = self._intended_s(progress.next)
            if intended_s > due_s:
                self._loop.call_at(intended_s, self._launch)
                return
            self._send(progress.next)
            progress.next += 1

    def _send(self, index: int) -> None:
        loop, now = self._loop, self._loop.time()
        lag_s = now - self._progress.start_s - self._load.plan.offsets[index]
        self._request_log.lag_s[index] = max(0.0, lag_s)
        request = self._load.requests[self._load.plan.kinds[index]]
        exchange = AsgiExchange(
            index,
            request.body,
            head=request.method == "HEAD",
            on_body=self._body_began,
            on_end=self._ended,
        )
        self._open[index] = exchange, now
        self._tasks[index] = loop.create_task(self._serve(exchange), name=request.label)
        if self._aborts.random() < self._clients.abort:
            first_s, last_s = PATIENCE_S
            patience_s = first_s * (last_s / first_s) ** self._aborts.random()
            loop.call_later(patience_s, exchange.end, RequestResult.CONNECTION)
        if not self._progress.is_timing:
            self._progress.is_timing = True
            loop.call_later(self._clients.timeout_s, self._expire)

    async def _serve(self, exchange: AsgiExchange) -> None:
        try:
            await self._application.serve(exchange)
        finally:
            del self._tasks[exchange.index]

    def _expire(self) -> None:
        """Time out overdue requests."""
        due_s, progress = self._loop.time() + TIMER_SLACK_S, self._progress
        while progress.oldest < progress.next:
            if not self._request_log.is_closed(progress.oldest):
                # All requests have the same timeout, so they expire in the order of their launch.
                expires_s = self._intended_s(progress.oldest) + self._clients.timeout_s
                if expires_s > due_s:
                    self._loop.call_at(expires_s, self._expire)
                    return
                self._open[progress.oldest][0].end(RequestResult.TIMEOUT)
            progress.oldest += 1
        progress.is_timing = False

    async def _drain_tasks(self) -> None:
        """Let tasks of disconnected clients finish, and cancel the rest after `LEFTOVER_S`."""
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=LEFTOVER_S)
        self._loop.limit(LEFTOVER_S, "the cancellation of requests of disconnected clients")
        leftover = list(self._tasks.values())
        for task in leftover:
            task.cancel()
        await asyncio.gather(*leftover, return_exceptions=True)
