"""Adaptive concurrency limit with a bounded priority queue.

The limit follows Little's law: measured service rate times a latency aim, summed over the work classes.
It rises only in periods in which a request found it reached.
A request that finds no slot is queued, unless its wait could not end in time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from autoglm_throttle.limiting.adaptive_limit import AdaptiveLimit
from autoglm_throttle.limiting.engine_limits import NO_ENGINE, EngineLimits
from autoglm_throttle.limiting.first_token import FirstTokenEstimator
from autoglm_throttle.limiting.queue import RESERVED_MAX_WAIT, RESERVED_QUEUE, PriorityQueues, TicketQueue
from autoglm_throttle.limiting.queue_wait import QueueWait
from autoglm_throttle.limiting.quiet_answers import QUIET_PER_PERIOD, QuietAnswers
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
        *("_answers", "_engine", "_paused_max", "_quiet", "_rejected", "_uncounted_max", "_wait"),
        *("adaptive", "capacity", "displaced", "first_tokens", "in_flight", "limit", "paused"),
        *("period", "queues", "service", "settings", "waiting", "work_classes"),
    )

    def __init__(  # noqa: PLR0913 - one argument for each fact about the service
        self,
        settings: ConcurrencySettings,
        now: float,
        *,
        memory_target: float,
        objectives: Mapping[str, float] | None = None,
        workers: int = 1,
        dry_run: bool = False,
        engine: EngineCapacity = NO_ENGINE,
    ) -> None:
        self.settings: ConcurrencySettings = settings
        # Attributes of a pydantic model take twice as long to read: requests read those of plain objects.
        self._paused_max = settings.paused_max
        self.work_classes: WorkClasses = WorkClasses(settings.slo_s, objectives or {})
        self._engine = EngineLimits(settings, engine, workers)
        adaptive = AdaptiveLimit(settings, self.work_classes, memory_target, self._engine, workers)
        self.adaptive: AdaptiveLimit = adaptive
        self._answers = QuietAnswers(learns_slo=adaptive.learns_slo, even=workers > 1)
        self.service: ServiceEstimator = adaptive.service
        fair = settings.fairness is Fairness.USER
        self.queues: PriorityQueues = PriorityQueues(settings.min_share, now, fair=fair)
        self._wait = QueueWait(self.adaptive, self.queues, settings.queue_max, now, dry_run=dry_run)
        self.first_tokens: FirstTokenEstimator | None = self._engine.first_tokens
        self.period: MeasurementPeriod = MeasurementPeriod(now)
        self.in_flight: int = 0  # Slots in use
        self.paused: int = 0  # Requests that have given their slot back for a while
        self.waiting: int = 0  # Tickets in all queues
        self.displaced: list[Ticket] = []  # Expired for those of other users; `pop_ready` returns them
        self._rejected = 0
        self._begin_period()

    @property
    def slo_s(self) -> float:
        """The objective in force, in seconds: the set one, or the learned one."""
        return self.service.slo_s

    @property
    def start_interval_s(self) -> float:
        """Seconds between the starts of two requests in an engine of known capacity; 0 without overload."""
        limited = self.period.limited or self.period.was_limited
        return self._engine.start_interval_s(self.service.latency_s) if limited else 0.0

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
        place = wait.place(demand, work_class, free, self.waiting, now)
        if place.excess <= 0 and (wait.has_place(demand, free) or self._displace(demand)):
            return self._append(Ticket(demand, now, place.max_wait_s, demand.rank + 1, work_class))
        ticket = self.enqueue_reserved(demand, work_class, now)
        if ticket is not None:
            return ticket
        self._rejected += 1
        detail, wait_s = wait.rejected(demand, place, free, self.period.opened_s, now)
        return self._reject(demand.user, detail, wait_s, now)

    def enqueue_reserved(self, demand: Demand, work_class: WorkClass, now: float) -> Ticket | None:
        """Queue a rejected mid or low demand on the reserved share, if credit is left, or call it at once."""
        now = self._tick(now)
        rate, wait_s = self.service.rate_rps, self._engine.first_token_wait_s(demand.rank)
        if not wait_s or rate is None or demand.priority is _HIGH or not self.queues.take_reserved(rate, now):
            return None
        slo_s = demand.slo_s or self.work_classes.slo_of(work_class)
        wait_s = min(RESERVED_MAX_WAIT * slo_s, wait_s)
        ticket = Ticket(demand, now, wait_s, RESERVED_QUEUE, work_class)
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
            self._answers.first_end_s = min(self._answers.first_end_s, now)
        if slot == QUIET and done < QUIET_PER_PERIOD and not client_error:
            half_used = self.in_flight > self.limit / 2.0
            self._answers.record(work_class, holder.started_s, lasted_s, period, half_used=half_used)
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
            return ()
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
        free = self.capacity - self.in_flight
        detail, wait_s = self._wait.expired(ticket, free, self.waiting, self.period.opened_s, now)
        return self._reject(ticket.demand.user, detail, wait_s, now)

    def retry_after_s(self, user: str, now: float) -> float:
        """Assign the next turn to a request that the service itself has rejected; in seconds from now."""
        return self._reject(user, "", self.service.latency_s, self._tick(now)).retry_after_s

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

    def update_cache(self, used_ratio: float | None, running: int | None) -> None:
        """Update the cap by the cache of the engine with its fill, 0..1; None: there is no sample."""
        self._engine.cache.learn(used_ratio, running)
        self._set_capacity()

    def update_memory(self, ratio: float | None) -> None:
        """Update the memory cap with the fill of the fullest device, 0..1; with None the last cap stays."""
        if ratio is not None:
            held = self.in_flight + self.paused  # paused requests keep their memory
            # No request has ever ended: the fill is the idle one.
            untouched = self._answers.first_end_s == math.inf and not held
            self.adaptive.memory.learn(ratio, held, max(self.period.peak, held), untouched=untouched)
            self._set_capacity()

    def report(self) -> LimiterReport:
        """Report to the control loop: rejections since the last report, service rate, and limit."""
        rejected, self._rejected = self._rejected, 0
        queued = self.waiting > 0 or (self._wait.dry_run and self.in_flight > self.capacity)
        limit = self.adaptive.bound(self.limit)
        return LimiterReport(rejected > 0 or queued, self.service.rate_rps, self.in_flight, limit)

    def view(self, now: float) -> ConcurrencyView:
        """Return all figures at ``now``."""
        self._tick(now)
        backlog_s = self._wait.backlog_s(now)
        return self.adaptive.view(self.in_flight, self.paused, self.queues.waiting(), backlog_s)

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
        if not self.adaptive.is_over(period, now):
            period.due_s = now + FAST_PERIOD_S
            return
        self.period = period.close(now, self.in_flight)
        self.adaptive.learn(period, self.paused)
        self._begin_period()

    def _begin_period(self) -> None:
        """Apply the limit, and what has been learned, to the period that begins."""
        # Requests that may be in flight, before the memory cap and the hard limit apply.
        self.limit: float = self.adaptive.value
        self._quiet, self._uncounted_max = self.adaptive.quiet, self.adaptive.uncounted_max
        self.period.due_s = self.period.opened_s + self.settings.period_s
        self._set_capacity()

    def _set_capacity(self) -> None:
        """Apply the bounds to the slots; too many paused requests end admission."""
        is_open = self.paused < self._paused_max
        # Slots that may be in use.
        self.capacity: int = self.adaptive.capacity(self.in_flight, self.paused) if is_open else 0

    def _end_pause(self, work_class: WorkClass) -> None:
        self.paused -= 1
        work_class.paused -= 1
        self._set_capacity()

    def _is_measured(self, outcome: Outcome, lasted_s: float, work_class: WorkClass, now: float) -> bool:
        """Whether a request that did not simply succeed counts: not a neutral one, nor a failure at once."""
        if outcome is not _FAILURE:
            return outcome is _SLOW
        if self.adaptive.memory.record_failure(self.in_flight, now):
            self._set_capacity()
        return lasted_s >= (work_class.unloaded_s or math.inf) / 2

    def _append(self, ticket: Ticket) -> Ticket:
        self.queues.all[ticket.queue_index].append(ticket)
        self.waiting += 1
        return ticket

    def _call(self, ticket: Ticket, now: float) -> None:
        """Give a ticket its slot."""
        ticket.call(COUNTED, now)
        if self.first_tokens is not None:
            self.first_tokens.record_start(1.0, now, waiting=self.waiting > 0)
        ticket.work_class.in_flight += 1
        self._occupy(now)

    def _displace(self, demand: Demand) -> bool:
        """Expire a ticket of a full queue whose user has more of them than that of a demand, if any."""
        queue = self.queues.all[demand.rank + 1]
        ticket = queue.displaced_by(demand.user)
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
