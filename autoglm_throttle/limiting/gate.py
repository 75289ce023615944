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

from autoglm_throttle.limiting.gate_memory import MemoryCap
from autoglm_throttle.limiting.gate_rules import GateRules, GateView
from autoglm_throttle.limiting.gate_service import Period, Service
from autoglm_throttle.limiting.gate_share import SHARE_PATIENCE, Share
from autoglm_throttle.limiting.instant import until
from autoglm_throttle.limiting.line import SHARE_LANE, Line, Lines
from autoglm_throttle.limiting.ticket import CALLED, DROPPED, LEFT, WAITING, Ticket, TicketState
from autoglm_throttle.model import Decision, Demand, Evidence, Outcome, Priority, Reason

__all__ = ["Gate", "GateRules", "GateView", "Ticket", "TicketState"]

_SUCCESS, _SLOW, _FAILURE = Outcome.SUCCESS, Outcome.SLOW, Outcome.FAILURE
_QUEUE = Reason.QUEUE
_HIGH = Priority.HIGH
_NOBODY: Sequence[Ticket] = ()


class Gate:
    """Limit the requests in flight, and queue the others in four queues.

    Every method takes ``now`` in monotonic seconds. A clock that goes back counts as standing still.
    Not thread-safe: callers hold one re-entrant lock.

    Args:
        rules: the settings.
        now: monotonic seconds.
    """

    __slots__ = (
        "_arrived",
        "_busiest",
        "_done",
        "_due_s",
        "_ends_s",
        "_failure_s",
        "_lanes",
        "_limited",
        "_lines",
        "_memory",
        "_most",
        "_opened_s",
        "_peak",
        "_refused",
        "_room",
        "_rules",
        "_seen_s",
        "_service",
        "_share",
        "_starts_s",
        "_total_s",
        "in_flight",
        "limit",
        "waiting",
    )

    def __init__(self, rules: GateRules, now: float) -> None:
        self._rules = rules
        self._service = Service(rules)
        self._memory = MemoryCap(rules.memory_target)
        self.in_flight: int = 0
        """Slots in use."""
        self.waiting: int = 0
        """Tickets in all queues."""
        self.limit: float = float(rules.inflight_start)
        """Requests that may be in flight, before the memory cap and the hard limit apply."""
        self._most = float(rules.inflight_max) or math.inf
        self._room = 0
        self._lines = Lines()
        self._lanes = self._lines.all
        self._arrived = [0, 0, 0]
        self._done, self._total_s, self._starts_s = 0, 0.0, 0.0
        self._peak, self._limited, self._refused = 0, False, 0
        self._busiest = 0  # highest peak of the periods since the last memory fill
        self._share = Share(rules.min_share, now)
        self._failure_s = math.inf
        self._seen_s = self._opened_s = now
        self._ends_s = now + self._service.longest_s
        self._due_s = 0.0  # earliest end of the period, compared in `try_acquire` without a call
        self._set_limit(self.limit)

    def __repr__(self) -> str:
        return f"Gate({self.in_flight} of {self._room} in flight, {self.waiting} waiting)"

    def count(self, priority: Priority, now: float) -> None:
        """Record an arrival that an earlier limit rejected: it counts as demand."""
        self._tick(now)
        self._arrived[priority] += 1

    def enter(self, demand: Demand, now: float) -> bool:
        """Record an arrival; True if it got a slot: one was free and no request was queued ahead."""
        if self._seen_s <= now < self._due_s:
            self._seen_s = now
        else:
            now = self._tick(now)
        priority = demand.priority
        self._arrived[priority] += 1
        if (self.waiting and self._lines.ahead(priority)) or self.in_flight >= self._room:
            self._limited = True
            return False
        in_flight = self.in_flight + 1
        self.in_flight = in_flight
        self._starts_s += now
        if in_flight > self._peak:
            self._peak = in_flight
        return True

    def line_up(self, demand: Demand, now: float) -> Ticket | Decision:
        """Queue a demand that `try_acquire` has just rejected; its arrival is not counted again.

        Returns:
            A waiting ticket; a called ticket, if the reserved share gives it a slot at once;
            or the rejection, if the wait could not end in time or the queue is full.
        """
        now = self._tick(now)
        priority = demand.priority
        patience_s = self._service.patience_s(demand.slo_s or self._rules.slo_s)
        late = self._late(priority, patience_s)
        if late <= 0 and len(self._lanes[priority + 1]) + self._above() < self._rules.queue_max:
            return self._wait(Ticket(demand, now, patience_s, priority + 1))
        ticket = self.rescue(demand, now)
        if ticket is not None:
            return ticket
        self._refused += 1
        if late > 0:
            return self._refusal("queue:slow", self._retry_s(priority, late, now))
        rate = self._service.rate_rps
        return self._refusal("queue:full", 1 / rate if rate else self._service.latency_s)

    def rescue(self, demand: Demand, now: float) -> Ticket | None:
        """Queue a rejected mid or low demand on the reserved share, if credit is left.

        Returns:
            A ticket that was called at once or waits in the first queue, or None.
        """
        now = self._tick(now)
        rate = self._service.rate_rps
        if rate is None or demand.priority is _HIGH or not self._share.take(rate, now):
            return None
        slo_s = demand.slo_s or self._rules.slo_s
        ticket = Ticket(demand, now, SHARE_PATIENCE * slo_s, SHARE_LANE)
        if self._lanes[SHARE_LANE] or not self._take(now):
            self._limited = True
            return self._wait(ticket)
        ticket.state = CALLED
        ticket.called_s = now
        return ticket

    def finish(self, started_s: float, outcome: Outcome, now: float) -> None:
        """Release the slot of a request that ended.

        Args:
            started_s: when it got its slot.
            outcome: neutral outcomes, and failures faster than half of the unloaded latency, are not
                measured as service time.
            now: monotonic seconds.
        """
        if self._seen_s <= now < self._due_s:
            self._seen_s = now
        else:
            now = self._tick(now)
        self.in_flight -= 1
        # Sum of the start instants of all requests in flight: area = in_flight * now - sum, without a list.
        self._starts_s -= now
        lasted_s = now - started_s
        if outcome is _SUCCESS or outcome is _SLOW or (outcome is _FAILURE and lasted_s >= self._failure_s):
            self._done += 1
            self._total_s += lasted_s

    def leave(self, ticket: Ticket, now: float) -> None:
        """Cancel a ticket: remove it from its queue, or release the slot it was called to.

        Does nothing for an expired or cancelled ticket.
        Once the request of a called ticket has begun, end it with `release` instead.
        """
        now = self._tick(now)
        if ticket.state is WAITING:
            ticket.state = LEFT
            del self._lanes[ticket.lane][ticket]
            self.waiting -= 1
        elif ticket.state is CALLED:
            ticket.state = LEFT
            self.in_flight -= 1
            self._starts_s -= now

    def expire(self, ticket: Ticket, now: float) -> bool:
        """Expire a ticket that still waits after its maximum wait; True if this call expired it."""
        now = self._tick(now)
        if ticket.state is not WAITING or now < ticket.arrived_s + ticket.patience_s:
            return False
        ticket.state = DROPPED
        del self._lanes[ticket.lane][ticket]
        self.waiting -= 1
        self._refused += 1
        return True

    def ready(self, now: float) -> Sequence[Ticket]:
        """Give free slots to the tickets at the head of the queues, and expire overdue heads.

        Call it after everything that may free a slot or raise the limit.

        Returns:
            The tickets that were called or expired, in order.
        """
        if not self.waiting:
            return _NOBODY
        now = self._tick(now)
        ended: list[Ticket] = []
        for lane in self._lanes:
            while self._serve(lane, ended, now):
                pass
        return ended

    def refusal(self, ticket: Ticket, now: float) -> Decision:
        """Build the rejection of an expired ticket."""
        now = self._tick(now)
        demand = ticket.demand
        patience_s = self._service.patience_s(demand.slo_s or self._rules.slo_s)
        late = self._late(demand.priority, patience_s)
        return self._refusal("queue:wait", self._retry_s(demand.priority, late, now))

    def charge(self) -> None:
        """Count a request in flight above the limit: in a dry run it runs in spite of its rejection."""
        self.in_flight += 1
        self._starts_s += self._seen_s
        if self.in_flight > self._peak:
            self._peak = self.in_flight

    def advance(self, now: float) -> None:
        """Close the period if it is over; call it at least once in a period."""
        self._tick(now)

    def memory(self, ratio: float | None) -> None:
        """Update the memory cap with the fill of the fullest device, 0..1; with None the last cap stays."""
        if ratio is None:
            return
        # No request has ever been in flight: the fill is the idle one.
        untouched = self._service.unloaded_s is None and not self.in_flight
        peak = self._peak if self._peak > self._busiest else self._busiest
        self._busiest = 0
        self._memory.learn(ratio, self.in_flight, peak, untouched=untouched)
        self._set_room()

    def evidence(self) -> Evidence:
        """Report to the control loop: rejections since the last report, service rate, and limit."""
        refused = self._refused
        self._refused = 0
        return Evidence(
            refused > 0 or self.waiting + self._above() > 0,
            self._service.rate_rps,
            self.in_flight,
            self._bound(),
        )

    def view(self, now: float) -> GateView:
        """Return all figures at ``now``."""
        self._tick(now)
        service, memory = self._service, self._memory
        high, mid, low = service.demand_rps
        limit, rate = self._bound(), service.rate_rps
        return GateView(
            limit=limit,
            in_flight=self.in_flight,
            waiting=self._lines.waiting(),
            service_rps=rate,
            demand_rps=(high, mid, low),
            latency_s=service.latency_s,
            unloaded_s=service.unloaded_s,
            budget_s=service.budget_s,
            memory_cap=memory.requests,
            memory_blind=memory.blind,
            slo_unreachable=service.out_of_reach,
            pressure=(high + mid + low) / rate if rate and service.measured else self.in_flight / limit,
        )

    def _tick(self, now: float) -> float:
        """Record the time, and close a period that is over; returns the latest time so far."""
        if now < self._seen_s:  # a clock that went back must not give a period of negative length
            return self._seen_s
        self._seen_s = now
        if now >= self._due_s:
            self._close(now)
        return now

    def _close(self, now: float) -> None:
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
        if peak > self._busiest:
            self._busiest = peak
        self._peak = self.in_flight
        self._done = 0
        self._total_s = 0.0
        self._limited = False
        self._opened_s = now
        self._due_s = self._ends_s = now + self._service.longest_s
        period = Period(
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
        self.limit = min(limit, self._memory.requests, self._most)
        if service.unloaded_s is not None:
            self._failure_s = service.unloaded_s / 2
        self._due_s = self._opened_s + max(self._rules.period_s, min(service.latency_s, service.longest_s))
        self._set_room()

    def _set_room(self) -> None:
        self._room = int(self._bound())

    def _bound(self) -> float:
        return min(self.limit, self._memory.requests, self._most)

    def _wait(self, ticket: Ticket) -> Ticket:
        self._lanes[ticket.lane][ticket] = None
        self.waiting += 1
        return ticket

    def _take(self, now: float) -> bool:
        if self.in_flight >= self._room:
            return False
        self.in_flight += 1
        self._starts_s += now
        if self.in_flight > self._peak:
            self._peak = self.in_flight
        return True

    def _serve(self, lane: Line, ended: list[Ticket], now: float) -> bool:
        """Call or expire the head of a queue; False if the queue is empty or no slot is free."""
        # A loop, not `next`: a call between finding the head and removing it could run the garbage
        # collector, and a finalizer could cancel that ticket.
        for ticket in lane:
            if now >= ticket.arrived_s + ticket.patience_s:
                ticket.state = DROPPED
                self._refused += 1
            elif self.in_flight < self._room:
                ticket.state = CALLED
                ticket.called_s = now
                self.in_flight += 1
                self._starts_s += now
                if self.in_flight > self._peak:
                    self._peak = self.in_flight
            else:
                return False
            del lane[ticket]
            self.waiting -= 1
            ended.append(ticket)
            return True
        return False

    def _late(self, priority: Priority, patience_s: float) -> int:
        """Count the tickets that must leave before a new request may wait; 0 or less: it may wait now."""
        if not patience_s:
            return self.waiting + 1  # it may only take a slot that no ticket waits for
        ahead, free = self._lines.ahead(priority) + self._above(), self._room - self.in_flight
        if free > 0:  # the limit has just grown: the tickets ahead are about to be called
            ahead -= free
        return ahead - self._service.places(priority, patience_s, self._room)

    def _retry_s(self, priority: Priority, late: int, now: float) -> float:
        """Estimate the seconds until a new request may wait, at the measured rate without other arrivals."""
        rate = self._service.rate_rps
        if rate is None:
            return until(self._ends_s, now)
        if self._service.left_rps(priority, rate):
            return max(0, late) / rate
        return max(until(self._ends_s, now), (self._lines.ahead(priority) + self._above()) / rate)

    def _above(self) -> int:
        """Count the requests in flight that would be queued without the dry run."""
        return max(0, self.in_flight - self._room) if self._rules.dry_run else 0

    def _refusal(self, detail: str, retry_s: float) -> Decision:
        room = self._room
        return Decision(False, _QUEUE, detail, "queue", room, max(0, room - self.in_flight), retry_s, retry_s)
