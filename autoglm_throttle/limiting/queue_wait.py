"""Estimates of the wait in the queue: whether a request may wait, and when a rejected one should return."""

from __future__ import annotations

from autoglm_throttle.limiting.decisions import seconds_until
from autoglm_throttle.limiting.queue import PriorityQueues, RetrySchedule
from autoglm_throttle.limiting.service_estimator import ServiceEstimator
from autoglm_throttle.types import Decision, Demand, Reason

_QUEUE = Reason.QUEUE


class QueueWait:
    """Estimates waits from the queues and the measured service rate.

    ``free`` is the number of slots that no request holds; below 0 in a dry run, in which requests run above
    the limit and count as queued ones.

    Args:
        service: the measured rates.
        queues: the tickets.
        queue_max: most tickets of one priority.
        dry_run: whether requests run above the limit.
        now: monotonic seconds.
    """

    __slots__ = ("_dry_run", "_queue_max", "_queues", "_service", "retries")

    def __init__(
        self, service: ServiceEstimator, queues: PriorityQueues, queue_max: int, now: float, *, dry_run: bool
    ) -> None:
        self._service = service
        self._queues = queues
        self._queue_max = queue_max
        self._dry_run = dry_run
        self.retries: RetrySchedule = RetrySchedule(now)

    def excess(self, demand: Demand, max_wait_s: float, free: int) -> int:
        """Count the tickets that must leave before a new request may wait; 0 or less: it may wait now."""
        ahead = self.ahead(demand, free)
        if free > 0:  # the limit has just grown: the tickets ahead are about to be called
            ahead -= free
        # Until the rate is known, all may wait: whether they wait too long is not known either.
        return ahead - self._service.limit(demand.priority, max_wait_s, self._queue_max)

    def wait_s(self, demand: Demand, excess: int, free: int, opened_s: float, now: float) -> float:
        """Estimate the seconds until a new request may wait, at the measured rate without other arrivals.

        Args:
            demand: of the request.
            excess: as of `excess`.
            free: unused slots.
            opened_s: when the present measurement began: the next one may know more.
            now: monotonic seconds.
        """
        rate = self._service.rate_rps
        ends_s = opened_s + self._service.longest_s
        if rate is None:
            return seconds_until(ends_s, now)
        if self._service.remaining_rps(demand.priority, rate):
            return max(0, excess) / rate
        return max(seconds_until(ends_s, now), self.ahead(demand, free) / rate)

    def ahead(self, demand: Demand, free: int) -> int:
        """Count the tickets ahead of a new request; in a dry run, the requests that would be such tickets."""
        ahead = self._queues.count_ahead(demand.priority, demand.user)
        return ahead + sum(self.would_wait(free)[: demand.priority + 1]) if self._dry_run else ahead

    def would_wait(self, free: int) -> list[int]:
        """Count, by priority, the requests in flight that would be queued without the dry run.

        Slots that became free since the last call go to the most important of them, as in `pop_ready`.
        """
        if self._dry_run:
            self._queues.call_would_wait(max(0, -free))
        return self._queues.would_wait

    def rejection(
        self, user: str, detail: str, wait_s: float, capacity: int, free: int, now: float
    ) -> Decision:
        """Build a rejection that tells the turn of the request among all rejected ones."""
        rate = self._service.rate_rps
        retry_s = wait_s
        if rate:
            retry_s = max(wait_s, 2.0 * self._service.latency_s, self.retries.next_turn_s(user, rate, now))
        return Decision(False, _QUEUE, detail, "queue", capacity, max(0, free), retry_s, retry_s)
