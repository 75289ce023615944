"""Estimates of the wait in the queue: whether a request may wait, and when a rejected one should return."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from autoglm_throttle.limiting.adaptive_limit import AdaptiveLimit
from autoglm_throttle.limiting.decisions import seconds_until
from autoglm_throttle.limiting.engine_limits import EngineLimits
from autoglm_throttle.limiting.first_token import FirstTokenEstimator
from autoglm_throttle.limiting.queue import PriorityQueues
from autoglm_throttle.limiting.ticket import Ticket
from autoglm_throttle.limiting.work_class import WorkClass
from autoglm_throttle.types import Decision, Demand, Priority, Reason

RETRY_MAX_S = 54.0  # Longest time told: clients follow a Retry-After up to a minute, and jitter adds a tenth

# Share of the service rate kept for returning requests; the others come for the first time. [simulated: the
# whole rate lets 83 % of the calls of a crowd fail, half of it none]
RETRY_SHARE = 0.5

LATE_TOKEN: Final = "queue:first_token"  # noqa: S105 - detail of a rejection: its first token would be late

TURNS_MAX: Final = 10_000  # Users whose turns are remembered

_QUEUE = Reason.QUEUE


class Place(NamedTuple):
    """The place in the queue of a new request."""

    max_wait_s: float  # Longest useful wait
    excess: int  # Tickets that must leave before it may wait; 0 or less: it may wait now
    late_s: float  # Seconds by which its first token would miss its objective


class QueueWait:
    """Estimates waits from the queues and the measured rate, and assigns turns to the rejected requests.

    The turns follow one another at half of the service rate.
    ``free`` is the number of slots that no request holds; below 0 in a dry run, in which requests run above
    the limit and count as queued ones.
    """

    __slots__ = (
        *("_engine", "_last_turn_s", "_queues", "_service", "_would_wait", "dry_run", "queue_max", "turns"),
    )

    def __init__(
        self, adaptive: AdaptiveLimit, queues: PriorityQueues, queue_max: int, now: float, *, dry_run: bool
    ) -> None:
        self._engine = adaptive.engine
        self._service = adaptive.service
        self._queues = queues
        self.queue_max: int = queue_max  # Most tickets of one priority
        self.dry_run: bool = dry_run
        # Requests in flight, by priority, that would be tickets without the dry run.
        self._would_wait = [0, 0, 0]
        self._last_turn_s = now
        self.turns: dict[str, float] = {}  # The newest turn of each rejected user, the oldest first

    def place(self, demand: Demand, work_class: WorkClass, free: int, waiting: int, now: float) -> Place:
        """Return the place in the queue of a new request, of which ``waiting`` requests stand in it."""
        engine, service = self._engine, self._service
        in_turn = bool(self.turns) and self.take_turn(demand.user, now)
        max_wait_s = service.max_wait_s(work_class, demand.slo_s, in_turn=in_turn)
        late_s = 0.0
        if engine.first_tokens is not None:
            max_wait_s = min(max_wait_s, engine.first_token_wait_s(demand.rank))
            late_s = self._late_s(demand, engine, engine.first_tokens, free)
        # With no time to wait it may only take a slot that no ticket waits for.
        queue_s = max_wait_s
        if demand.rank and service.rate_rps:
            queue_s = engine.queue_s(max_wait_s, service.latency_s)
        excess = self.excess(demand, queue_s, free) if max_wait_s else waiting + 1
        return Place(max_wait_s, max(1, excess) if late_s else excess, late_s)

    def _late_s(self, demand: Demand, engine: EngineLimits, first: FirstTokenEstimator, free: int) -> float:
        """Return the seconds by which the first token of a new request would miss its objective."""
        objective_s, rate = engine.first_token_slos[demand.rank], first.rate
        if objective_s is None or not rate:
            return 0.0
        share = self._service.remaining_rps(demand.rank, rate) / rate
        return first.late_s(self._ahead(demand, free) - max(0, free), objective_s, share)

    def excess(self, demand: Demand, max_wait_s: float, free: int) -> int:
        """Count the tickets that must leave before a new request may wait; 0 or less: it may wait now."""
        ahead = self._ahead(demand, free)
        if free > 0:  # the limit has just grown: the tickets ahead are about to be called
            ahead -= free
        # Until the rate is known, all may wait: whether they wait too long is not known either.
        return ahead - self._service.limit(demand.priority, max_wait_s, self.queue_max)

    def wait_s(self, demand: Demand, excess: int, free: int, opened_s: float, now: float) -> float:
        """Estimate the seconds until a new request may wait, at the measured rate without other arrivals.

        ``excess`` is that of `excess`. The measurement that began at ``opened_s`` may know more at its end.
        """
        rate = self._service.rate_rps
        ends_s = opened_s + self._service.longest_s
        if rate is None:
            return seconds_until(ends_s, now)
        if self._service.remaining_rps(demand.priority, rate):
            return max(0, excess) / rate
        return max(seconds_until(ends_s, now), self._ahead(demand, free) / rate)

    def rejected(
        self, demand: Demand, place: Place, free: int, opened_s: float, now: float
    ) -> tuple[str, float]:
        """Return why a new request may not wait, and the seconds until it may; arguments as of `wait_s`."""
        if 0.0 < place.late_s < math.inf:
            return LATE_TOKEN, place.late_s
        if place.excess > 0:
            return "queue:slow", self.wait_s(demand, place.excess, free, opened_s, now)
        rate = self._service.rate_rps
        return "queue:full", 1 / rate if rate else self._service.latency_s

    def expired(
        self, ticket: Ticket, free: int, waiting: int, opened_s: float, now: float
    ) -> tuple[str, float]:
        """Return why a ticket has expired, and the seconds until its request may wait again."""
        demand = ticket.demand
        max_wait_s = self._service.max_wait_s(ticket.work_class, demand.slo_s)
        excess = self.excess(demand, max_wait_s, free) if max_wait_s else waiting + 1
        detail = "queue:timeout" if now >= ticket.deadline_s else "queue:full"
        return detail, self.wait_s(demand, excess, free, opened_s, now)

    def has_place(self, demand: Demand, free: int) -> bool:
        """Whether the queue of its priority is not full; in a dry run with those that would be in it."""
        queued = len(self._queues.all[demand.rank + 1].tickets)
        if self.dry_run:
            queued += self.would_wait(free)[demand.rank]
        return queued < self.queue_max

    def _ahead(self, demand: Demand, free: int) -> int:
        """Count the tickets ahead of a new request; in a dry run, the requests that would be such tickets."""
        ahead = self._queues.count_ahead(demand.priority, demand.user)
        return ahead + sum(self.would_wait(free)[: demand.priority + 1]) if self.dry_run else ahead

    def would_wait(self, free: int) -> list[int]:
        """Count, by priority, the requests in flight that would be queued without the dry run.

        Slots that became free since the last call go to the most important of them, as in `pop_ready`.
        """
        unused = sum(self._would_wait) - max(0, -free)
        for priority in Priority:
            called = max(0, min(self._would_wait[priority], unused))
            self._would_wait[priority] -= called
            unused -= called
        return self._would_wait

    def rejection(
        self, user: str, detail: str, wait_s: float, capacity: int, free: int, now: float
    ) -> Decision:
        """Build a rejection that tells the turn of the request among all rejected ones."""
        rate = self._service.rate_rps
        retry_s = wait_s
        if rate:
            # A whole answer takes longer than the objective of a first token.
            least_s = 0.0 if detail == LATE_TOKEN else 2.0 * self._service.latency_s
            retry_s = max(wait_s, least_s, self.next_turn_s(user, rate, now))
        return Decision(False, _QUEUE, detail, "queue", capacity, max(0, free), retry_s, retry_s)

    def next_turn_s(self, user: str, rate_rps: float, now: float) -> float:
        """Assign the next turn to a user, and return the seconds until it; at most `RETRY_MAX_S`."""
        turn_s = max(self._last_turn_s, now) + 1.0 / (RETRY_SHARE * rate_rps)
        self._last_turn_s = turn_s = min(turn_s, now + RETRY_MAX_S)
        turns = self.turns
        if user:  # without one nobody can be told from the others
            turns.pop(user, None)
            turns[user] = turn_s
        if len(turns) > TURNS_MAX:
            del turns[next(iter(turns))]
        return turn_s - now

    def take_turn(self, user: str, now: float) -> bool:
        """Return whether a user has returned in its turn, which is then used up; not before it."""
        is_turn = now >= self.turns.get(user, math.inf)
        if is_turn:
            del self.turns[user]
        return is_turn

    def backlog_s(self, now: float) -> float:
        """Return the seconds until the last turn that was assigned; 0 if all are over."""
        return max(0.0, self._last_turn_s - now)
