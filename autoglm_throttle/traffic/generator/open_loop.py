"""Sends a plan open loop: an intended start never depends on an answer.

Latency counts from the intended start, as in wrk2: if a server stalls for a second, all requests of
that second were slow and must show it. What network and service took from the write on is kept apart.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import nan

from autoglm_throttle.traffic.ending import Ending
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.generator.connection import IDLE, Connection, ParserLibrary
from autoglm_throttle.traffic.generator.pool import Pool
from autoglm_throttle.traffic.generator.wire import Encode, Target, encoder
from autoglm_throttle.traffic.load import Load
from autoglm_throttle.traffic.result import Effort, Result
from autoglm_throttle.traffic.sheet import Sheet

TICK_S = 0.001
"""As in wrk2: finer than any latency that matters, and the core stays free for the work."""

HEAD_START_S = 0.050
"""From the last preparation to the first intended start."""

Observer = Callable[[int, Ending, float], None]
"""Called with index, ending and seconds from the intended start, as each request ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to send.

    Raises:
        TrafficError: a number that is not above 0.
    """

    connections: int = 256
    """Opened before the start, so that connecting is part of no latency."""
    more_connections: int = 0
    """Opened when all others are busy; without any left, requests wait in line and their latency runs."""
    max_inflight: int = 20_000
    """Above it a request is dropped and counted, never delayed (the rule of k6)."""
    timeout_s: float = 30.0
    """From the intended start to the last byte of the answer."""
    drain_s: float = 30.0
    """How long to wait for answers after the last request was sent."""

    def __post_init__(self) -> None:
        if self.more_connections < 0:
            raise TrafficError("more_connections must not be negative")
        if min(self.connections, self.max_inflight, self.timeout_s, self.drain_s) <= 0:
            raise TrafficError("connections, max_inflight, timeout_s and drain_s must be above 0")


class Generator:
    """One run of one load; use it once.

    Args:
        load: what to send, and when.
        target: where to.
        options: how.
        observer: told of each ending as it happens.

    Raises:
        TrafficError: httptools is missing, or too few files may be opened.
    """

    def __init__(
        self,
        load: Load,
        target: Target,
        options: Options | None = None,
        observer: Observer | None = None,
    ) -> None:
        self.sheet: Sheet = Sheet(len(load.plan))
        chosen = options or Options()
        self.options: Options = chosen
        self._load = load
        self._offsets = load.plan.offsets
        self._encode: Encode = encoder(load, target)
        self._observer = observer
        self._library = ParserLibrary()
        self._only_head = all(request.method == "HEAD" for request in load.requests)
        self._pool = Pool(
            target.host, target.port, chosen.connections, chosen.more_connections, self._connection
        )
        self._start_s = 0.0
        self._next = 0
        self._in_flight = 0
        self._resent = 0
        self._launched: deque[int] = deque()
        self._carried: dict[int, Connection] = {}
        self._again: deque[int] = deque()
        self._waiting: deque[int] = deque()
        self._drained_s: float | None = None
        self._stopped = False
        self._over: asyncio.Future[None] | None = None

    @property
    def elapsed_s(self) -> float:
        """Seconds since the first intended start; negative before it, 0 before the run."""
        return time.monotonic() - self._start_s if self._start_s else 0.0

    @property
    def launched(self) -> int:
        """Requests whose time has come; all of them once the run was stopped."""
        return self._next

    @property
    def in_flight(self) -> int:
        """Requests sent, or waiting for a connection, and not ended."""
        return self._in_flight

    async def run(self) -> Result:
        """Send everything and wait for the answers.

        Raises:
            TrafficError: the target refuses connections before the start.
        """
        loop = asyncio.get_running_loop()
        await self._pool.fill()
        self._over = loop.create_future()
        self._start_s = time.monotonic() + HEAD_START_S
        loop.call_soon(self._tick)
        try:
            await self._over
        finally:
            self._pool.shut()
        effort = Effort(elapsed_s=self.elapsed_s, resent=self._resent, connections=self.options.connections)
        return Result(self._load, self.sheet, effort, aborted=self._stopped)

    def stop(self) -> None:
        """The first call ends the sending and lets the answers come in; the second ends the run at once."""
        if self._stopped:
            self._drained_s = self.elapsed_s
        self._stopped = True
        for index in range(self._next, len(self._offsets)):
            self.sheet.leave_out(index)
        self._next = len(self._offsets)

    def opened(self, connection: Connection) -> None:
        """A connection can take its first request: one that must be sent again, if there is any."""
        self._pool.opened(connection)
        self._give_work(connection, self._again)

    def answered(self, connection: Connection, ending: Ending) -> None:
        """An answer is whole."""
        index = connection.index
        now = time.monotonic()
        response_s = now - self._start_s - self._offsets[index]
        sheet = self.sheet
        sheet.close(index, ending, response_s)
        sheet.service_s[index] = now - connection.sent_s
        sheet.statuses[index] = connection.status
        if ending.refused:
            sheet.refused(index, connection.reason, connection.promised_s)
        self._settle(index, ending, response_s)
        connection.index = IDLE
        if connection.reusable:
            self._give_work(connection, self._waiting)
        else:
            connection.close()

    def closed(self, connection: Connection) -> None:
        """A connection is gone, perhaps with a request."""
        self._pool.closed(connection)
        index = connection.index
        if index == IDLE:
            return
        connection.index = IDLE
        del self._carried[index]
        if connection.unheard and not self._stopped:
            self._resent += 1
            self._again.append(index)
        else:
            self._fail(index, Ending.CONNECTION)

    def _connection(self) -> Connection:
        return Connection(self, self._library, only_head=self._only_head)

    def _tick(self) -> None:
        if self._over is None or self._over.done():
            return
        elapsed_s = self.elapsed_s
        offsets = self._offsets
        while self._next < len(offsets) and offsets[self._next] <= elapsed_s:
            index = self._next
            self._next += 1
            self._launch(index)
        self._expire(elapsed_s)
        self._pool.want(len(self._again) + len(self._waiting))
        if self._next == len(offsets) and self._drain(elapsed_s):
            self._over.set_result(None)
        else:
            asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def _launch(self, index: int) -> None:
        self.sheet.lag_s[index] = self.elapsed_s - self._offsets[index]
        if self._in_flight >= self.options.max_inflight:
            self.sheet.close(index, Ending.DROPPED, nan)
            self._observe(index, Ending.DROPPED, 0.0)
            return
        self._in_flight += 1
        self._launched.append(index)
        connection = self._pool.take()
        if connection is not None:
            self._send(connection, index)
        else:
            self._waiting.append(index)

    def _send(self, connection: Connection, index: int) -> None:
        self._carried[index] = connection
        connection.send(index, self._encode(index), time.monotonic())

    def _give_work(self, connection: Connection, first: deque[int]) -> None:
        for line in (first, self._waiting):
            while line:
                index = line.popleft()
                if not self.sheet.is_closed(index):
                    self._send(connection, index)
                    return
        self._pool.give_back(connection)

    def _expire(self, elapsed_s: float) -> None:
        """Time out what is due; the timeout is the same for all, so the order of launch is that of expiry."""
        oldest_s = elapsed_s - self.options.timeout_s
        while self._launched:
            index = self._launched[0]
            if not self.sheet.is_closed(index):
                if self._offsets[index] > oldest_s:
                    return
                self._give_up(index, Ending.TIMEOUT)
            self._launched.popleft()

    def _drain(self, elapsed_s: float) -> bool:
        """Whether the run is over: nothing in flight, or waited long enough."""
        if self._drained_s is None:
            self._drained_s = elapsed_s + self.options.drain_s
        if self._in_flight and elapsed_s >= self._drained_s:
            for index in list(self._launched):
                if not self.sheet.is_closed(index):
                    self._give_up(index, Ending.UNANSWERED)
        return not self._in_flight

    def _give_up(self, index: int, ending: Ending) -> None:
        connection = self._carried.pop(index, None)
        if connection is not None:
            connection.abort()
        self._fail(index, ending)

    def _fail(self, index: int, ending: Ending) -> None:
        response_s = self.elapsed_s - self._offsets[index]
        self.sheet.close(index, ending, response_s)
        self._settle(index, ending, response_s)

    def _settle(self, index: int, ending: Ending, response_s: float) -> None:
        self._in_flight -= 1
        self._carried.pop(index, None)
        self._observe(index, ending, response_s)

    def _observe(self, index: int, ending: Ending, response_s: float) -> None:
        if self._observer is not None:
            self._observer(index, ending, response_s)
