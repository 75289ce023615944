"""Senders: the base with connections, clock, results and drain, and the open-loop sender.

Latency counts from the intended start, as in wrk2: if a server stalls for a second, all requests of
that second were slow and must show it. The time from the write on, network and service, is recorded
separately.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import isnan, nan
from time import monotonic

from autoglm_throttle.traffic.generator.connection import IDLE, Connection, ParserLibrary
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


class _RunClock:
    """Times of one run, in seconds from its first intended start."""

    def __init__(self) -> None:
        self.start_s: float = 0.0  # The first intended start, on the monotonic clock; 0 before the run
        self.stopped_s: float | None = None
        # Time at which the run stops waiting for responses; None: it still sends.
        self.drained_s: float | None = None
        self.cpu_share: float | None = None  # Share of a core that was used while sending
        self._started_cpu_s = 0.0
        self._started_s = 0.0

    @property
    def elapsed_s(self) -> float:
        """Seconds since the first intended start; negative before it, 0 before the run."""
        return monotonic() - self.start_s if self.start_s else 0.0

    @property
    def is_stopped(self) -> bool:
        """Whether the run was stopped before its end."""
        return self.stopped_s is not None

    def start(self, start_s: float) -> None:
        """Set the first intended start."""
        self.start_s, self._started_cpu_s, self._started_s = start_s, time.process_time(), monotonic()

    def stop(self) -> None:
        """Stop the run; a second time, end its drain."""
        if self.stopped_s is None:
            self.stopped_s = self.elapsed_s
        else:
            self.drained_s = self.elapsed_s

    def measure_cpu_share(self) -> None:
        """Measure the share of a core used so far; only the first call counts."""
        if self.cpu_share is None:
            used_s = time.process_time() - self._started_cpu_s
            self.cpu_share = used_s / (monotonic() - self._started_s)


@dataclass(slots=True)
class _OpenRequests:
    """Requests that have not ended, by index, and counts of all requests of a run."""

    next: int = 0  # Index of the first request that was not launched
    in_flight: int = 0
    resent: int = 0
    # All launched requests that may be open, in the order of their launch.
    launched: deque[int] = field(default_factory=deque)
    assigned: dict[int, Connection] = field(default_factory=dict)  # The connection that carries each request
    to_resend: deque[int] = field(default_factory=deque)  # Requests that lost their connection
    waiting: deque[int] = field(default_factory=deque)  # Requests without a connection so far


class Sender(ABC):
    """One run; use it once. ``offsets`` are the intended starts, by index, in seconds from the start."""

    def __init__(
        self,
        request_log: RequestLog,
        offsets: array[float],
        target: TargetUrl,
        options: ClientOptions,
        observer: Observer | None,
    ) -> None:
        self.request_log: RequestLog = request_log
        self.options: ClientOptions = options
        self._offsets = offsets
        self._observe = observer or (lambda *_: None)
        library = ParserLibrary()
        self._pool = ConnectionPool(target, options, lambda: Connection(self, library))
        self._encode: Callable[[int], bytes]
        self._clock = _RunClock()
        self._requests = _OpenRequests()
        self._finished: asyncio.Future[None] | None = None

    @abstractmethod
    def send_due(self, elapsed_s: float) -> bool:
        """Launch the due requests; return whether more follow."""

    @abstractmethod
    def _result(self, run_cost: RunCost) -> Result:
        """Build the result."""

    @abstractmethod
    def _skip_unsent(self) -> None:
        """Mark the unsent requests as skipped, after a stop."""

    @abstractmethod
    def _ended(self, index: int, now: float) -> None:
        """Handle the end of a request."""

    @property
    def elapsed_s(self) -> float:
        """Seconds since the first intended start, as of the clock of the run."""
        return self._clock.elapsed_s

    @property
    def launched(self) -> int:
        """Requests launched so far; all of them after a stop."""
        return self._requests.next

    @property
    def in_flight(self) -> int:
        """Requests that were sent or wait for a connection, and have not ended."""
        return self._requests.in_flight

    @property
    def started(self) -> bool:
        """Whether all connections were open and the clock is running."""
        return self._clock.start_s != 0.0

    async def run(self) -> Result:
        """Send everything and wait for the responses.

        Raises:
            TrafficError: the target does not accept connections before the start.
        """
        await self._pool.fill()
        loop = asyncio.get_running_loop()
        self._finished = loop.create_future()
        self._clock.start(monotonic() + START_DELAY_S)
        loop.call_soon(self._tick)
        try:
            await self._finished
        finally:
            self._pool.close()
        lags_s = (lag_s for lag_s in reversed(self.request_log.lag_s) if not isnan(lag_s))
        return self._result(
            RunCost(
                elapsed_s=self.elapsed_s,
                overrun_s=max(0.0, next(lags_s, 0.0)),
                cpu_share=self._clock.cpu_share,
                stopped_s=self._clock.stopped_s,
                resent=self._requests.resent,
                connections=self.options.connections,
                loop=type(loop).__module__.partition(".")[0],
            )
        )

    def stop(self) -> None:
        """Stop sending and wait for the responses; a second call ends the run at once."""
        self._clock.stop()
        self._skip_unsent()

    def opened(self, connection: Connection) -> None:
        """Use a new connection: for a request to resend, if there is any."""
        self._pool.opened(connection)
        self._assign(connection, self._requests.to_resend)

    def answered(self, connection: Connection, result: RequestResult, now: float) -> None:
        """Record a complete or malformed response, and reuse the connection."""
        index = connection.index
        intended_s = self._clock.start_s + self._offsets[index]
        response_s = now - intended_s
        response = connection.response
        request_log = self.request_log
        request_log.close(index, result, response_s)
        if result is not RequestResult.MALFORMED:
            request_log.service_s[index] = now - connection.sent_s
            request_log.first_byte_s[index] = (
                response_s if response.first_s is None else response.first_s - intended_s
            )
            request_log.statuses[index] = response.status
            if response.status >= 400 and result.rejected:
                request_log.record_rejection(
                    index, parse_reason(response.body), parse_retry_after(response.retry_after)
                )
        self._settle(index, result, response_s, now)
        connection.index = IDLE
        if connection.reusable:
            self._assign(connection, self._requests.waiting)
        else:
            connection.close()

    def closed(self, connection: Connection) -> None:
        """Handle the loss of a connection, and of the request it carried."""
        self._pool.closed(connection)
        index = connection.index
        if index == IDLE:
            return
        connection.index = IDLE
        del self._requests.assigned[index]
        # RFC 9112, section 9.3.1: an idle connection may close at any time; the request is sent again.
        if connection.unanswered and not self._clock.is_stopped:
            self._requests.resent += 1
            self._requests.to_resend.append(index)
        else:
            self._record_first_byte(index, connection)
            self._fail(index, RequestResult.CONNECTION)

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
        elif self.options.spin:
            asyncio.get_running_loop().call_soon(self._tick)
        else:
            asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def _step(self) -> bool:
        """Send due requests and expire overdue ones; return whether the run is over."""
        elapsed_s = self.elapsed_s
        more = self.send_due(elapsed_s)
        if not more:
            # Before the drain, since that is idle.
            self._clock.measure_cpu_share()
        self._expire(elapsed_s)
        if self._pool.unreachable:
            self._expire_unconnected(elapsed_s - GRACE_S)
        if unassigned := len(self._requests.to_resend) + len(self._requests.waiting):
            self._pool.open_more(unassigned)
        return not more and self._drain(elapsed_s)

    def _launch(self, index: int) -> None:
        now, requests = monotonic(), self._requests
        self.request_log.lag_s[index] = now - self._clock.start_s - self._offsets[index]
        # As in k6: drop and count above the limit, since a delay would hide overload of the generator.
        if requests.in_flight >= self.options.max_inflight:
            self.request_log.close(index, RequestResult.DROPPED, nan)
            self._observe(index, RequestResult.DROPPED, 0.0)
            return
        requests.in_flight += 1
        requests.launched.append(index)
        connection = self._pool.acquire()
        if connection is not None:
            requests.assigned[index] = connection
            connection.send(index, self._encode(index), now)
        else:
            requests.waiting.append(index)

    def _assign(self, connection: Connection, preferred: deque[int]) -> None:
        for queue in (preferred, self._requests.waiting):
            while queue:
                index = queue.popleft()
                if not self.request_log.is_closed(index):
                    self._requests.assigned[index] = connection
                    connection.send(index, self._encode(index), monotonic())
                    return
        self._pool.release(connection)

    def _expire(self, elapsed_s: float) -> None:
        """Time out overdue requests."""
        # All requests have the same timeout, so they expire in the order of their launch.
        oldest_s = elapsed_s - self.options.timeout_s
        launched = self._requests.launched
        while launched:
            index = launched[0]
            if not self.request_log.is_closed(index):
                if self._offsets[index] > oldest_s:
                    return
                self._abandon(index, RequestResult.TIMEOUT)
            launched.popleft()

    def _expire_unconnected(self, oldest_s: float) -> None:
        """Target unreachable: fail requests that have waited for a connection since before ``oldest_s``."""
        for queue in (self._requests.to_resend, self._requests.waiting):
            for _ in range(len(queue)):
                index = queue.popleft()
                if self.request_log.is_closed(index):
                    continue
                if self._offsets[index] > oldest_s:
                    queue.append(index)
                else:
                    self._fail(index, RequestResult.CONNECTION)

    def _drain(self, elapsed_s: float) -> bool:
        """Return whether the run is over: nothing in flight, or the drain time has passed."""
        requests, clock = self._requests, self._clock
        if clock.drained_s is None:
            clock.drained_s = elapsed_s + self.options.drain_s
        if requests.in_flight and elapsed_s >= clock.drained_s:
            for index in list(requests.launched):
                if not self.request_log.is_closed(index):
                    self._abandon(index, RequestResult.UNANSWERED)
        return not requests.in_flight

    def _abandon(self, index: int, result: RequestResult) -> None:
        connection = self._requests.assigned.pop(index, None)
        if connection is not None:
            self._record_first_byte(index, connection)
            connection.abort()
        self._fail(index, result)

    def _record_first_byte(self, index: int, connection: Connection) -> None:
        """Record the time of the first byte of an incomplete response."""
        first_s = connection.response.first_s
        if first_s is not None:
            self.request_log.first_byte_s[index] = first_s - self._clock.start_s - self._offsets[index]

    def _fail(self, index: int, result: RequestResult) -> None:
        now = monotonic()
        response_s = now - self._clock.start_s - self._offsets[index]
        self.request_log.close(index, result, response_s)
        self._settle(index, result, response_s, now)

    def _settle(self, index: int, result: RequestResult, response_s: float, now: float) -> None:
        self._requests.in_flight -= 1
        self._requests.assigned.pop(index, None)
        self._observe(index, result, response_s)
        self._ended(index, now)


class OpenLoopSender(Sender):
    """One run of one load, whose intended starts never depend on a response; use it once.

    Raises:
        TrafficError: httptools is missing, or too few files may be opened.
    """

    def __init__(
        self,
        load: RequestSource,
        target: TargetUrl,
        options: ClientOptions | None = None,
        observer: Observer | None = None,
    ) -> None:
        request_log = RequestLog(len(load.plan))
        super().__init__(request_log, load.plan.offsets, target, options or ClientOptions(), observer)
        self._load = load
        self._encode = encoder(load, target)

    def send_due(self, elapsed_s: float) -> bool:
        """Launch the due requests; return whether more follow."""
        offsets, requests = self._offsets, self._requests
        count = len(offsets)
        while requests.next < count and offsets[requests.next] <= elapsed_s:
            index = requests.next
            requests.next += 1
            self._launch(index)
        return requests.next < count

    def _skip_unsent(self) -> None:
        for index in range(self._requests.next, len(self._offsets)):
            self.request_log.skip(index)
        self._requests.next = len(self._offsets)

    def _ended(self, index: int, now: float) -> None:
        """Do nothing: the loop is open."""

    def _result(self, run_cost: RunCost) -> Result:
        return Result(self._load, self.request_log, run_cost, aborted=self._clock.is_stopped)
