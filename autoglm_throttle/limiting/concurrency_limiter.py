"""Adaptive concurrency limit with a bounded priority queue.

The limit follows Little's law: measured service rate times a latency budget.
It moves only in periods in which a request found it reached.
A request that finds no slot is queued, unless its wait could not end in time.

No method reads a counter, calls or allocates, and then writes the counter:
the garbage collector may settle a dropped permit at any allocation, and that calls `release` and `pop_ready`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from autoglm_throttle.limiting.concurrency_rules import ConcurrencyRules
from autoglm_throttle.limiting.instant import seconds_until
from autoglm_throttle.limiting.memory_cap import MemoryCap
from autoglm_throttle.limiting.queue import RESERVED_QUEUE, PriorityQueues, TicketQueue
from autoglm_throttle.limiting.reserved_share import RESERVED_MAX_WAIT, ReservedShare
from autoglm_throttle.limiting.service_estimator import MeasurementPeriod, ServiceEstimator
from autoglm_throttle.limiting.ticket import CALLED, CANCELLED, EXPIRED, WAITING, Ticket, TicketState
from autoglm_throttle.types import ConcurrencyView, Decision, Demand, LimiterReport, Outcome, Priority, Reason

__all__ = ["AdaptiveConcurrencyLimiter", "ConcurrencyRules", "Ticket", "TicketState"]

_SUCCESS, _SLOW, _FAILURE = Outcome.SUCCESS, Outcome.SLOW, Outcome.FAILURE
_QUEUE = Reason.QUEUE
_HIGH = Priority.HIGH
_NO_TICKETS: Sequence[Ticket] = ()


class AdaptiveConcurrencyLimiter:
    """Limit the requests in flight, and queue the others in four queues.

    Every method takes ``now`` in monotonic seconds. A clock that goes back counts as standing still.
    Not thread-safe: callers hold one re-entrant lock.

    Args:
        rules: the settings.
        now: monotonic seconds.
    """

    __slots__ = (
        "_arrived",
        "_capacity",
        "_done",
        "_due_s",
        "_ends_s",
        "_failure_s",
        "_last_s",
        "_limited",
        "_max_limit",
        "_memory",
        "_opened_s",
        "_over",
        "_peak",
        "_peak_since_fill",
        "_priority_queues",
        "_queues",
        "_rejected",
        "_reserved_share",
        "_rules",
        "_service",
        "_starts_s",
        "_total_s",
        "in_flight",
        "limit",
        "waiting",
    )

    def __init__(self, rules: ConcurrencyRules, now: float) -> None:
        self._rules = rules
        self._service = ServiceEstimator(rules)
        self._memory = MemoryCap(rules.memory_target)
        self.in_flight: int = 0
        """Slots in use."""
        self.waiting: int = 0
        """Tickets in all queues."""
        self.limit: float = float(rules.inflight_start)
        """Requests that may be in flight, before the memory cap and the hard limit apply."""
        self._max_limit = float(rules.inflight_max) or math.inf
        self._capacity = 0
        self._priority_queues = PriorityQueues()
        self._queues = self._priority_queues.all
        self._arrived = [0, 0, 0]
        self._done, self._total_s, self._starts_s = 0, 0.0, 0.0
        self._peak, self._limited, self._rejected = 0, False, 0
        self._over = [0, 0, 0]  # in a dry run: requests in flight above the capacity, by priority
        self._peak_since_fill = 0  # highest peak of the periods since the last memory fill
        self._reserved_share = ReservedShare(rules.min_share, now)
        self._failure_s = math.inf
        self._last_s = self._opened_s = now
        self._ends_s = now + self._service.longest_s
        self._due_s = 0.0  # earliest end of the period, compared in `try_acquire` without a call
        self._set_limit(self.limit)

    def __repr__(self) -> str:
        occupancy = f"{self.in_flight} of {self._capacity} in flight"
        return f"AdaptiveConcurrencyLimiter({occupancy}, {self.waiting} waiting)"

    def record_arrival(self, priority: Priority, now: float) -> None:
        """Record an arrival that an earlier limit rejected: it counts as demand."""
        self._tick(now)
        self._arrived[priority] += 1

    def try_acquire(self, demand: Demand, now: float) -> bool:
        """Record an arrival; True if it got a slot: one was free and no request was queued ahead."""
        if self._last_s <= now < self._due_s:
            self._last_s = now
        else:
            now = self._tick(now)
        priority = demand.priority
        self._arrived[priority] += 1
        if (self.waiting and self._priority_queues.count_ahead(priority)) or self.in_flight >= self._capacity:
            self._limited = True
            return False
        in_flight = self.in_flight + 1
        self.in_flight = in_flight
        self._starts_s += now
        if in_flight > self._peak:
            self._peak = in_flight
        return True

    def enqueue(self, demand: Demand, now: float) -> Ticket | Decision:
        """Queue a demand that `try_acquire` has just rejected; its arrival is not counted again.

        Returns:
            A waiting ticket; a called ticket, if the reserved share gives it a slot at once;
            or the rejection, if the wait could not end in time or the queue is full.
        """
        now = self._tick(now)
        priority = demand.priority
        max_wait_s = self._service.max_wait_s(demand.slo_s or self._rules.slo_s)
        excess = self._excess(priority, max_wait_s)
        if (
            excess <= 0
            and len(self._queues[priority + 1]) + self._would_wait()[priority] < self._rules.queue_max
        ):
            return self._append(Ticket(demand, now, max_wait_s, priority + 1))
        ticket = self.enqueue_reserved(demand, now)
        if ticket is not None:
            return ticket
        self._rejected += 1
        if excess > 0:
            return self._build_rejection("queue:slow", self._retry_s(priority, excess, now))
        rate = self._service.rate_rps
        return self._build_rejection("queue:full", 1 / rate if rate else self._service.latency_s)

    def enqueue_reserved(self, demand: Demand, now: float) -> Ticket | None:
        """Queue a rejected mid or low demand on the reserved share, if credit is left.

        Returns:
            A ticket that was called at once or waits in the first queue, or None.
        """
        now = self._tick(now)
        rate = self._service.rate_rps
        if rate is None or demand.priority is _HIGH or not self._reserved_share.take(rate, now):
            return None
        slo_s = demand.slo_s or self._rules.slo_s
        ticket = Ticket(demand, now, RESERVED_MAX_WAIT * slo_s, RESERVED_QUEUE)
        if self._queues[RESERVED_QUEUE] or not self._acquire(now):
            self._limited = True
            return self._append(ticket)
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
        if self._last_s <= now < self._due_s:
            self._last_s = now
        else:
            now = self._tick(now)
        self.in_flight -= 1
        # Sum of the start instants of all requests in flight: area = in_flight * now - sum, without a list.
        self._starts_s -= now
        lasted_s = now - started_s
        if outcome is _SUCCESS or outcome is _SLOW or (outcome is _FAILURE and lasted_s >= self._failure_s):
            self._done += 1
            self._total_s += lasted_s

    def cancel(self, ticket: Ticket, now: float) -> None:
        """Cancel a ticket: remove it from its queue, or release the slot it was called to.

        Does nothing for an expired or cancelled ticket.
        Once the request of a called ticket has begun, end it with `release` instead.
        """
        now = self._tick(now)
        if ticket.state is WAITING:
            ticket.state = CANCELLED
            del self._queues[ticket.queue_index][ticket]
            self.waiting -= 1
        elif ticket.state is CALLED:
            ticket.state = CANCELLED
            self.in_flight -= 1
            self._starts_s -= now

    def expire(self, ticket: Ticket, now: float) -> bool:
        """Expire a ticket that still waits after its maximum wait; True if this call expired it."""
        now = self._tick(now)
        if ticket.state is not WAITING or now < ticket.arrived_s + ticket.max_wait_s:
            return False
        ticket.state = EXPIRED
        del self._queues[ticket.queue_index][ticket]
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
        for queue in self._queues:
            while self._pop_head(queue, ended, now):
                pass
        return ended

    def rejection(self, ticket: Ticket, now: float) -> Decision:
        """Build the rejection of an expired ticket."""
        now = self._tick(now)
        demand = ticket.demand
        max_wait_s = self._service.max_wait_s(demand.slo_s or self._rules.slo_s)
        excess = self._excess(demand.priority, max_wait_s)
        return self._build_rejection("queue:timeout", self._retry_s(demand.priority, excess, now))

    def occupy_over_limit(self, priority: Priority) -> None:
        """Count a request in flight above the limit: in a dry run it runs in spite of its rejection."""
        over = self._would_wait()
        self.in_flight += 1
        if self._rules.dry_run and self.in_flight > self._capacity:
            over[priority] += 1
        self._starts_s += self._last_s
        if self.in_flight > self._peak:
            self._peak = self.in_flight

    def close_period(self, now: float) -> None:
        """Close the period if it is over; call it at least once in a period."""
        self._tick(now)

    def update_memory(self, ratio: float | None) -> None:
        """Update the memory cap with the fill of the fullest device, 0..1; with None the last cap stays."""
        if ratio is None:
            return
        # No request has ever been in flight: the fill is the idle one.
        untouched = self._service.unloaded_s is None and not self.in_flight
        peak = self._peak if self._peak > self._peak_since_fill else self._peak_since_fill
        self._peak_since_fill = 0
        self._memory.learn(ratio, self.in_flight, peak, untouched=untouched)
        self._update_capacity()

    def report(self) -> LimiterReport:
        """Report to the control loop: rejections since the last report, service rate, and limit."""
        rejected = self._rejected
        self._rejected = 0
        return LimiterReport(
            rejected > 0 or self.waiting + self._over_capacity() > 0,
            self._service.rate_rps,
            self.in_flight,
            self._bound(),
        )

    def view(self, now: float) -> ConcurrencyView:
        """Return all figures at ``now``."""
        self._tick(now)
        service, memory = self._service, self._memory
        high, mid, low = service.demand_rps
        limit, rate = self._bound(), service.rate_rps
        return ConcurrencyView(
            limit=limit,
            in_flight=self.in_flight,
            waiting=self._priority_queues.waiting(),
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
        if now < self._last_s:  # a clock that went back must not give a period of negative length
            return self._last_s
        self._last_s = now
        if now >= self._due_s:
            self._end_period(now)
        return now

    def _end_period(self, now: float) -> None:
        if now < self._ends_s and self._done < self._rules.period_completions:
            return
        # No call and no container from here until the next period is open: a collection in between
        # could run a finalizer that changes the counters.
        lasted_s = now - self._opened_s
        high, mid, low = self._arrived
        self._arrived[0] = self._arrived[1] = self._arrived[2] = 0
        done = self._done
        total_s = self._total_s
        peak = self._peak
        limited = self._limited
        area = self.in_flight * now - self._starts_s
        self._starts_s = self.in_flight * now
        if peak > self._peak_since_fill:
            self._peak_since_fill = peak
        self._peak = self.in_flight
        self._done = 0
        self._total_s = 0.0
        self._limited = False
        self._opened_s = now
        self._due_s = self._ends_s = now + self._service.longest_s
        period = MeasurementPeriod(
            lasted_s=lasted_s,
            arrived=(high, mid, low),
            done=done,
            total_s=total_s,
            mean_in_flight=area / lasted_s,
            peak=peak,
            limited=limited,
        )
        self._set_limit(self._service.learn(period, self.limit))

    def _set_limit(self, limit: float) -> None:
        service = self._service
        self.limit = min(limit, self._memory.requests, self._max_limit)
        if service.unloaded_s is not None:
            self._failure_s = service.unloaded_s / 2
        self._due_s = self._opened_s + max(self._rules.period_s, min(service.latency_s, service.longest_s))
        self._update_capacity()

    def _update_capacity(self) -> None:
        self._capacity = int(self._bound())

    def _bound(self) -> float:
        return min(self.limit, self._memory.requests, self._max_limit)

    def _append(self, ticket: Ticket) -> Ticket:
        self._queues[ticket.queue_index][ticket] = None
        self.waiting += 1
        return ticket

    def _acquire(self, now: float) -> bool:
        if self.in_flight >= self._capacity:
            return False
        self.in_flight += 1
        self._starts_s += now
        if self.in_flight > self._peak:
            self._peak = self.in_flight
        return True

    def _pop_head(self, queue: TicketQueue, ended: list[Ticket], now: float) -> bool:
        """Call or expire the head of a queue; False if the queue is empty or no slot is free."""
        # A loop, not `next`: a call between finding the head and removing it could run the garbage
        # collector, and a finalizer could cancel that ticket.
        for ticket in queue:
            if now >= ticket.arrived_s + ticket.max_wait_s:
                ticket.state = EXPIRED
                self._rejected += 1
            elif self.in_flight < self._capacity:
                ticket.state = CALLED
                ticket.called_s = now
                self.in_flight += 1
                self._starts_s += now
                if self.in_flight > self._peak:
                    self._peak = self.in_flight
            else:
                return False
            del queue[ticket]
            self.waiting -= 1
            ended.append(ticket)
            return True
        return False

    def _excess(self, priority: Priority, max_wait_s: float) -> int:
        """Count the tickets that must leave before a new request may wait; 0 or less: it may wait now."""
        if not max_wait_s:
            return self.waiting + 1  # it may only take a slot that no ticket waits for
        ahead, free = self._ahead(priority), self._capacity - self.in_flight
        if free > 0:  # the limit has just grown: the tickets ahead are about to be called
            ahead -= free
        return ahead - self._service.limit(priority, max_wait_s, self._capacity)

    def _retry_s(self, priority: Priority, excess: int, now: float) -> float:
        """Estimate the seconds until a new request may wait, at the measured rate without other arrivals."""
        rate = self._service.rate_rps
        if rate is None:
            return seconds_until(self._ends_s, now)
        if self._service.remaining_rps(priority, rate):
            return max(0, excess) / rate
        return max(
            seconds_until(self._ends_s, now),
            self._ahead(priority) / rate,
        )

    def _ahead(self, priority: Priority) -> int:
        """Count the tickets ahead of a new request; in a dry run, the requests that would be such tickets."""
        ahead = self._priority_queues.count_ahead(priority)
        return ahead + sum(self._would_wait()[: priority + 1]) if self._rules.dry_run else ahead

    def _would_wait(self) -> list[int]:
        """Count, by priority, the requests in flight that would be queued without the dry run.

        Slots that became free since the last call go to the most important of them, as in `pop_ready`.
        """
        over = self._over
        if self._rules.dry_run:
            free = sum(over) - self._over_capacity()
            for priority in Priority:
                called = max(0, min(over[priority], free))
                over[priority] -= called
                free -= called
        return over

    def _over_capacity(self) -> int:
        """Count the requests in flight that would be queued without the dry run."""
        return max(0, self.in_flight - self._capacity) if self._rules.dry_run else 0

    def _build_rejection(self, detail: str, retry_s: float) -> Decision:
        capacity = self._capacity
        return Decision(
            False, _QUEUE, detail, "queue", capacity, max(0, capacity - self.in_flight), retry_s, retry_s
        )
