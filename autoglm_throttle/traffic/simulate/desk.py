"""Carries requests of an event loop to the simulated device and their ends back."""

from __future__ import annotations

import asyncio
import itertools
import math

from autoglm_throttle.traffic.simulate.gpu import SimGpu
from autoglm_throttle.traffic.simulate.spec import Done, Item


class Desk:
    """One timer, set to the device's next event, wakes whoever is done.

    Work of a client that left goes on, unless it is cancelled. Loops may follow each other,
    as under a test client, but only one at a time uses a desk.
    """

    def __init__(self, sim: SimGpu) -> None:
        self.sim = sim
        self._waiting: dict[int, asyncio.Future[Done]] = {}
        self._ids = itertools.count(1)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._armed_s = math.inf

    def submit(self, context_tokens: int, tokens: int) -> tuple[int, asyncio.Future[Done]]:
        """Hand a request over: its number, and where its end will be told."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._armed_s = loop, math.inf
        number = next(self._ids)
        future: asyncio.Future[Done] = loop.create_future()
        self._waiting[number] = future
        self.sim.submit(Item(number, context_tokens, tokens), self.sim.clock())
        self._arm()
        return number, future

    def cancel(self, number: int) -> None:
        """Give a request up, as far as the device still can."""
        self.sim.cancel(number, self.sim.clock())
        self.pump()

    def pump(self) -> None:
        """Tell what ended and set the timer to what ends next; to be called after a fault, too."""
        for done in self.sim.advance(self.sim.clock()):
            future = self._waiting.pop(done.id)
            if not future.done():
                future.set_result(done)
        self._arm()

    def _arm(self) -> None:
        due_s = self.sim.next_event()
        if due_s is None or due_s >= self._armed_s or self._loop is None:
            return
        self._armed_s = due_s
        self._loop.call_later(max(0.0, due_s - self.sim.clock()), self._ring, due_s)

    def _ring(self, armed_s: float) -> None:
        if armed_s == self._armed_s:
            self._armed_s = math.inf
        self.pump()
