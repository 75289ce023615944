"""The gate: how many requests may be in flight, and a waiting line for the others.

By Little's law as many requests are let in as the service finishes within a latency budget.
The service rate is measured, and the limit moves only where somebody found it reached.
Whoever cannot be let in waits in a line of its priority, unless the wait could not end in time.

No method reads a counter, calls or allocates, and then writes it:
the garbage collector may settle a forgotten permit at any allocation, which calls `finish` and `ready`.
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
    """An in-flight limit that follows the service, and four lines.

    Every method takes ``now`` in monotonic seconds; a clock that goes back reads as standing still.
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
        """Slots given and not yet given back."""
        self.waiting: int = 0
        """Tickets in all lines."""
        self.limit: float = float(rules.inflight_start)
        """Requests that may be in flight, before memory and the hard bound are looked at."""
        self._most = float(rules.inflight_max) or math.inf
        self._room = 0
        self._lines = Lines()
        self._lanes = self._lines.all
        self._arrived = [0, 0, 0]
        self._done, self._total_s, self._starts_s = 0, 0.0, 0.0
        self._peak, self._limited, self._refused = 0, False, 0
        self._busiest = 0  # the highest peak of the periods since the last fill
        self._share = Share(rules.min_share, now)
        self._failure_s = math.inf
        self._seen_s = self._opened_s = now
        self._ends_s = now + self._service.longest_s
        self._due_s = 0.0
        self._set_limit(self.limit)

    def __repr__(self) -> str:
        return f"Gate({self.in_flight} of {self._room} in flight, {self.waiting} waiting)"

    def count(self, priority: Priority, now: float) -> None:
        """Count an arrival that something before the gate has refused: it is demand all the same."""
        self._tick(now)
        self._arrived[priority] += 1

    def enter(self, demand: Demand, now: float) -> bool:
        """Count an arrival; True: it has a slot, since there was room and nobody stood before it."""
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
        """Queue a demand that `enter` has just turned away; its arrival is not counted again.

        Returns:
            A waiting ticket; one that was called at once, out of the guaranteed share;
            or the refusal, if the wait could not end in time or the line is full.
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
        """Take a mid or low demand that was refused into the guaranteed share, if that has not been spent.

        Returns:
            A ticket that was called at once or waits in the first lane, or None.
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
        """Free the slot of a request that ended.

        Args:
            started_s: when it got its slot.
            outcome: a lost client, and a failure faster than half of an unloaded answer, say nothing
                about the speed of the service.
            now: monotonic seconds.
        """
        if self._seen_s <= now < self._due_s:
            self._seen_s = now
        else:
            now = self._tick(now)
        self.in_flight -= 1
        self._starts_s -= now
        lasted_s = now - started_s
        if outcome is _SUCCESS or outcome is _SLOW or (outcome is _FAILURE and lasted_s >= self._failure_s):
            self._done += 1
            self._total_s += lasted_s

    def leave(self, ticket: Ticket, now: float) -> None:
        """Let a waiter go: out of the line, or with the slot it was called to and has not begun to use.

        A ticket that was dropped or has left is let be.
        A called one whose request has begun must be ended with `finish` instead.
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
        """Drop a ticket that still waits although its patience is over; True: this call dropped it."""
        now = self._tick(now)
        if ticket.state is not WAITING or now < ticket.arrived_s + ticket.patience_s:
            return False
        ticket.state = DROPPED
        del self._lanes[ticket.lane][ticket]
        self.waiting -= 1
        self._refused += 1
        return True

    def ready(self, now: float) -> Sequence[Ticket]:
        """Give free slots to those in front, and drop the ones in front who have waited too long.

        To be called after everything that may free a slot or raise the limit.

        Returns:
            The tickets that were called or dropped, in order.
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
        """The refusal of a ticket that was dropped."""
        now = self._tick(now)
        demand = ticket.demand
        patience_s = self._service.patience_s(demand.slo_s or self._rules.slo_s)
        late = self._late(demand.priority, patience_s)
        return self._refusal("queue:wait", self._retry_s(demand.priority, late, now))

    def charge(self) -> None:
        """Count a request as in flight that would have been refused: a dry run lets it load the service."""
        self.in_flight += 1
        self._starts_s += self._seen_s
        if self.in_flight > self._peak:
            self._peak = self.in_flight

    def advance(self, now: float) -> None:
        """Close the period if it is over; to be called at least once in a period."""
        self._tick(now)

    def memory(self, ratio: float | None) -> None:
        """Take in the fill of the fullest device, 0..1; None: not known, the last cap stays."""
        if ratio is None:
            return
        untouched = self._service.unloaded_s is None and not self.in_flight
        peak = self._peak if self._peak > self._busiest else self._busiest
        self._busiest = 0
        self._memory.learn(ratio, self.in_flight, peak, untouched=untouched)
        self._set_room()

    def evidence(self) -> Evidence:
        """The word to the controller about the time since the last one."""
        refused = self._refused
        self._refused = 0
        return Evidence(
            refused > 0 or self.waiting + self._above() > 0,
            self._service.rate_rps,
            self.in_flight,
            self._bound(),
        )

    def view(self, now: float) -> GateView:
        """All figures at ``now``."""
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
        """Note the time, and close a period that is over; returns the latest time seen."""
        if now < self._seen_s:
            return self._seen_s
        self._seen_s = now
        if now >= self._due_s:
            self._close(now)
        return now

    def _close(self, now: float) -> None:
        if now < self._ends_s and self._done < self._rules.period_completions:
            return
        lasted_s = now - self._opened_s  # from here until the next period is open no call and no container
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
        """Call or drop the head of a line; False if there is nobody or no room."""
        for ticket in lane:  # a loop, not `next`: no call between finding the head and taking it out
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
        """Tickets that must go before a newcomer may wait; 0 or less: it may."""
        if not patience_s:
            return self.waiting + 1  # it needs a slot that nobody waits for
        ahead, free = self._lines.ahead(priority) + self._above(), self._room - self.in_flight
        if free > 0:  # the limit has just grown, and those in front are about to be called
            ahead -= free
        return ahead - self._service.places(priority, patience_s, self._room)

    def _retry_s(self, priority: Priority, late: int, now: float) -> float:
        """Seconds until a newcomer may wait, if requests end at the measured rate and nobody else comes."""
        rate = self._service.rate_rps
        if rate is None:
            return until(self._ends_s, now)
        if self._service.left_rps(priority, rate):
            return max(0, late) / rate
        return max(until(self._ends_s, now), (self._lines.ahead(priority) + self._above()) / rate)

    def _above(self) -> int:
        """Requests in flight that would stand in line if this were no dry run."""
        return max(0, self.in_flight - self._room) if self._rules.dry_run else 0

    def _refusal(self, detail: str, retry_s: float) -> Decision:
        room = self._room
        return Decision(False, _QUEUE, detail, "queue", room, max(0, room - self.in_flight), retry_s, retry_s)
