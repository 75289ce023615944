"""Adaptive concurrency limit with a bounded priority queue.

The limit follows Little's law: measured service rate times a latency budget.
It moves only in periods in which a request found it reached.
A request that finds no slot is queued, unless its wait could not end in time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from autoglm_throttle.limiting.instant import seconds_until
from autoglm_throttle.limiting.memory_cap import MemoryCap
from autoglm_throttle.limiting.queue import RESERVED_QUEUE, PriorityQueues
from autoglm_throttle.limiting.reserved_share import RESERVED_MAX_WAIT, ReservedShare
from autoglm_throttle.limiting.service_estimator import RunningPeriod, ServiceEstimator
from autoglm_throttle.limiting.ticket import CALLED, CANCELLED, EXPIRED, WAITING, Ticket, TicketState
from autoglm_throttle.settings.groups.control import ConcurrencySettings
from autoglm_throttle.types import ConcurrencyView, Decision, Demand, LimiterReport, Outcome, Priority, Reason

__all__ = ["AdaptiveConcurrencyLimiter", "Ticket", "TicketState"]

_SUCCESS, _SLOW, _FAILURE = Outcome.SUCCESS, Outcome.SLOW, Outcome.FAILURE
_QUEUE = Reason.QUEUE
_HIGH = Priority.HIGH
_NO_TICKETS: Sequence[Ticket] = ()


class AdaptiveConcurrencyLimiter:
    """Limit the requests in flight, and queue the others in four queues.

    Every method takes ``now`` in monotonic seconds. A clock that goes back counts as standing still.
    Not thread-safe: callers hold one lock.

    Args:
        settings: the settings of the limit and the queue.
        now: monotonic seconds.
        memory_target: share of the fullest device that may be full, in (0, 1].
        workers: processes that share the first limit.
        dry_run: queue no request: it runs above the limit and counts as a queued one.
    """

    __slots__ = (
        *("_dry_run", "_queue_max", "_rejected", "capacity", "in_flight", "limit"),
        *("memory", "period", "queues", "service", "settings", "waiting"),
    )

    def __init__(
        self,
        settings: ConcurrencySettings,
        now: float,
        *,
        memory_target: float,
        workers: int = 1,
        dry_run: bool = False,
    ) -> None:
        self.settings: ConcurrencySettings = settings
        # Attributes of a pydantic model take twice as long to read: requests read those of plain objects.
        self._queue_max = settings.queue_max
        self._dry_run = dry_run
        self.service: ServiceEstimator = ServiceEstimator(settings)
        self.memory: MemoryCap = MemoryCap(memory_target)
        self.queues: PriorityQueues = PriorityQueues(ReservedShare(settings.min_share, now))
        self.period: RunningPeriod = RunningPeriod(now)
        self.in_flight: int = 0
        """Slots in use."""
        self.waiting: int = 0
        """Tickets in all queues."""
        self.limit: float = 0.0
        """Requests that may be in flight, before the memory cap and the hard limit apply."""
        self.capacity: int = 0
        """Requests that may be in flight."""
        self._rejected = 0
        first_limit = max(settings.inflight_floor, math.ceil(settings.inflight_start / workers))
        self._begin_period(float(first_limit))

    def __repr__(self) -> str:
        occupancy = f"{self.in_flight} of {self.capacity} in flight"
        return f"AdaptiveConcurrencyLimiter({occupancy}, {self.waiting} waiting)"

    def record_arrival(self, priority: Priority, now: float) -> None:
        """Record an arrival that an earlier limit rejected: it counts as demand."""
        self._tick(now)
        self.period.arrived[priority] += 1

    def try_acquire(self, demand: Demand, now: float) -> bool:
        """Record an arrival; True if it got a slot: one was free and no request was queued ahead."""
        period = self.period
        if period.latest_s <= now < period.due_s:
            period.latest_s = now
        else:
            now = self._tick(now)
        period.arrived[demand.priority] += 1
        in_flight = self.in_flight
        if in_flight >= self.capacity or (self.waiting and self.queues.count_ahead(demand.priority)):
            period.limited = True
            return False
        self.in_flight = in_flight = in_flight + 1
        period.starts_s += now
        if in_flight > period.peak:
            period.peak = in_flight
        return True

    def enqueue(self, demand: Demand, now: float) -> Ticket | Decision:
        """Queue a demand that `try_acquire` has just rejected; its arrival is not counted again.

        Returns:
            A waiting ticket; a called ticket, if the reserved share gives it a slot at once;
            or the rejection, if the wait could not end in time or the queue is full.
        """
        now = self._tick(now)
        priority = demand.priority
        max_wait_s = self.service.max_wait_s(demand.slo_s or self.service.slo_s)
        excess = self._excess(priority, max_wait_s)
        if (
            excess <= 0
            and len(self.queues.all[priority + 1]) + self._would_wait()[priority] < self._queue_max
        ):
            return self._append(Ticket(demand, now, max_wait_s, priority + 1))
        ticket = self.enqueue_reserved(demand, now)
        if ticket is not None:
            return ticket
        self._rejected += 1
        if excess > 0:
            return self._build_rejection("queue:slow", self._retry_s(priority, excess, now))
        rate = self.service.rate_rps
        return self._build_rejection("queue:full", 1 / rate if rate else self.service.latency_s)

    def enqueue_reserved(self, demand: Demand, now: float) -> Ticket | None:
        """Queue a rejected mid or low demand on the reserved share, if credit is left.

        Returns:
            A ticket that was called at once or waits in the first queue, or None.
        """
        now = self._tick(now)
        rate = self.service.rate_rps
        if rate is None or demand.priority is _HIGH or not self.queues.reserved.take(rate, now):
            return None
        slo_s = demand.slo_s or self.service.slo_s
        ticket = Ticket(demand, now, RESERVED_MAX_WAIT * slo_s, RESERVED_QUEUE)
        if self.queues.all[RESERVED_QUEUE] or self.in_flight >= self.capacity:
            self.period.limited = True
            return self._append(ticket)
        self._occupy(now)
        ticket.state = CALLED
        ticket.called_s = now
        return ticket

    def release(self, started_s: float, outcome: Outcome, now: float) -> None:
        """Release the slot of a request that ended.

        Args:
            started_s: when it got its slot.
            outcome: neutral outcomes, and failures faster than half of the unloaded latency, are not
                measured as service time.
            now: monotonic seconds.
        """
        period = self.period
        if period.latest_s <= now < period.due_s:
            period.latest_s = now
        else:
            now = self._tick(now)
        self.in_flight -= 1
        period.starts_s -= now
        if (
            outcome is _SUCCESS
            or outcome is _SLOW
            or (outcome is _FAILURE and now - started_s >= period.failure_s)
        ):
            period.done += 1
            period.total_s += now - started_s

    def cancel(self, ticket: Ticket, now: float) -> None:
        """Cancel a ticket: remove it from its queue, or release the slot it was called to.

        Does nothing for an expired or cancelled ticket.
        Once the request of a called ticket has begun, end it with `release` instead.
        """
        now = self._tick(now)
        if ticket.state is WAITING:
            ticket.state = CANCELLED
            del self.queues.all[ticket.queue_index][ticket]
            self.waiting -= 1
        elif ticket.state is CALLED:
            ticket.state = CANCELLED
            self.in_flight -= 1
            self.period.starts_s -= now

    def expire(self, ticket: Ticket, now: float) -> bool:
        """Expire a ticket that still waits after its maximum wait; True if this call expired it."""
        now = self._tick(now)
        if ticket.state is not WAITING or now < ticket.arrived_s + ticket.max_wait_s:
            return False
        ticket.state = EXPIRED
        del self.queues.all[ticket.queue_index][ticket]
        self.waiting -= 1
        self._rejected += 1
        return True

    def pop_ready(self, now: float) -> Sequence[Ticket]:
        """Give free slots to the tickets at the head of the queues, and expire overdue heads.

        Call it after everything that may free a slot or raise the limit.

        Returns:
            The tickets that were called or expired, in order.
        """
        if not self.waiting:
            return _NO_TICKETS
        now = self._tick(now)
        ended: list[Ticket] = []
        for queue in self.queues.all:
            while queue and self._end_wait(next(iter(queue)), now):
                ended.append(queue.popitem(last=False)[0])
        self.waiting -= len(ended)
        return ended

    def rejection(self, ticket: Ticket, now: float) -> Decision:
        """Build the rejection of an expired ticket."""
        now = self._tick(now)
        demand = ticket.demand
        max_wait_s = self.service.max_wait_s(demand.slo_s or self.service.slo_s)
        excess = self._excess(demand.priority, max_wait_s)
        return self._build_rejection("queue:timeout", self._retry_s(demand.priority, excess, now))

    def occupy_over_limit(self, priority: Priority) -> None:
        """Count a request in flight above the limit: in a dry run it runs in spite of its rejection."""
        would_wait = self._would_wait()
        self._occupy(self.period.latest_s)
        if self._dry_run and self.in_flight > self.capacity:
            would_wait[priority] += 1

    def close_period(self, now: float) -> None:
        """Close the period if it is over; call it at least once in a period."""
        self._tick(now)

    def update_memory(self, ratio: float | None) -> None:
        """Update the memory cap with the fill of the fullest device, 0..1; with None the last cap stays."""
        if ratio is None:
            return
        # No request has ever been in flight: the fill is the idle one.
        untouched = self.service.unloaded_s is None and not self.in_flight
        self.memory.learn(ratio, self.in_flight, self.period.peak, untouched=untouched)
        self.capacity = int(self._bound(self.limit))

    def report(self) -> LimiterReport:
        """Report to the control loop: rejections since the last report, service rate, and limit."""
        rejected, self._rejected = self._rejected, 0
        return LimiterReport(
            rejected > 0 or self.waiting + self._over_capacity() > 0,
            self.service.rate_rps,
            self.in_flight,
            self._bound(self.limit),
        )

    def view(self, now: float) -> ConcurrencyView:
        """Return all figures at ``now``."""
        self._tick(now)
        service, memory = self.service, self.memory
        high, mid, low = service.demand_rps
        limit, rate = self._bound(self.limit), service.rate_rps
        return ConcurrencyView(
            limit=limit,
            in_flight=self.in_flight,
            waiting=self.queues.waiting(),
            service_rps=rate,
            demand_rps=(high, mid, low),
            latency_s=service.latency_s,
            unloaded_s=service.unloaded_s,
            budget_s=service.budget_s,
            memory_cap=memory.requests,
            memory_blind=memory.blind,
            slo_unreachable=service.slo_unreachable,
            pressure=(high + mid + low) / rate if rate and service.measured else self.in_flight / limit,
        )

    def _tick(self, now: float) -> float:
        """Record the time, and close a period that is over; returns the latest time so far."""
        period = self.period
        if now < period.latest_s:  # a clock that went back must not give a period of negative length
            return period.latest_s
        period.latest_s = now
        if now >= period.due_s:
            self._end_period(now)
        return now

    def _end_period(self, now: float) -> None:
        if now < self._period_ends_s() and self.period.done < self.settings.period_completions:
            return
        period = self.period.close(now, self.in_flight)
        self.memory.peak = max(self.memory.peak, period.peak)
        self._begin_period(self.service.learn(period, self.limit))

    def _period_ends_s(self) -> float:
        """Return when the period ends with any number of completions."""
        return self.period.opened_s + self.service.longest_s

    def _begin_period(self, limit: float) -> None:
        """Apply a limit, and what has been learnt, to the period that begins."""
        service, period = self.service, self.period
        self.limit = self._bound(limit)
        if service.unloaded_s is not None:
            period.failure_s = service.unloaded_s / 2
        lasts_s = max(self.settings.period_s, min(service.latency_s, service.longest_s))
        period.due_s = period.opened_s + lasts_s
        self.capacity = int(self.limit)

    def _bound(self, limit: float) -> float:
        return min(limit, self.memory.requests, float(self.settings.inflight_max) or math.inf)

    def _append(self, ticket: Ticket) -> Ticket:
        self.queues.all[ticket.queue_index][ticket] = None
        self.waiting += 1
        return ticket

    def _occupy(self, now: float) -> None:
        self.in_flight += 1
        self.period.starts_s += now
        if self.in_flight > self.period.peak:
            self.period.peak = self.in_flight

    def _end_wait(self, ticket: Ticket, now: float) -> bool:
        """Call or expire the head of a queue; False if it still waits for a slot."""
        if now >= ticket.arrived_s + ticket.max_wait_s:
            ticket.state = EXPIRED
            self._rejected += 1
        elif self.in_flight < self.capacity:
            ticket.state = CALLED
            ticket.called_s = now
            self._occupy(now)
        else:
            return False
        return True

    def _excess(self, priority: Priority, max_wait_s: float) -> int:
        """Count the tickets that must leave before a new request may wait; 0 or less: it may wait now."""
        if not max_wait_s:
            return self.waiting + 1  # it may only take a slot that no ticket waits for
        ahead, free = self._ahead(priority), self.capacity - self.in_flight
        if free > 0:  # the limit has just grown: the tickets ahead are about to be called
            ahead -= free
        return ahead - self.service.limit(priority, max_wait_s, self.capacity)

    def _retry_s(self, priority: Priority, excess: int, now: float) -> float:
        """Estimate the seconds until a new request may wait, at the measured rate without other arrivals."""
        rate = self.service.rate_rps
        if rate is None:
            return seconds_until(self._period_ends_s(), now)
        if self.service.remaining_rps(priority, rate):
            return max(0, excess) / rate
        return max(seconds_until(self._period_ends_s(), now), self._ahead(priority) / rate)

    def _ahead(self, priority: Priority) -> int:
        """Count the tickets ahead of a new request; in a dry run, the requests that would be such tickets."""
        ahead = self.queues.count_ahead(priority)
        return ahead + sum(self._would_wait()[: priority + 1]) if self._dry_run else ahead

    def _would_wait(self) -> list[int]:
        """Count, by priority, the requests in flight that would be queued without the dry run.

        Slots that became free since the last call go to the most important of them, as in `pop_ready`.
        """
        if self._dry_run:
            self.queues.call_would_wait(self._over_capacity())
        return self.queues.would_wait

    def _over_capacity(self) -> int:
        """Count the requests in flight that would be queued without the dry run."""
        return max(0, self.in_flight - self.capacity) if self._dry_run else 0

    def _build_rejection(self, detail: str, retry_s: float) -> Decision:
        capacity = self.capacity
        return Decision(
            False, _QUEUE, detail, "queue", capacity, max(0, capacity - self.in_flight), retry_s, retry_s
        )
