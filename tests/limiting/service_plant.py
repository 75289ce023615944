"""A service behind a gate, in virtual time: what a test drives when it needs both."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Sequence

from autoglm_throttle.limiting.concurrency_limiter import (
    AdaptiveConcurrencyLimiter,
    Ticket,
    TicketState,
)
from autoglm_throttle.settings.groups.control import ConcurrencySettings
from autoglm_throttle.types import Demand, Outcome, Priority
from tests.limiting.measured_limiters import MEMORY_TARGET, release


class Memory:
    """The memory of a card, of which each request takes a part.

    Args:
        keeps: what was once taken is never given back.
        each: share of the card that a request needs.
        idle: fill without requests.
    """

    def __init__(self, *, keeps: bool, each: float, idle: float = 0.4) -> None:
        self.keeps = keeps
        self.each = each
        self.idle = idle
        self.most = 0
        """Requests inside at once."""

    def take(self, inside: int) -> None:
        """So many are inside now."""
        self.most = max(self.most, inside)

    def ratio(self, inside: int) -> float:
        """The fill."""
        return min(1.0, self.idle + self.each * (self.most if self.keeps else inside))


class Plant:
    """Finishes requests at ``rate`` per second in order, each at least ``latency_s`` after its start.

    Args:
        settings: of the limiter.
        rate: requests per second.
        latency_s: of one request alone.
        seed: of the arrivals.
        memory: what requests take of it, told to the gate once a second; None: nobody can tell.
    """

    def __init__(
        self,
        settings: ConcurrencySettings,
        rate: float,
        latency_s: float = 0.05,
        seed: int = 1,
        memory: Memory | None = None,
    ) -> None:
        self.limiter = AdaptiveConcurrencyLimiter(settings, 0.0, memory_target=MEMORY_TARGET)
        self.rate = rate
        self.latency_s = latency_s
        self.now = 0.0
        self.offered: Counter[Priority] = Counter()
        self.served: Counter[Priority] = Counter()
        """Slots given, by class."""
        self.refused: Counter[Priority] = Counter()
        self._free_at = 0.0
        self._ends: list[tuple[float, float, int]] = []
        self._waiting: dict[Ticket, None] = {}
        self._random = random.Random(seed)
        self._memory = memory
        self._told_s = 0.0

    def run(self, seconds: float, demand_rps: Sequence[float]) -> None:
        """Let Poisson demand of high, mid and low come for so long."""
        end, total = self.now + seconds, sum(demand_rps)
        arrival = self.now + self._random.expovariate(total)
        while arrival < end:
            self._tell_until(arrival)
            self._finish_until(arrival)
            self.now = arrival
            self._arrive(self._random.choices(list(Priority), demand_rps)[0])
            arrival += self._random.expovariate(total)
        self._finish_until(end)
        self.now = end

    def forget(self) -> None:
        """Start counting anew."""
        for counted in (self.offered, self.served, self.refused):
            counted.clear()

    def _tell_until(self, instant: float) -> None:
        while self._memory and self._told_s <= instant:
            self._finish_until(self._told_s)
            self.limiter.update_memory(self._memory.ratio(self.limiter.in_flight))
            self._told_s += 1.0

    def _arrive(self, priority: Priority) -> None:
        self.offered[priority] += 1
        demand, kind = Demand(priority), self.limiter.work_classes[""]
        slot = self.limiter.try_acquire(demand, kind, self.now)
        if slot:
            self._start(priority, slot)
        else:
            got = self.limiter.enqueue(demand, kind, self.now)
            if not isinstance(got, Ticket):
                self.refused[priority] += 1
            elif got.state is TicketState.CALLED:
                self._start(priority, got.slot)
        self._ready()

    def _start(self, priority: Priority, slot: int) -> None:
        self.served[priority] += 1
        if self._memory:
            self._memory.take(self.limiter.in_flight)
        self._free_at = max(self._free_at, self.now) + 1 / self.rate
        heapq.heappush(self._ends, (max(self._free_at, self.now + self.latency_s), self.now, slot))

    def _ready(self) -> None:
        for ticket in self.limiter.pop_ready(self.now):
            if ticket.state is TicketState.CALLED:
                self._start(ticket.demand.priority, ticket.slot)
            else:
                self.refused[ticket.demand.priority] += 1

    def _finish_until(self, instant: float) -> None:
        while self._ends and self._ends[0][0] <= instant:
            self.now, started_s, slot = heapq.heappop(self._ends)
            release(self.limiter, started_s, Outcome.SUCCESS, self.now, slot)
            self._ready()
