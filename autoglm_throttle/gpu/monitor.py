"""Runs one sampler per telemetry source and merges their samples into one `GpuView` with verdicts."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Final

from autoglm_throttle._runtime import weak_method
from autoglm_throttle.gpu.aggregate import Aggregator
from autoglm_throttle.gpu.host import HostLoad, HostSampler
from autoglm_throttle.gpu.interval import AdaptiveInterval
from autoglm_throttle.gpu.sampler import Sampler, SourceView
from autoglm_throttle.gpu.verdict.tracker import VerdictTracker
from autoglm_throttle.settings.groups.gpu import GpuSettings, VerdictSettings
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
from autoglm_throttle.types.errors import NoSourceError

# Conditions that allow a longer sampling interval.
NORMAL_CONDITIONS: Final = frozenset({GpuCondition.IDLE, GpuCondition.WORKING})
JOIN_S: Final = 1.0  # Seconds to wait for threads in a hung read, all together


class GpuMonitor:
    """Reads each source on a thread of its own, so that a hung driver does not block the other sources.

    For a device of two ``providers`` the first counts, field by field. ``observe`` gets each reading on its
    thread: rows, source, promised seconds to the next. ``source_lost`` gets the loss of the last source:
    misconfigured (True), or never there (False). Both methods are held weakly.
    """

    def __init__(
        self,
        settings: GpuSettings,
        verdict: VerdictSettings,
        providers: Sequence[GpuProvider],
        observe: Callable[[Sequence[GpuSample], str, float | None], object],
        source_lost: Callable[[bool], object],
        clock: Clock = time.monotonic,
    ) -> None:
        interval_s = settings.sample_interval_s
        self._observe, self._source_lost = weak_method(observe), weak_method(source_lost)
        self._clock = clock
        self._aggregator = Aggregator(settings, [provider.name for provider in providers])
        self._verdicts = VerdictTracker(verdict, settings)
        self._host = HostSampler()
        self._interval = (
            AdaptiveInterval(interval_s, settings.sample_interval_max_s) if settings.sample_adaptive else None
        )
        self.is_idle: bool = False  # Whether the next request should wake the samplers
        # Source that has nothing to read -> whether that is a misconfiguration.
        self._silent: dict[str, bool] = {}
        self.samplers: dict[str, Sampler] = {one.name: self._sampler(one, interval_s) for one in providers}
        if len(self.samplers) < len(providers):
            raise ValueError(f"two sources have the same name: {[provider.name for provider in providers]}")

    @property
    def providers(self) -> tuple[GpuProvider, ...]:
        """The sources, in the order given."""
        return tuple(sampler.provider for sampler in self.samplers.values())

    @property
    def has_sources(self) -> bool:
        """Whether there is a source to read."""
        return bool(self.samplers)

    @property
    def is_running(self) -> bool:
        """Whether a thread reads, or has ended for good."""
        return any(sampler.is_running for sampler in self.samplers.values())

    @property
    def error_count(self) -> int:
        """Failed or overdue reads, crashes, and implausible fields, of all sources."""
        return sum(
            one.failures + one.overruns + one.implausible + one.callback_errors + one.crashes
            for one in (sampler.status for sampler in self.samplers.values())
        )

    def start(self) -> None:
        """Start every thread that is not running; returns at once."""
        for sampler in self.samplers.values():
            sampler.start()

    def stop(self) -> None:
        """Stop every thread; a thread in a hung read is left behind."""
        stop_all(self.samplers.values())

    def tick(self) -> None:
        """Read every source once, in the caller."""
        for sampler in self.samplers.values():
            sampler.tick()

    def wake(self, now: float) -> None:
        """Restart crashed samplers, and wake idle ones; cheap if there is neither."""
        was_idle, self.is_idle = self.is_idle, False
        for sampler in self.samplers.values():
            if was_idle:
                sampler.wake()
            sampler.restart_if_dead(now)

    def host(self, now: float) -> HostLoad:
        """Sample the load of this host, at most twice a second; reads small files, so not under the lock."""
        return self._host.current(now)

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

        The load is the maximum of device load, pressure and limiter occupancy; None: only occupancy is known.
        ``busy``: whether any request was admitted since the previous reading.
        """
        if self._interval is None:
            return
        is_normal = {verdict.condition for verdict in view.verdicts.values()} <= NORMAL_CONDITIONS
        urgent = state.factor < 1.0 or state.telemetry is not TelemetryState.FRESH or not is_normal
        interval_s = self._interval.next(load, urgent, now)
        for sampler in self.samplers.values():
            sampler.set_interval(interval_s)
        self.is_idle = not busy and interval_s > self._interval.interval_s

    def views(self, now: float) -> tuple[SourceView, ...]:
        """Return the state of each source."""
        return tuple(sampler.view(now) for sampler in self.samplers.values())

    def _sampler(self, provider: GpuProvider, interval_s: float) -> Sampler:
        name = provider.name  # the name of an automatic choice changes once it is made
        # The sampler's thread must not keep the monitor alive.
        sampler = Sampler(
            provider,
            partial(weak_method(self._on_samples), name),
            partial(weak_method(self._on_failure), name),
            interval_s=interval_s,
            clock=self._clock,
        )
        sampler.stop_with(self)
        return sampler

    def _on_samples(self, name: str, rows: Sequence[GpuSample]) -> None:
        self._silent.pop(name, None)
        self._observe(rows, name, self.samplers[name].interval_s)

    def _on_failure(self, name: str, error: Exception) -> None:
        if not isinstance(error, NoSourceError | ProviderMisconfigured):
            return
        self._silent[name] = isinstance(error, ProviderMisconfigured)
        if len(self._silent) == len(self.samplers):
            self._source_lost(any(self._silent.values()))


def stop_all(samplers: Collection[Sampler]) -> None:
    """Stop all samplers together, and wait for them; a thread in a hung read is left behind."""
    for sampler in samplers:
        sampler.stop(0.0)
    # All threads received the stop request above: they share one deadline here.
    last_s = time.monotonic() + JOIN_S
    for sampler in samplers:
        sampler.stop(max(0.0, last_s - time.monotonic()))
