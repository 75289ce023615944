"""Reads the sources of GPU telemetry as a service does, without serving requests.

Each source is read on its own thread, so one that hangs is shown as hanging while the others go on.
The service's own requests are unknown here. Verdicts that need them, above all a stall, appear only in
the service's metrics and log.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from autoglm_throttle.gpu.aggregate import Aggregator
from autoglm_throttle.gpu.monitor import SourceState, stop_all
from autoglm_throttle.gpu.sampler import Sampler
from autoglm_throttle.gpu.select import providers
from autoglm_throttle.gpu.verdict.tracker import VerdictTracker
from autoglm_throttle.settings import Settings
from autoglm_throttle.types import GpuProvider, GpuSample, GpuView, ServiceStats

INTERVAL_S: Final = 0.7
"""Seconds between two readings, or less if configured; a server is read once a second."""

MIN_SPAN_S: Final = 2.05
"""Minimum time between the first and the last reading before anything is shown.

Rates and GPM need two readings, a verdict needs three that span 2 s.
"""

FIRST_READ_TIMEOUT_S: Final = 10.0
"""Timeout of the first reading: opening a driver can take seconds if nothing keeps it loaded."""

HANG_AFTER_S: Final = 3.0
"""Duration after which a reading counts as hanging; a scrape is aborted after 2 s."""

_STEP_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class GpuSource:
    """One source, and its state."""

    name: str
    state: SourceState
    error: str
    """Reason for missing readings, with the remedy; empty while it works."""


@dataclass(frozen=True, slots=True)
class GpuReading:
    """View and source states at one moment."""

    at_s: float
    """Monotonic."""
    view: GpuView | None
    """None: no source has reported yet."""
    sources: tuple[GpuSource, ...]


class GpuReader:
    """Reads all configured sources, until the context ends.

    Args:
        settings: the sources, and the way their samples are merged.

    Raises:
        ValueError: the name of a source is invalid.
    """

    def __init__(self, settings: Settings) -> None:
        sources = providers(settings.gpu)
        self._aggregator = Aggregator(settings.gpu, [source.name for source in sources])
        self._verdict_tracker = VerdictTracker(settings.verdict, settings.gpu)
        self._lock = threading.Lock()
        self._view: GpuView | None = None
        self._first_s: dict[str, float] = {}
        self._failing: dict[str, str] = {}
        self._started_s = time.monotonic()
        interval_s = min(INTERVAL_S, settings.gpu.sample_interval_s)
        self._samplers = {source.name: self._sampler(source, interval_s) for source in sources}

    def __enter__(self) -> GpuReader:
        """Start reading."""
        self._started_s = time.monotonic()
        for sampler in self._samplers.values():
            sampler.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop reading; a thread in a hung read is left behind."""
        stop_all(self._samplers.values())

    @property
    def has_sources(self) -> bool:
        """Whether there is any source."""
        return bool(self._samplers)

    def wait_until_ready(self) -> None:
        """Wait until each source has enough readings or an error."""
        until_s = self._started_s + FIRST_READ_TIMEOUT_S
        pause = threading.Event()
        while (now := time.monotonic()) < until_s and not self._is_ready(now):
            pause.wait(_STEP_S)

    def snapshot(self) -> GpuReading:
        """Return the current reading."""
        now = time.monotonic()
        with self._lock:
            sources = tuple(self._source(name, sampler, now) for name, sampler in self._samplers.items())
            return GpuReading(now, self._view, sources)

    def _is_ready(self, now: float) -> bool:
        with self._lock:
            return all(self._is_source_ready(name, sampler, now) for name, sampler in self._samplers.items())

    def _is_source_ready(self, name: str, sampler: Sampler, now: float) -> bool:
        status = sampler.status
        if name in self._failing or status.misconfigured or status.no_source or sampler.has_crashed:
            return True
        first_s, last_s = self._first_s.get(name), status.last_read_s
        if first_s is None or last_s is None:  # it hangs, or it responds without devices
            return status.reading_since_s is None and now - self._started_s >= MIN_SPAN_S
        return last_s - first_s >= MIN_SPAN_S

    def _source(self, name: str, sampler: Sampler, now: float) -> GpuSource:
        status = sampler.status
        since_s = status.reading_since_s
        hung_s = 0.0 if since_s is None else now - since_s
        failing = self._failing.get(name, "")
        states: tuple[tuple[bool, SourceState, str], ...] = (
            (status.misconfigured is not None, "misconfigured", status.misconfigured or ""),
            (sampler.has_crashed, "crashed", status.last_error or ""),
            (status.no_source is not None, "no_source", status.no_source or ""),
            (hung_s >= HANG_AFTER_S, "hanging", f"it has not answered for {hung_s:.0f} s"),
            (bool(failing), "failing", failing),
            (name not in self._first_s, "starting", "it reports no device"),
        )
        state, error = next(((state, error) for holds, state, error in states if holds), ("reading", ""))
        return GpuSource(sampler.name, state, error)

    def _sampler(self, source: GpuProvider, interval_s: float) -> Sampler:
        name = source.name  # an automatic source changes its name after its choice

        def on_rows(rows: Sequence[GpuSample]) -> None:
            self._on_rows(name, rows)

        def failed(error: Exception) -> None:
            with self._lock:
                self._failing[name] = str(error)

        return Sampler(source, on_rows, failed, interval_s=interval_s)

    def _on_rows(self, name: str, rows: Sequence[GpuSample]) -> None:
        now = time.monotonic()
        with self._lock:
            self._failing.pop(name, None)
            self._first_s.setdefault(name, now)
            interval_s = self._samplers[name].interval_s
            view = self._aggregator.update(rows, now, source=name, interval_s=interval_s)
            self._view = self._verdict_tracker.update(view, ServiceStats(), now)
