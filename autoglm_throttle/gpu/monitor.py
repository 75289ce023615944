"""Runs one sampler per telemetry source and merges their samples into one `GpuView` with verdicts.

Contains no algorithm. `GpuMonitor.merge` and `GpuMonitor.schedule_next` run under the throttle's lock;
calls that may wait for a driver run on the threads of the samplers.
"""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

from autoglm_throttle.admission.snapshot import SourceState, SourceView
from autoglm_throttle.gpu.aggregate import Aggregator
from autoglm_throttle.gpu.host import HostSampler, HostStats
from autoglm_throttle.gpu.interval import AdaptiveInterval
from autoglm_throttle.gpu.provider_errors import NoSourceError
from autoglm_throttle.gpu.sampler import DEADLINE_MIN_S, DEADLINE_SHARE, Sampler
from autoglm_throttle.gpu.sanity import drop_implausible
from autoglm_throttle.gpu.verdict_tracker import VerdictRules, VerdictTracker
from autoglm_throttle.settings import Settings
from autoglm_throttle.types import (
    Clock,
    ControlState,
    GpuCondition,
    GpuProvider,
    GpuSample,
    GpuView,
    ProviderMisconfigured,
    ServiceStats,
    TelemetryState,
)

NORMAL_CONDITIONS: Final = frozenset({GpuCondition.IDLE, GpuCondition.WORKING})
"""Conditions that allow a longer sampling interval."""

HOST_EVERY_S: Final = 0.5
"""Seconds between two host samples. Several sources report within one interval, and the load average
covers a minute.
"""

JOIN_S: Final = 1.0
"""Seconds to wait for threads in a hung read, all together."""

SamplesCallback = Callable[[Sequence[GpuSample], str, float | None], object]
"""Receives samples, the name of their source, and the promised seconds to the next reading."""


@dataclass(frozen=True, slots=True)
class SampleListener:
    """Callbacks of a `GpuMonitor`; both run on the thread of a sampler."""

    on_samples: SamplesCallback
    on_sources_lost: Callable[[bool], object]
    """Called when no source is left: True if one existed or is misconfigured, False if none ever existed."""


class GpuMonitor:
    """Reads each source on a thread of its own, so that a hung driver does not block the other sources.

    Args:
        settings: sampling interval and aggregation.
        providers: the sources; for a device reported by two, the first counts, field by field.
        listener: receives the samples.
        clock: monotonic seconds.

    Raises:
        ValueError: two of the sources have the same name.
    """

    def __init__(
        self,
        settings: Settings,
        providers: Sequence[GpuProvider],
        listener: SampleListener,
        clock: Clock = time.monotonic,
    ) -> None:
        interval_s = settings.sample_interval_s
        self._listener = listener
        self._clock = clock
        self._aggregator = aggregator(settings, [provider.name for provider in providers])
        self._verdicts = verdict_tracker(settings)
        self._host_sampler = HostSampler()
        self._host_stats = HostStats(None, None)
        self._host_due_s = -math.inf
        self._interval = (
            AdaptiveInterval(interval_s, settings.sample_interval_max_s) if settings.sample_adaptive else None
        )
        self._is_idle = False
        self._not_found: set[str] = set()
        self._misconfigured: set[str] = set()
        self._samplers = {provider.name: self._sampler(provider, interval_s) for provider in providers}
        if len(self._samplers) < len(providers):
            raise ValueError(f"two sources have the same name: {[provider.name for provider in providers]}")

    def __repr__(self) -> str:
        return f"GpuMonitor({', '.join(self._samplers) or 'no sources'})"

    @property
    def has_sources(self) -> bool:
        """Whether there is a source to read."""
        return bool(self._samplers)

    @property
    def is_running(self) -> bool:
        """Whether a thread reads, or has ended for good."""
        return any(sampler.running for sampler in self._samplers.values())

    @property
    def error_count(self) -> int:
        """Failed or overdue reads, crashes, and implausible fields, of all sources."""
        return sum(
            one.failures + one.overruns + one.implausible + one.callback_errors + one.crashes
            for one in self._samplers.values()
        )

    def start(self) -> None:
        """Start every thread that is not running; returns at once."""
        for sampler in self._samplers.values():
            sampler.start()

    def stop(self) -> None:
        """Stop every thread; a thread in a hung read is left behind."""
        stop_all(self._samplers.values())

    def tick(self) -> None:
        """Read every source once, in the caller."""
        for sampler in self._samplers.values():
            sampler.tick()

    def wake(self, now: float) -> None:
        """Restart crashed samplers, and wake idle ones; cheap if there is neither."""
        if self._is_idle:
            self._is_idle = False
            for sampler in self._samplers.values():
                sampler.wake()
        for sampler in self._samplers.values():
            sampler.restart_if_dead(now)

    def host(self, now: float) -> HostStats:
        """Sample the load of this host, at most twice a second; reads small files, so not under the lock."""
        if now >= self._host_due_s:
            self._host_due_s = now + HOST_EVERY_S
            self._host_stats = self._host_sampler.read()
        return self._host_stats

    def drop_implausible(self, rows: Sequence[GpuSample]) -> list[GpuSample]:
        """Validate externally supplied samples: implausible fields become None."""
        return [drop_implausible(row)[0] for row in rows]

    def merge(
        self,
        rows: Sequence[GpuSample],
        stats: ServiceStats,
        now: float,
        *,
        source: str,
        interval_s: float | None,
    ) -> GpuView:
        """Merge one reading of one source into the current view, with a verdict for each device."""
        view = self._aggregator.update(rows, now, source=source, interval_s=interval_s)
        return self._verdicts.update(view, stats, now)

    def schedule_next(
        self, view: GpuView, state: ControlState, load: float | None, *, busy: bool, now: float
    ) -> None:
        """Schedule the next reading, if the interval is adaptive.

        Args:
            view: the newest.
            state: the control state in force.
            load: the maximum of device load, pressure and limiter occupancy; None: only occupancy is known.
            busy: whether any request was admitted since the previous reading.
            now: monotonic seconds.
        """
        if self._interval is None:
            return
        conditions = {verdict.condition for verdict in view.verdicts.values()}
        urgent = (
            state.factor < 1.0
            or state.telemetry is not TelemetryState.FRESH
            or not conditions <= NORMAL_CONDITIONS
        )
        interval_s = self._interval.next(load, urgent, now)
        for sampler in self._samplers.values():
            sampler.set_interval(interval_s)
        self._is_idle = not busy and interval_s > self._interval.interval_s

    @property
    def is_idle(self) -> bool:
        """Whether the next request should wake the samplers."""
        return self._is_idle

    def views(self, now: float) -> tuple[SourceView, ...]:
        """Return the state of each source."""
        return tuple(_source_view(sampler, now) for sampler in self._samplers.values())

    def _sampler(self, provider: GpuProvider, interval_s: float) -> Sampler:
        name = provider.name  # the name of an automatic choice changes once it is made
        # The sampler thread must not keep the monitor alive.
        self_ref = weakref.ref(self)

        def samples(rows: Sequence[GpuSample]) -> None:
            monitor = self_ref()
            if monitor is not None:
                monitor._on_samples(name, rows)  # noqa: SLF001 - a method of this class, through a weak reference

        def failure(error: Exception) -> None:
            monitor = self_ref()
            if monitor is not None:
                monitor._on_failure(name, error)  # noqa: SLF001 - as above

        sampler = Sampler(provider, samples, failure, interval_s=interval_s, clock=self._clock)
        weakref.finalize(self, sampler.stop, 0.0).atexit = False
        return sampler

    def _on_samples(self, name: str, rows: Sequence[GpuSample]) -> None:
        self._not_found.discard(name)
        self._misconfigured.discard(name)
        self._listener.on_samples(rows, name, self._samplers[name].interval_s)

    def _on_failure(self, name: str, error: Exception) -> None:
        if isinstance(error, NoSourceError):
            self._not_found.add(name)
        elif isinstance(error, ProviderMisconfigured):
            self._misconfigured.add(name)
        else:
            return
        if len(self._not_found | self._misconfigured) == len(self._samplers):
            self._listener.on_sources_lost(bool(self._misconfigured))


def aggregator(settings: Settings, order: Sequence[str]) -> Aggregator:
    """Create the aggregator; of two sources for a device the first in the order counts, field by field."""
    return Aggregator(
        settings.gpu_aggregate,
        stale_after_s=settings.gpu_stale_after_s or max(3.0 * settings.sample_interval_s, 3.0),
        forget_s=settings.gpu_forget_s,
        order=tuple(order),
    )


def verdict_tracker(settings: Settings) -> VerdictTracker:
    """Create the verdict tracker from the settings."""
    rules = VerdictRules(
        power_stalled=settings.verdict_power_stalled,
        power_underfed=settings.verdict_power_underfed,
        sm_stalled=settings.verdict_sm_stalled,
        sm_underfed=settings.verdict_sm_underfed,
        stalled_s=settings.verdict_stalled_s,
        queue_target=float(settings.gpu_queue_target),
    )
    return VerdictTracker(rules)


def stop_all(samplers: Collection[Sampler]) -> None:
    """Stop all samplers together, and wait for them; a thread in a hung read is left behind."""
    for sampler in samplers:
        sampler.stop(0.0)
    # All threads received the stop request above: they share one deadline here.
    last_s = time.monotonic() + JOIN_S
    for sampler in samplers:
        sampler.stop(max(0.0, last_s - time.monotonic()))


def _source_view(sampler: Sampler, now: float) -> SourceView:
    read_s = sampler.last_read_s
    return SourceView(
        name=sampler.name,
        state=_state(sampler, now),
        last_error=sampler.no_source or sampler.last_error or "",
        failures=sampler.failures,
        overruns=sampler.overruns,
        implausible=sampler.implausible,
        crashes=sampler.crashes,
        interval_s=sampler.interval_s,
        age_s=None if read_s is None else max(0.0, now - read_s),
    )


def _state(sampler: Sampler, now: float) -> SourceState:
    """Return the first state that holds, the most severe first."""
    since_s = sampler.reading_since_s
    deadline_s = max(DEADLINE_SHARE * sampler.interval_s, DEADLINE_MIN_S)
    states: tuple[tuple[bool, SourceState], ...] = (
        (sampler.misconfigured is not None, "misconfigured"),
        (sampler.crashed, "crashed"),
        (since_s is not None and now - since_s > deadline_s, "hanging"),
        (sampler.no_source is not None, "no_source"),
        (sampler.failing, "failing"),
        (sampler.last_read_s is None, "starting"),
    )
    return next((state for holds, state in states if holds), "reading")
