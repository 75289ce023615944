"""The open-loop sender: connections, clock, results and drain of a run.

Latency counts from the intended start, as in wrk2: a stall is seen by all requests of that time.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from math import isnan, nan
from time import monotonic

from autoglm_throttle.traffic.generator.connection import IDLE, Connection, load_httptools
from autoglm_throttle.traffic.generator.connection_pool import GRACE_S, ClientOptions, ConnectionPool
from autoglm_throttle.traffic.generator.target import TargetUrl, encoder
from autoglm_throttle.traffic.request_log import RequestLog, RequestResult, parse_reason, parse_retry_after
from autoglm_throttle.traffic.request_source import RequestSource
from autoglm_throttle.traffic.results import Result, RunCost

TICK_S = 0.001  # As in wrk2: finer than any latency that matters, and leaves the core free for the work
START_DELAY_S = 0.050  # From the last preparation to the first intended start

# Called with index, result and seconds from the intended start, as each request ends.
Observer = Callable[[int, RequestResult, float], None]

# Called about once a second with seconds since the start, requests launched and requests in flight.
ProgressCallback = Callable[[float, int, int], None]


class OpenLoopSender:
    """One run of one load; use it once. No httptools, or too few open files, raise TrafficError."""

    is_closed_loop = False

    def __init__(
        self,
        load: RequestSource,
        target: TargetUrl,
        options: ClientOptions | None = None,
        observer: Observer | None = None,
    ) -> None:
        httptools = load_httptools()
        self.options: ClientOptions = options or ClientOptions()
        self.request_log: RequestLog = RequestLog(len(load.plan))
        self._load = load
        self._offsets = load.plan.offsets
        self._encode = encoder(load, target)
        self._observe = observer or (lambda *_: None)
        self._pool = ConnectionPool(target, self.options, lambda: Connection(self, httptools))
        self._finished: asyncio.Future[None] | None = None
        self.start_s: float = 0.0  # The first intended start, on the monotonic clock; 0 before the run
        self._cpu_start_s = (0.0, 0.0)  # CPU time and monotonic time when sending began
        self._cpu_share: float | None = None  # Share of a core that was used while sending
        self._stopped_s: float | None = None
        self._drained_s: float | None = None  # When it stops waiting for responses; None: it still sends
        self.launched: int = 0  # Requests launched so far; all of them after a stop
        self._order: deque[int] = deque()  # Launched requests that may be open, in the order of their launch
        self._assigned: dict[int, Connection] = {}  # The connection that carries each request
        self._to_resend: deque[int] = deque()  # Requests that lost their connection
        self._waiting: deque[int] = deque()  # Requests without a connection so far
        self.in_flight: int = 0  # Requests that were sent or wait for a connection, and have not ended
        self._resent = 0

    @property
    def elapsed_s(self) -> float:
        """Seconds since the first intended start; negative before it, 0 before the run."""
        return monotonic() - self.start_s if self.start_s else 0.0

    def send_due(self, elapsed_s: float) -> bool:
        """Launch the due requests; return whether more follow."""
        offsets, count = self._offsets, len(self._offsets)
        while self.launched < count and offsets[self.launched] <= elapsed_s:
            self._launch_next()
        return self.launched < count

    def _launch_next(self) -> None:
        self.launched += 1
        self._launch(self.launched - 1)

    async def run(self) -> Result:
        """Send everything and wait for the responses; raise TrafficError if the target does not connect."""
        await self._pool.fill()
        loop = asyncio.get_running_loop()
        self._finished = loop.create_future()
        self._cpu_start_s = time.process_time(), monotonic()
        self.start_s = monotonic() + START_DELAY_S
        loop.call_soon(self._tick)
        try:
            await self._finished
        finally:
            self._pool.close()
        lags_s = (lag_s for lag_s in reversed(self.request_log.lag_s) if not isnan(lag_s))
        cost = RunCost(
            elapsed_s=self.elapsed_s,
            overrun_s=max(0.0, next(lags_s, 0.0)),
            cpu_share=self._cpu_share,
            stopped_s=self._stopped_s,
            resent=self._resent,
            connections=self.options.connections,
            loop=type(loop).__module__.partition(".")[0],
        )
        aborted = self._stopped_s is not None
        return Result(self._load, self.request_log, cost, aborted, closed_loop=self.is_closed_loop)

    def stop(self) -> None:
        """Stop sending and wait for the responses; a second call ends the run at once."""
        if self._stopped_s is None:
            self._stopped_s = self.elapsed_s
        else:
            self._drained_s = self.elapsed_s
        for index in range(self.launched, len(self._offsets)):
            self.request_log.skip(index)
        self.launched = len(self._offsets)

    def opened(self, connection: Connection) -> None:
        """Use a new connection: for a request to resend, if there is any."""
        self._pool.opened(connection)
        self._assign(connection, self._to_resend)

    def answered(self, connection: Connection, result: RequestResult, now: float) -> None:
        """Record a complete or malformed response, and reuse the connection."""
        index, response, request_log = connection.index, connection.response, self.request_log
        if result is not RequestResult.MALFORMED:
            first_s = now if response.first_s is None else response.first_s
            request_log.first_byte_s[index] = first_s - (self.start_s + self._offsets[index])
            request_log.service_s[index] = now - connection.sent_s
            request_log.statuses[index] = response.status
            if response.status >= 400 and result.rejected:
                request_log.record_rejection(
                    index, parse_reason(response.body), parse_retry_after(response.retry_after)
                )
        self._end(index, result, now)
        connection.index = IDLE
        if connection.reusable:
            self._assign(connection, self._waiting)
        else:
            connection.close()

    def closed(self, connection: Connection) -> None:
        """Handle the loss of a connection, and of the request it carried."""
        self._pool.closed(connection)
        index = connection.index
        if index == IDLE:
            return
        connection.index = IDLE
        # RFC 9112, section 9.3.1: an idle connection may close at any time; the request is sent again.
        if connection.unanswered and self._stopped_s is None:
            del self._assigned[index]
            self._resent += 1
            self._to_resend.append(index)
        else:
            self._abandon(index, RequestResult.CONNECTION)

    def _tick(self) -> None:
        if self._finished is None or self._finished.done():
            return
        try:
            over = self._step()
        except Exception as problem:  # noqa: BLE001 - raised by run()
            self._finished.set_exception(problem)
            return
        if over:
            self._finished.set_result(None)
        else:
            asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def _step(self) -> bool:
        """Send due requests and expire overdue ones; return whether the run is over."""
        elapsed_s = self.elapsed_s
        more = self.send_due(elapsed_s)
        if not more and self._cpu_share is None:  # before the drain, since that is idle
            cpu_s, started_s = self._cpu_start_s
            self._cpu_share = (time.process_time() - cpu_s) / (monotonic() - started_s)
        self._expire(elapsed_s)
        if unassigned := len(self._to_resend) + len(self._waiting):
            self._pool.open_more(unassigned)
        return not more and self._drain(elapsed_s)

    def _drain(self, elapsed_s: float) -> bool:
        """Return whether the run is over: nothing in flight, or the drain time has passed."""
        if self._drained_s is None:
            self._drained_s = elapsed_s + self.options.drain_s
        if elapsed_s >= self._drained_s:
            for index in list(self._order):
                if not self.request_log.is_closed(index):
                    self._abandon(index, RequestResult.UNANSWERED)
        return not self.in_flight

    def _launch(self, index: int) -> None:
        now = monotonic()
        self.request_log.lag_s[index] = now - self.start_s - self._offsets[index]
        # As in k6: drop and count above the limit, since a delay would hide overload of the generator.
        if self.in_flight >= self.options.max_inflight:
            self.request_log.close(index, RequestResult.DROPPED, nan)
            self._observe(index, RequestResult.DROPPED, 0.0)
            return
        self.in_flight += 1
        self._order.append(index)
        connection = self._pool.acquire()
        if connection is not None:
            self._assigned[index] = connection
            connection.send(index, self._encode(index), now)
        else:
            self._waiting.append(index)

    def _assign(self, connection: Connection, preferred: deque[int]) -> None:
        for queue in (preferred, self._waiting):
            while queue:
                index = queue.popleft()
                if not self.request_log.is_closed(index):
                    self._assigned[index] = connection
                    connection.send(index, self._encode(index), monotonic())
                    return
        self._pool.release(connection)

    def _expire(self, elapsed_s: float) -> None:
        """Time out overdue requests; without a connection to the target they fail after `GRACE_S`."""
        wait_s, result = self.options.timeout_s, RequestResult.TIMEOUT
        if self._pool.unreachable and wait_s > GRACE_S:
            wait_s, result = GRACE_S, RequestResult.CONNECTION
        # All requests have the same timeout, so they expire in the order of their launch.
        order, is_closed = self._order, self.request_log.is_closed
        while order:
            index = order[0]
            if not is_closed(index):
                if self._offsets[index] > elapsed_s - wait_s:
                    break
                self._abandon(index, result)
            order.popleft()
        for queue in (self._to_resend, self._waiting):
            while queue and is_closed(queue[0]):
                queue.popleft()

    def _abandon(self, index: int, result: RequestResult) -> None:
        """End a request without a complete response, and abort the connection that carries it."""
        connection = self._assigned.pop(index, None)
        if connection is not None:
            if connection.response.first_s is not None:
                intended_s = self.start_s + self._offsets[index]
                self.request_log.first_byte_s[index] = connection.response.first_s - intended_s
            connection.abort()
        self._end(index, result, monotonic())

    def _end(self, index: int, result: RequestResult, now: float) -> None:
        response_s = now - (self.start_s + self._offsets[index])
        self.request_log.close(index, result, response_s)
        self.in_flight -= 1
        self._assigned.pop(index, None)
        self._observe(index, result, response_s)
        self._ended(index, now)

    def _ended(self, index: int, now: float) -> None:
        """Do nothing: the loop is open."""
