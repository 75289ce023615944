"""Work classes: requests that cost alike, with what each class has shown of itself."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from statistics import median
from typing import Final, Protocol

from autoglm_throttle.types import WorkClassView

# What a request holds: no slot; none, as its class is negligible; one given back for a pause; one; one that
# it got with few others in flight; one taken again after a pause. Those above ``PAUSED`` count as in use.
NO_SLOT, UNCOUNTED, PAUSED, COUNTED, QUIET, RESUMED = range(6)

CLASSES_MAX: Final = 64  # Classes at most; the requests of all others share one. [simulated in the design]
VIEWED_CLASSES: Final = 16  # Work classes in a view
UNLOADED_SAMPLES: Final = 15  # Answers whose median is the unloaded latency. [simulated in the design]

LEAST_OF: Final = 2  # Completions of a period whose mean may be the least one

# Answers from which an objective that is not set is learned, at most and at least. [simulated]
EASY_SAMPLES, EASY_SAMPLES_MIN = 200, 5

# Objective until one is learned, and its least value: the founding alert threshold.
LEARNED_SLO_MIN_S: Final = 2.0

# Learned objective in 95th percentiles of the easy answers. [simulated: 8 medians lose 14 % at 2x]
LEARNED_SLO_FACTOR: Final = 4.0

# The budget is at least 2.5 unloaded latencies within 0.4 of the objective, or 1.25 of them beyond it.
# [simulated: 0.7 instead of 0.4 costs high 2 points]
UNLOADED_PER_BUDGET, BUDGET_SLO_SHARE, BUDGET_MARGIN = 2.5, 0.4, 1.25

# The same, of the least mean of a period, until the latency without load of an only class is known: 2 of them
# within 0.4 of the objective, or 1.2 within 0.6. [simulated: without the first an LLM keeps 0.94 of its
# throughput at 2x; without the second a service of 1 s with 2 s allowed begins with 0.57; with several
# classes a tenth of the mixes lose 2 %] Not with several workers: the one that has seen the longest mean
# would aim higher, grow, and lengthen it. [simulated: four uneven workers then keep 0.70 of high instead of
# 0.85]
LOADED_PER_BUDGET, LOADED_MARGIN, LOADED_SLO_SHARE = 2.0, 1.2, 0.6

# Largest rise in a period of the unloaded latency that several processes share. [simulated: without it eight
# of them before 10 requests/s keep 0.59 of the goodput, with it 0.99]
SHARED_RISE: Final = 1.01

# Closed periods after which a class without requests is forgotten: two minutes or more.
IDLE_PERIODS_MAX: Final = 240

# The same if it never had an answer: the arrival of its first request may end the period of its name.
NAMED_PERIODS: Final = 1

# Requests of one negligible class that may be in flight without a slot: at least, and as a share of the
# limit. A class that turns slow is limited again.
UNCOUNTED_MIN, UNCOUNTED_SHARE = 3, 0.05


class SlotHolder(Protocol):
    """A request that holds a slot: a permit, or a ticket that was called."""

    work_class: WorkClass
    slot: int  # What it holds: `NO_SLOT` to `RESUMED`
    # When it got its slot, later by the time of its pauses; while it is paused, the time it has run.
    started_s: float


class WorkClass:
    """Measurements of one class: of the present period, and what is known from earlier ones."""

    __slots__ = (
        *("arrived", "demand_rps", "done", "ever_done", "idle_periods", "in_flight", "mean_s"),
        *("learned_slo_s", "least_s", "name", "negligible", "paused", "rate_rps", "slo_s", "total_s"),
        *("unloaded", "unloaded_s", "_easy", "_easy_changed"),
    )

    def __init__(self, name: str, slo_s: float | None = None) -> None:
        self.name: str = name  # Empty for requests without one
        self.slo_s: float | None = slo_s  # The declared objective; None: that of the service
        self.in_flight: int = 0  # Requests in flight, with or without a slot, paused ones included
        self.paused: int = 0  # Of these, paused ones
        self.arrived: int = 0  # Arrivals of the present period
        self.done: int = 0  # Requests of the present period that ended with a measured outcome
        self.total_s: float = 0.0  # The sum of their times in the service
        self.demand_rps: float = 0.0  # Arrivals per second
        self.rate_rps: float = 0.0  # Measured ends per second
        self.mean_s: float | None = None  # Recent mean time in the service; None before the first completion
        # Least mean of a period, no less than the latency without load; None before the first completion.
        self.least_s: float | None = None
        # Times of answers that had few others beside them for their whole life.
        self.unloaded: deque[float] = deque(maxlen=UNLOADED_SAMPLES)
        # Latency without load, the median of these; None until there is one.
        self.unloaded_s: float | None = None
        # Whether its requests are so short beside the others that they need no slot.
        self.negligible: bool = False
        self.ever_done: bool = False
        self.idle_periods: int = 0  # Periods since its last arrival
        self._easy: deque[float] = deque(maxlen=EASY_SAMPLES)
        self._easy_changed = False
        # The objective that its own answers suggest; None until there are enough of them.
        self.learned_slo_s: float | None = None

    def add_easy(self, lasted_s: float) -> None:
        """Add the time of an answer that began beside few others: an objective is learned from it."""
        self._easy.append(lasted_s)
        self._easy_changed = True

    def close(self, lasted_s: float, gain: float, *, alone: bool) -> None:
        """Update the smoothed figures with the period that has ended; the counts stay for the estimator.

        ``gain`` is the weight of the period in rates; ``alone``: no other process loads the service.
        """
        self.demand_rps += gain * (self.arrived / lasted_s - self.demand_rps)
        self.rate_rps += gain * (self.done / lasted_s - self.rate_rps)
        self.idle_periods = 0 if self.arrived or self.in_flight else self.idle_periods + 1
        if self.done:
            mean_s = self.total_s / self.done
            self.mean_s = mean_s if self.mean_s is None else self.mean_s + 0.5 * (mean_s - self.mean_s)
            if self.least_s is None or (self.done >= LEAST_OF and mean_s < self.least_s):
                self.least_s = mean_s
            self.ever_done = True
        if self._easy_changed and len(self._easy) >= EASY_SAMPLES_MIN:
            p95_s = sorted(self._easy)[int(0.95 * (len(self._easy) - 1) + 0.5)]
            self.learned_slo_s = max(LEARNED_SLO_MIN_S, LEARNED_SLO_FACTOR * p95_s)
        self._easy_changed = False
        if self.unloaded:
            unloaded_s = median(self.unloaded)
            if not alone and self.unloaded_s is not None:
                # Few beside it here may be many in the service: the others load it unseen.
                unloaded_s = min(unloaded_s, SHARED_RISE * self.unloaded_s)
            self.unloaded_s = unloaded_s

    def begin(self) -> None:
        """Begin the next period."""
        self.arrived = self.done = 0
        self.total_s = 0.0

    def budget_s(self, share: float, slo_s: float, *, alone: bool = False) -> float:
        """Return the seconds that a request may spend in the service: ``share`` of the objective, or more.

        ``alone``: there is no other class and no other worker.
        """
        unloaded_s = self.unloaded_s
        if unloaded_s is None:
            least_s = (self.least_s or 0.0) if alone else 0.0
            return max(
                share * slo_s,
                min(LOADED_PER_BUDGET * least_s, BUDGET_SLO_SHARE * slo_s),
                min(LOADED_MARGIN * least_s, LOADED_SLO_SHARE * slo_s),
            )
        within_s = max(BUDGET_SLO_SHARE * slo_s, BUDGET_MARGIN * unloaded_s)
        return max(share * slo_s, min(UNLOADED_PER_BUDGET * unloaded_s, within_s))


class WorkClasses(dict[str, WorkClass]):
    """The known classes by name; looking up a new name adds a class, or returns the shared one.

    Args:
        slo_s: objective of the classes without one of their own; None: it is learned.
        objectives: declared objectives in seconds, by name of the class.
        most: named classes at most.
    """

    __slots__ = ("_most", "_objectives", "_slo_s", "client_errors", "shared")

    def __init__(self, slo_s: float | None, objectives: Mapping[str, float], most: int = CLASSES_MAX) -> None:
        super().__init__()
        self._slo_s = slo_s
        self._objectives = objectives
        self._most = most
        self.shared: WorkClass = WorkClass("other")  # That of all requests beyond the number of classes
        # That of answers with a client error: they say nothing about the work of the others.
        self.client_errors: WorkClass = WorkClass("client_error")

    def __missing__(self, name: str) -> WorkClass:
        if len(self) >= self._most:
            return self.shared
        found = self[name] = WorkClass(name, self._objectives.get(name))
        return found

    def all(self) -> Iterator[WorkClass]:
        """Yield every named class, and the others that are in use."""
        yield from self.values()
        for one in (self.shared, self.client_errors):
            if one.arrived or one.done or one.demand_rps or one.ever_done:
                yield one

    def slo_of(self, work_class: WorkClass) -> float:
        """Return the objective of a class in seconds: its own, that of the service, or the learned one."""
        return work_class.slo_s or self._slo_s or work_class.learned_slo_s or LEARNED_SLO_MIN_S

    def is_known(self, work_class: WorkClass) -> bool:
        """Whether the objective of a class was set or has been learned."""
        return bool(work_class.slo_s or self._slo_s or work_class.learned_slo_s)

    def view(self) -> tuple[WorkClassView, ...]:
        """Return the figures of the classes with most requests."""
        used = [one for one in self.all() if one.ever_done or one.in_flight]
        used.sort(key=lambda one: -one.rate_rps)
        return tuple(
            WorkClassView(one.name, one.rate_rps, one.mean_s, one.unloaded_s, one.negligible, one.in_flight)
            for one in used[:VIEWED_CLASSES]
        )

    def forget_unused(self) -> None:
        """Forget the classes that never had an answer, so that made-up paths fill no table, and old ones."""
        unused = [
            name
            for name, one in self.items()
            if not one.in_flight and one.idle_periods > (IDLE_PERIODS_MAX if one.ever_done else NAMED_PERIODS)
        ]
        for name in unused:
            del self[name]


class MeasurementPeriod:
    """Counts and sums between two changes of the limit, read and changed by the limiter.

    The counts of the work classes stand in these.
    """

    __slots__ = (
        *("arrived", "busy_s", "due_s", "ended", "lasted_s", "latest_s"),
        *("limited", "mean_in_flight", "opened_s", "peak", "starts_s", "was_limited"),
    )

    def __init__(self, now: float) -> None:
        self.opened_s: float = now
        self.latest_s: float = now  # Newest instant that the limiter was given
        self.due_s: float = 0.0  # Earliest end
        self.arrived: list[int] = [0, 0, 0]  # Arrivals of high, mid, low
        self.ended: list[WorkClass] = []  # The classes with measured ends
        # Sum of the start instants of the requests in flight: their area is ``in_flight * now`` minus it.
        self.starts_s: float = 0.0
        self.busy_s: float = now  # When a request last started beside more than a few others
        self.peak: int = 0  # Most slots in use
        self.limited: bool = False  # Whether a request found the limit reached
        self.was_limited: bool = False  # The same of the period before
        self.lasted_s: float = 0.0  # Set at the end, as ``mean_in_flight``
        self.mean_in_flight: float = 0.0

    @property
    def done(self) -> int:
        """Requests that ended with a measured outcome."""
        return sum(one.done for one in self.ended)

    def close(self, now: float, in_flight: int) -> MeasurementPeriod:
        """End at ``now`` with ``in_flight`` slots in use, and return the next period."""
        self.lasted_s = now - self.opened_s
        self.mean_in_flight = (in_flight * now - self.starts_s) / self.lasted_s
        following = MeasurementPeriod(now)
        following.starts_s = in_flight * now
        following.busy_s = self.busy_s
        following.peak = in_flight
        following.was_limited = self.limited
        return following
