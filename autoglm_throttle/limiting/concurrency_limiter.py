"""Adaptive concurrency limit with a bounded priority queue.

The limit follows Little's law: measured service rate times a latency aim, summed over the work classes.
It rises only in periods in which a request found it reached.
A request that finds no slot is queued, unless its wait could not end in time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from autoglm_throttle.limiting.memory_cap import MemoryCap
from autoglm_throttle.limiting.queue import RESERVED_MAX_WAIT, RESERVED_QUEUE, PriorityQueues, TicketQueue
from autoglm_throttle.limiting.queue_wait import QueueWait
from autoglm_throttle.limiting.service_estimator import ServiceEstimator
from autoglm_throttle.limiting.ticket import CALLED, CANCELLED, EXPIRED, WAITING, Ticket, TicketState
from autoglm_throttle.limiting.work_class import (
    COUNTED,
    NO_SLOT,
    PAUSED,
    QUIET,
    RESUMED,
    UNCOUNTED,
    MeasurementPeriod,
    SlotHolder,
    WorkClass,
    WorkClasses,
)
from autoglm_throttle.settings.groups.control import ConcurrencySettings
from autoglm_throttle.types import (
    ConcurrencyView,
    Decision,
    Demand,
    EngineCapacity,
    Fairness,
    LimiterReport,
    Outcome,
    Priority,
)

__all__ = ["AdaptiveConcurrencyLimiter", "Ticket", "TicketState"]

_SUCCESS, _SLOW, _FAILURE = Outcome.SUCCESS, Outcome.SLOW, Outcome.FAILURE
_HIGH = Priority.HIGH
_NO_TICKETS: Sequence[Ticket] = ()
# Work that may be queued before a request of mid or low, in latencies of an engine of known capacity.
ENGINE_QUEUE = 0.75

# Time between two starts under overload, as a share of that between two ends: requests that begin together
# make the others wait for their prompts, and those of equal length end together, too.
ENGINE_SPREAD = 0.5

NO_ENGINE = EngineCapacity()
_NO_OBJECTIVES: Mapping[str, float] = MappingProxyType({})

# First limit, of all workers together, if no objective is set: until one is learned, nothing lowers it.
FIRST_LIMIT_UNSET = 64

# Requests beside which an answer still shows the latency without load: at least, and as a share of the limit.
# [simulated: two at any limit cost random mixes 7 %]
QUIET_MIN, QUIET_SHARE = 2, 0.25

# Only so many of the first answers of a class in a period may show it: the others need not pay for that.
QUIET_PER_PERIOD = 5

# Requests of one negligible class that may be in flight without a slot: at least, and as a share of the
# limit. A class that turns slow is limited again.
UNCOUNTED_MIN, UNCOUNTED_SHARE = 3, 0.05

# Least length of a period that raises a limit which was reached while answers were unloaded: a step within
# the capacity should not be shed, and a cold start neither.
FAST_PERIOD_S = 0.05


class AdaptiveConcurrencyLimiter:
    """Limit the requests in flight, and queue the others in four queues.

    Every method takes ``now`` in monotonic seconds. A clock that goes back counts as standing still.
    Not thread-safe: callers hold one lock.

    Args:
        settings: the settings of the limit and the queue.
        now: monotonic seconds.
        memory_target: share of the fullest device that may be full, in (0, 1].
        workers: processes in front of the same service, which share the first limit.
        dry_run: queue no request: it runs above the limit and counts as a queued one.
        objectives: declared objectives in seconds, by name of the work class.
        engine: the capacity of the engine that serves the requests, where the limit begins and ends.
    """

    __slots__ = (
        *("_engine", "_even", "_first_end_s", "_learned_limit", "_learns_slo", "_least", "_most"),
        *("_paused_max", "_quiet", "_rejected", "_uncounted_max", "_wait", "capacity", "displaced"),
        *("in_flight", "limit", "memory", "paused", "period", "queues", "service", "settings", "waiting"),
        "work_classes",
    )

    def __init__(  # noqa: PLR0913 - one argument for each fact about the service
        self,
        settings: ConcurrencySettings,
        now: float,
        *,
        memory_target: float,
        workers: int = 1,
        dry_run: bool = False,
        objectives: Mapping[str, float] = _NO_OBJECTIVES,
        engine: EngineCapacity = NO_ENGINE,
    ) -> None:
        self.settings: ConcurrencySettings = settings
        # Attributes of a pydantic model take twice as long to read: requests read those of plain objects.
        self._paused_max = settings.paused_max
        self._learns_slo = settings.slo_s is None
        self._even = workers > 1
        self._engine = engine
        self._most = min(float(settings.inflight_max) or engine.ceiling, engine.most)
        self.work_classes: WorkClasses = WorkClasses(settings.slo_s, objectives)
        self.service: ServiceEstimator = ServiceEstimator(settings, self.work_classes, workers)
        self.memory: MemoryCap = MemoryCap(memory_target)
        fair = settings.fairness is Fairness.USER
        self.queues: PriorityQueues = PriorityQueues(settings.min_share, now, fair=fair)
        self._wait = QueueWait(self.service, self.queues, settings.queue_max, now, dry_run=dry_run)
        self.period: MeasurementPeriod = MeasurementPeriod(now)
        self.in_flight: int = 0  # Slots in use
        self.paused: int = 0  # Requests that have given their slot back for a while
        self.waiting: int = 0  # Tickets in all queues
        self.displaced: list[Ticket] = []  # Expired for those of other users; `pop_ready` returns them
        # Requests that may be in flight, before the memory cap and the hard limit apply.
        self.limit: float = 0.0
        self.capacity: int = 0  # Slots that may be in use
        self._quiet = 0
        self._uncounted_max = 0.0
        # When the first request ended: what began before may have waited for a model to load.
        self._first_end_s = math.inf
        self._rejected = 0
        first: float = settings.inflight_start
        is_given = "inflight_start" in settings.model_fields_set
        is_unset = self._learns_slo and not is_given and engine.slots is None
        if is_unset:
            first = FIRST_LIMIT_UNSET
        elif engine.slots is not None and not is_given:
            first = engine.ceiling * workers
        # A batch takes longer for each request than one request alone, and yet does more: only an objective
        # that was set lowers the limit below the slots that an operator has chosen, no learned one.
        is_kept = engine.slots is not None and self._learns_slo and not is_given
        self._least: float = engine.ceiling if is_kept else 0.0
        # Limit once an objective has been learned, if none has reached the first one; 0: nothing to do.
        self._learned_limit: float = max(1.0, settings.inflight_start / workers) if is_unset else 0.0
        self._begin_period(float(max(1, settings.inflight_floor // workers, math.ceil(first / workers))))

    @property
    def slo_s(self) -> float:
        """The objective in force, in seconds: the set one, or the learned one."""
        return self.service.slo_s

    @property
    def start_interval_s(self) -> float:
        """Seconds between the starts of two requests in an engine of known capacity; 0 without overload."""
        slots, period = self._engine.slots, self.period
        if slots is None or not (period.limited or period.was_limited):
            return 0.0
        return ENGINE_SPREAD * self.service.latency_s / slots

    def record_arrival(self, priority: int, now: float) -> None:
        """Record an arrival that an earlier limit rejected: it counts as demand."""
        period = self.period
        if period.latest_s <= now < period.due_s:
            period.latest_s = now
        else:
            self._tick(now)
            period = self.period
        period.arrived[priority] += 1

    def try_acquire(self, demand: Demand, work_class: WorkClass, now: float) -> int:
        """Record an arrival, and give it a slot if one is free and no request is queued ahead.

        Returns:
            What the request holds; ``NO_SLOT``, which is false: it must be queued.
        """
        period = self.period
        if period.latest_s <= now < period.due_s:
            period.latest_s = now
        else:
            now = self._tick(now)
            period = self.period
        period.arrived[demand.rank] += 1
        work_class.arrived += 1
        if work_class.negligible and work_class.in_flight < self._uncounted_max and self.capacity:
            work_class.in_flight += 1
            return UNCOUNTED
        in_flight = self.in_flight
        if in_flight >= self.capacity or (self.waiting and self.queues.is_ahead(demand.priority)):
            if not period.limited:
                period.limited = True
                period.due_s = min(period.due_s, now + FAST_PERIOD_S)  # early, if answers are unloaded
            return NO_SLOT
        self.in_flight = in_flight = in_flight + 1
        work_class.in_flight += 1
        period.starts_s += now
        if in_flight <= self._quiet:
            if in_flight > period.peak:
                period.peak = in_flight
            return QUIET
        period.busy_s = now
        if in_flight > period.peak:
            period.peak = in_flight
        return COUNTED

    def enqueue(self, demand: Demand, work_class: WorkClass, now: float) -> Ticket | Decision:
        """Queue a demand that `try_acquire` has just rejected; its arrival is not counted again.

        Returns:
            A waiting ticket; a called one, if the reserved share gives it a slot at once; or the rejection.
        """
        now = self._tick(now)
        wait, free = self._wait, self.capacity - self.in_flight
        if self.paused >= self._paused_max:
            self._rejected += 1
            return self._reject(demand.user, "queue:paused", self.service.latency_s, now)
        in_turn = bool(wait.turns) and wait.take_turn(demand.user, now)
        max_wait_s = self.service.max_wait_s(work_class, demand.slo_s, in_turn=in_turn)
        # With no time to wait it may only take a slot that no ticket waits for.
        queue_s = max_wait_s
        if self._engine.slots is not None and demand.priority is not _HIGH and self.service.rate_rps:
            queue_s = min(max_wait_s, ENGINE_QUEUE * self.service.latency_s)
        excess = wait.excess(demand, queue_s, free) if max_wait_s else self.waiting + 1
        queue_index = demand.priority + 1
        queue = self.queues.all[queue_index]
        queued = len(queue.tickets)
        if wait.dry_run:
            queued += wait.would_wait(free)[demand.rank]
        if excess <= 0 and (queued < wait.queue_max or self._displace(demand.user, queue)):
            return self._append(Ticket(demand, now, max_wait_s, queue_index, work_class))
        ticket = self.enqueue_reserved(demand, work_class, now)
        if ticket is not None:
            return ticket
        self._rejected += 1
        if excess > 0:
            wait_s = wait.wait_s(demand, excess, free, self.period.opened_s, now)
            return self._reject(demand.user, "queue:slow", wait_s, now)
        rate = self.service.rate_rps
        return self._reject(demand.user, "queue:full", 1 / rate if rate else self.service.latency_s, now)

    def enqueue_reserved(self, demand: Demand, work_class: WorkClass, now: float) -> Ticket | None:
        """Queue a rejected mid or low demand on the reserved share, if credit is left, or call it at once."""
        now = self._tick(now)
        rate = self.service.rate_rps
        if rate is None or demand.priority is _HIGH or not self.queues.take_reserved(rate, now):
            return None
        slo_s = demand.slo_s or self.work_classes.slo_of(work_class)
        ticket = Ticket(demand, now, RESERVED_MAX_WAIT * slo_s, RESERVED_QUEUE, work_class)
        if self.queues.all[RESERVED_QUEUE].tickets or self.in_flight >= self.capacity:
            if not self.period.limited:
                self.period.limited = True
                self.period.due_s = min(self.period.due_s, now + FAST_PERIOD_S)
            return self._append(ticket)
        self._call(ticket, now)
        return ticket

    def release(self, holder: SlotHolder, outcome: Outcome, now: float, client_error: bool = False) -> None:
        """Release what a request that ended holds; the holder then holds nothing.

        An answer with a ``client_error`` of the app is measured in a class of its own.
        """
        period = self.period
        if period.latest_s <= now < period.due_s:
            period.latest_s = now
        else:
            now = self._tick(now)
            period = self.period
        work_class, slot = holder.work_class, holder.slot
        holder.slot = NO_SLOT
        work_class.in_flight -= 1
        if slot > PAUSED:
            lasted_s = now - holder.started_s
            self.in_flight -= 1
            period.starts_s -= now
        elif slot == PAUSED:
            lasted_s = holder.started_s
            self._end_pause(work_class)
        else:
            lasted_s = now - holder.started_s
        if outcome is not _SUCCESS and not self._is_measured(outcome, lasted_s, work_class, now):
            return
        if client_error:
            work_class = self.work_classes.client_errors
        done = work_class.done
        if not done:
            period.ended.append(work_class)
            self._first_end_s = min(self._first_end_s, now)
        if slot == QUIET and done < QUIET_PER_PERIOD and not client_error:
            self._record_quiet(work_class, holder.started_s, lasted_s)
        work_class.done = done + 1
        work_class.total_s += lasted_s

    def pause(self, holder: SlotHolder, now: float) -> None:
        """Give the slot of a request back while it waits for others, such as a slow reader.

        The time does not count as service time. A request without a counted slot is left alone.
        """
        if holder.slot <= PAUSED:
            return
        now = self._tick(now)
        holder.slot = PAUSED
        holder.started_s = now - holder.started_s
        self.in_flight -= 1
        self.period.starts_s -= now
        self.paused += 1
        holder.work_class.paused += 1
        self._set_capacity()

    def resume(self, holder: SlotHolder, now: float) -> None:
        """Take the slot of a paused request again at once, even above the limit: it runs already."""
        if holder.slot != PAUSED:
            return
        now = self._tick(now)
        holder.slot = RESUMED
        holder.started_s = now - holder.started_s
        self._occupy(now)
        self._end_pause(holder.work_class)

    def cancel(self, ticket: Ticket, now: float) -> None:
        """Cancel a ticket: remove it from its queue, or release the slot it was called to.

        Once the request of a called ticket has begun, end it with `release` instead.
        """
        now = self._tick(now)
        if ticket.state is WAITING:
            ticket.state = CANCELLED
            self.queues.all[ticket.queue_index].remove(ticket)
            self.waiting -= 1
        elif ticket.state is CALLED:
            ticket.state = CANCELLED
            if ticket.slot:
                self.release(ticket, Outcome.NEUTRAL, now)

    def expire(self, ticket: Ticket, now: float) -> bool:
        """Expire a ticket that still waits after its maximum wait; True if this call expired it."""
        now = self._tick(now)
        if ticket.state is not WAITING or now < ticket.arrived_s + ticket.max_wait_s:
            return False
        self._expire(ticket, self.queues.all[ticket.queue_index])
        return True

    def pop_ready(self, now: float) -> Sequence[Ticket]:
        """Give free slots to the tickets that are next in the queues, and expire overdue ones.

        Call it after everything that may free a slot or raise the limit. Returns these tickets in order.
        """
        if not self.waiting:
            return _NO_TICKETS
        now = self._tick(now)
        ended, self.displaced = self.displaced, []
        for queue in self.queues.all:
            tickets = queue.tickets
            while tickets and now >= (oldest := next(iter(tickets))).arrived_s + oldest.max_wait_s:
                self._expire(oldest, queue)
                ended.append(oldest)
            while tickets and self.in_flight < self.capacity and (ticket := queue.next()) is not None:
                if now >= ticket.arrived_s + ticket.max_wait_s:
                    self._expire(ticket, queue)
                else:
                    queue.serve(ticket)
                    self.waiting -= 1
                    self._call(ticket, now)
                ended.append(ticket)
        return ended

    def rejection(self, ticket: Ticket, now: float) -> Decision:
        """Build the rejection of an expired ticket."""
        now = self._tick(now)
        demand, free = ticket.demand, self.capacity - self.in_flight
        max_wait_s = self.service.max_wait_s(ticket.work_class, demand.slo_s)
        excess = self._wait.excess(demand, max_wait_s, free) if max_wait_s else self.waiting + 1
        wait_s = self._wait.wait_s(demand, excess, free, self.period.opened_s, now)
        detail = "queue:timeout" if now >= ticket.deadline_s else "queue:full"
        return self._reject(demand.user, detail, wait_s, now)

    def retry_after_s(self, user: str, now: float) -> float:
        """Assign the next turn to a request that the service itself has rejected; in seconds from now."""
        now = self._tick(now)
        return self._reject(user, "", self.service.latency_s, now).retry_after_s

    def occupy_over_limit(self, demand: Demand, work_class: WorkClass) -> int:
        """Count a request in flight above the limit: in a dry run it runs in spite of its rejection."""
        would_wait = self._wait.would_wait(self.capacity - self.in_flight)
        self._occupy(self.period.latest_s)
        work_class.in_flight += 1
        if self._wait.dry_run and self.in_flight > self.capacity:
            would_wait[demand.rank] += 1
        return COUNTED

    def close_period(self, now: float) -> None:
        """Close the period if it is over; call it at least once in a period."""
        self._tick(now)

    def update_memory(self, ratio: float | None) -> None:
        """Update the memory cap with the fill of the fullest device, 0..1; with None the last cap stays."""
        if ratio is None:
            return
        # Paused requests keep their memory.
        held = self.in_flight + self.paused
        # No request has ever ended: the fill is the idle one.
        untouched = self._first_end_s == math.inf and not held
        self.memory.learn(ratio, held, max(self.period.peak, held), untouched=untouched)
        self._set_capacity()

    def report(self) -> LimiterReport:
        """Report to the control loop: rejections since the last report, service rate, and limit."""
        rejected, self._rejected = self._rejected, 0
        queued = self.waiting > 0 or (self._wait.dry_run and self.in_flight > self.capacity)
        return LimiterReport(
            rejected > 0 or queued, self.service.rate_rps, self.in_flight, self._bound(self.limit)
        )

    def view(self, now: float) -> ConcurrencyView:
        """Return all figures at ``now``."""
        self._tick(now)
        service, memory, limit = self.service, self.memory, self._bound(self.limit)
        high, mid, low = service.demand_rps
        rate = service.rate_rps
        return ConcurrencyView(
            limit=limit,
            in_flight=self.in_flight,
            paused=self.paused,
            waiting=self.queues.waiting(),
            service_rps=rate,
            demand_rps=(high, mid, low),
            latency_s=service.latency_s,
            unloaded_s=service.unloaded_s,
            budget_s=service.aim_s,
            slo_s=service.slo_s,
            slo_learned=self._learns_slo,
            memory_cap=memory.requests,
            memory_blind=memory.blind,
            slo_unreachable=service.slo_unreachable,
            pressure=(high + mid + low) / rate if rate and service.measured else self.in_flight / limit,
            retry_backlog_s=self._wait.backlog_s(now),
            work_classes=self.work_classes.view(),
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
        period = self.period
        least = max(self.settings.period_completions, self.limit / 2)
        if not (
            self.service.is_over(now - period.opened_s, period.ended)
            # The limit was reached, although the answers so far are far below their latency aim.
            or (period.limited and self.service.is_far_in_time(period.ended, least))
        ):
            period.due_s = now + FAST_PERIOD_S
            return
        self.period = period.close(now, self.in_flight)
        self.memory.peak = max(self.memory.peak, period.peak + self.paused)
        limit = self.service.learn(period, self.limit)
        if self._learned_limit and any(one.learned_slo_s for one in period.ended):
            if not period.limited:  # a first burst must not fill a small service up to the first limit
                limit = min(limit, max(self._learned_limit, 2.0 * period.peak))
            self._learned_limit = 0.0
        self._begin_period(limit)

    def _begin_period(self, limit: float) -> None:
        """Apply a limit, and what has been learned, to the period that begins."""
        limit = max(limit, self._least)
        bounded = self._bound(limit)
        if bounded < limit:  # it cannot grow as its answers would allow: waiting for that is in vain
            self.service.is_unloaded = False
        self.limit = limit = bounded
        self._quiet = int(max(QUIET_MIN, QUIET_SHARE * limit))
        self._uncounted_max = max(UNCOUNTED_MIN, UNCOUNTED_SHARE * limit)
        self.period.due_s = self.period.opened_s + self.settings.period_s
        self._set_capacity()

    def _bound(self, limit: float) -> float:
        return min(limit, self.memory.requests, self._most)

    def _set_capacity(self) -> None:
        """Apply the bounds to the slots: paused requests keep their memory, and too many end admission."""
        if self.paused >= self._paused_max:
            self.capacity = 0
        else:
            # An engine works on paused requests, too. A wrong count must not close the service.
            others = max(0, self._engine.unfinished() - self.in_flight)
            free = max(self._bound(math.inf) - others, self.settings.inflight_floor)
            free = min(self.memory.requests - self.paused, free)
            self.capacity = int(min(self._bound(self.limit), max(0.0, free)))

    def _end_pause(self, work_class: WorkClass) -> None:
        self.paused -= 1
        work_class.paused -= 1
        self._set_capacity()

    def _record_quiet(self, work_class: WorkClass, started_s: float, lasted_s: float) -> None:
        """Record the time of an answer that began beside few others."""
        if started_s <= self._first_end_s:  # it may have waited for a model to load
            return
        period = self.period
        limited = period.limited or period.was_limited
        # Other workers may load the service: nobody may have been limited lately.
        unloaded = started_s > period.busy_s and not (self._even and limited)
        if unloaded:
            work_class.unloaded.append(lasted_s)
        # A limit that nobody has reached may yet be far above what the service can do.
        if self._learns_slo and (unloaded or not (limited or self.in_flight > self.limit / 2.0)):
            work_class.add_easy(lasted_s)

    def _is_measured(self, outcome: Outcome, lasted_s: float, work_class: WorkClass, now: float) -> bool:
        """Whether a request that did not simply succeed counts: not a neutral one, nor a failure at once."""
        if outcome is not _FAILURE:
            return outcome is _SLOW
        if self.memory.record_failure(self.in_flight, now):
            self._set_capacity()
        return lasted_s >= (work_class.unloaded_s or math.inf) / 2

    def _append(self, ticket: Ticket) -> Ticket:
        self.queues.all[ticket.queue_index].append(ticket)
        self.waiting += 1
        return ticket

    def _call(self, ticket: Ticket, now: float) -> None:
        """Give a ticket its slot."""
        ticket.state = CALLED
        ticket.called_s = ticket.started_s = now
        ticket.slot = COUNTED
        ticket.work_class.in_flight += 1
        self._occupy(now)

    def _displace(self, user: str, queue: TicketQueue) -> bool:
        """Expire a ticket of a full queue whose user has more of them than ``user``, if there is one."""
        ticket = queue.displaced_by(user)
        if ticket is not None:
            self._expire(ticket, queue)
            self.displaced.append(ticket)
        return ticket is not None

    def _expire(self, ticket: Ticket, queue: TicketQueue) -> None:
        ticket.state = EXPIRED
        queue.remove(ticket)
        self.waiting -= 1
        self._rejected += 1

    def _occupy(self, now: float) -> None:
        period = self.period
        self.in_flight += 1
        period.starts_s += now
        if self.in_flight > self._quiet:
            period.busy_s = now
        if self.in_flight > period.peak:
            period.peak = self.in_flight

    def _reject(self, user: str, detail: str, wait_s: float, now: float) -> Decision:
        capacity = self.capacity
        return self._wait.rejection(user, detail, wait_s, capacity, capacity - self.in_flight, now)
