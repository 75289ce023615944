"""Passes requests of an event loop to the simulated device and returns their results."""

from __future__ import annotations

import asyncio
import itertools
import math

from autoglm_throttle.traffic.simulate.gpu import SimulatedGpu
from autoglm_throttle.traffic.simulate.spec import Done, Item


class BatchQueue:
    """Completes the futures of finished requests with one timer, set to the device's next event.

    Work of a disconnected client continues, unless it is cancelled. Event loops may follow each other, as
    under a test client, but only one at a time may use a queue.
    """

    def __init__(self, sim: SimulatedGpu) -> None:
        self.sim = sim
        self._waiting: dict[int, asyncio.Future[Done]] = {}
        self._ids = itertools.count(1)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._armed_s = math.inf

    def submit(self, context_tokens: int, tokens: int) -> tuple[int, asyncio.Future[Done]]:
        """Submit a request and return its number and the future of its result."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._armed_s = loop, math.inf
        number = next(self._ids)
        future: asyncio.Future[Done] = loop.create_future()
        self._waiting[number] = future
        self.sim.submit(Item(number, context_tokens, tokens), self.sim.clock())
        self._set_timer()
        return number, future

    def cancel(self, number: int) -> None:
        """Cancel a request, as far as the device still can."""
        self.sim.cancel(number, self.sim.clock())
        self.start_next()

    def start_next(self) -> None:
        """Complete the futures of finished requests and set the timer; also called after a fault."""
        for done in self.sim.advance(self.sim.clock()):
            future = self._waiting.pop(done.id)
            if not future.done():
                future.set_result(done)
        self._set_timer()

    def _set_timer(self) -> None:
        due_s = self.sim.next_event()
        if due_s is None or due_s >= self._armed_s or self._loop is None:
            return
        self._armed_s = due_s
        self._loop.call_later(max(0.0, due_s - self.sim.clock()), self._on_timer, due_s)

    def _on_timer(self, armed_s: float) -> None:
        # Timers are not cancelled: a replaced one still fires, and must not clear the newer one.
        if armed_s == self._armed_s:
            self._armed_s = math.inf
        self.start_next()
