"""Describes a metric: its name, its labels, and the source of its value."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from autoglm_throttle.admission.counters import DurationCounts
from autoglm_throttle.admission.snapshot import Snapshot
from autoglm_throttle.settings import Settings

PREFIX: Final = "autoglm_throttle_"

Labels = tuple[str, ...]


class RecorderTotals(Protocol):
    """Totals of a traffic recorder."""

    @property
    def written(self) -> int:
        """Requests in its file."""
        ...

    @property
    def dropped(self) -> int:
        """Requests that it could not write."""
        ...


class RecorderProtocol(Protocol):
    """A traffic recorder as the metrics read it, such as that of ``autoglm_throttle.traffic.record``."""

    @property
    def counts(self) -> RecorderTotals:
        """The current counts."""
        ...


@dataclass(frozen=True, slots=True)
class MetricsInput:
    """Input of one scrape."""

    snapshot: Snapshot
    settings: Settings
    recorder: RecorderTotals | None = None


Rows = Iterable[tuple[Labels, float]]
Histograms = Iterable[tuple[Labels, DurationCounts]]


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric."""

    name: str
    """As in Prometheus, without the ``_total`` that its format adds to counters."""
    kind: Literal["counter", "gauge", "stateset", "info"]
    """A state set is a gauge that is 1 for the state in force and 0 for the others; info is always 1."""
    labels: Labels
    help: str
    read: Callable[[MetricsInput], Rows]
    """Label values and value of each series; no I/O, no lock."""


@dataclass(frozen=True, slots=True)
class HistogramSpec:
    """A metric of durations, in the buckets of `DURATION_BUCKETS_S`."""

    name: str
    labels: Labels
    help: str
    read: Callable[[MetricsInput], Histograms]
    """Label values and counts of each series."""
    kind: Literal["histogram"] = "histogram"
