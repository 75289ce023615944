"""A fleet in simulated time: workers with leases, a store, arrivals, and beside them one exact bucket."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from autoglm_throttle.limiting.token_bucket import TokenBucket
from autoglm_throttle.settings.groups.control import RateSettings
from autoglm_throttle.settings.groups.store import FleetSettings
from autoglm_throttle.store.fleet import LeasedBuckets
from autoglm_throttle.types import Decision, Demand, Priority
from tests.store.bucket_store import BucketStore

TRIP_S = 0.0005
"""Half of a round trip to the store."""

HEARTBEAT_S = 5.0
TIMEOUT_S = 0.25


@dataclass
class Worker:
    """One process: its leases, and what its thread does."""

    name: str
    leases: LeasedBuckets
    calls: int = 0
    busy: bool = False
    dead: bool = False
    beat_s: float = 0.0
    alarm_s: float = -1.0
    waiting: dict[int, Demand] = field(default_factory=dict)


class Crowd:
    """Events in the order of their time."""

    def __init__(
        self, workers: int, rate: float, burst_s: float, *, seed: int = 1, trip_s: float = TRIP_S
    ) -> None:
        self.now = 0.0
        self.store = BucketStore()
        self.random = random.Random(seed)
        self.trip_s = trip_s
        self.away = False
        self.rate, self.burst = rate, max(1.0, rate * burst_s)
        self.exact = TokenBucket(rate, self.burst, 0.0)
        self.admitted: list[tuple[float, float]] = []
        self.exact_admitted = 0.0
        self.refused = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        rates = RateSettings(rate_high_rps=rate, rate_mid_rps=rate, rate_low_rps=rate, burst_s=burst_s)
        self.workers = [Worker(f"w{n}", LeasedBuckets(rates, FleetSettings(), 0.0)) for n in range(workers)]
        for worker in self.workers:
            worker.leases.wake = partial(self._wake, worker)
            self._beat(worker)

    def at(self, when: float, what: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (when, self._number, what))

    def run(self, until_s: float) -> None:
        while self._events and self._events[0][0] <= until_s:
            when, _, what = heapq.heappop(self._events)
            self.store.clock_us += round((when - self.now) * 1e6)
            self.now = when
            what()
        self.store.clock_us += round((until_s - self.now) * 1e6)
        self.now = until_s

    def arrive(self, worker: Worker, demand: Demand) -> None:
        if worker.dead:
            worker = next(other for other in self.workers if not other.dead)
        if not self.exact.take(demand.cost, self.now):
            self.exact_admitted += demand.cost
        self.decide(worker, demand)

    def kill(self, worker: Worker) -> None:
        worker.dead = True

    def decide(self, worker: Worker, demand: Demand) -> None:
        if worker.leases.is_decidable(demand, self.now):
            paid = worker.leases.take(demand, self.now)
            if isinstance(paid, Decision):
                self.refused += 1
            else:
                self.admitted.append((self.now, demand.cost))
            return
        self._number += 1
        token = self._number
        worker.waiting[token] = demand
        patience = worker.leases.add_waiter(token, demand, self.now)
        self.at(self.now + patience, lambda: self._again(worker, token))

    def _again(self, worker: Worker, token: int) -> None:
        if not worker.dead and token in worker.waiting:
            demand = worker.waiting.pop(token)
            worker.leases.remove_waiter(token, demand, self.now)
            self.decide(worker, demand)

    def _beat(self, worker: Worker) -> None:
        if not worker.dead:
            self._work(worker)
            self.at(self.now + HEARTBEAT_S, lambda: self._beat(worker))

    def _work(self, worker: Worker) -> None:
        if worker.busy or worker.dead:
            return
        figures = worker.leases.next_request(self.now, beat=self.now >= worker.beat_s)
        if figures is None:
            due = worker.leases.due_s()
            if worker.alarm_s <= self.now and due < float("inf"):
                worker.alarm_s = max(due, self.now + 0.001)
                self.at(worker.alarm_s, lambda: self._work(worker))
            return
        worker.busy = True
        worker.calls += 1
        worker.beat_s = self.now + HEARTBEAT_S
        self.at(self.now + self.trip_s, lambda: self._served(worker, figures))

    def cut(self, away: bool) -> None:
        """Take the store away from all, or bring it back."""
        self.away = away

    def _lose(self, worker: Worker) -> None:
        worker.busy = False
        worker.leases.store_lost(self.now)
        worker.beat_s = self.now + self.random.uniform(0.8, 1.2)
        self.at(worker.beat_s, lambda: self._work(worker))
        for token in list(worker.waiting):
            self._again(worker, token)

    def _served(self, worker: Worker, figures: list[int]) -> None:
        if self.away:
            self.at(self.now + TIMEOUT_S, lambda: self._lose(worker))
            return
        reply = self.store.call(worker.name, 15_000_000, figures)
        self.at(self.now + self.trip_s, lambda: self._told(worker, reply))

    def _told(self, worker: Worker, reply: list[int]) -> None:
        worker.busy = False
        if worker.dead:
            return
        worker.leases.apply_reply(reply, self.now)
        for token in list(worker.waiting):
            self._again(worker, token)
        self._work(worker)

    def _wake(self, worker: Worker) -> None:
        self.at(self.now, partial(self._work, worker))

    def traffic(self, rps: float, until_s: float, share_of_first: float | None = None) -> None:
        """Poisson arrivals, even over the workers or mostly to the first."""
        when = self.now
        while True:
            when += self.random.expovariate(rps)
            if when >= until_s:
                return
            if share_of_first is not None and self.random.random() < share_of_first:
                worker = self.workers[0]
            else:
                worker = self.random.choice(self.workers)
            self.at(when, partial(self.arrive, worker, Demand(Priority.MID)))

    def leased(self) -> float:
        return sum(lease.tokens(self.now) for w in self.workers for lease in w.leases.all if not w.dead)

    def peak(self) -> float:
        """The most that was admitted above the rate in any stretch of time, in tokens."""
        worst = level = last = 0.0
        for when, cost in self.admitted:
            level = max(0.0, level - (when - last) * self.rate) + cost
            last, worst = when, max(worst, level)
        return worst
