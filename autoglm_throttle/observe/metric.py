"""Describes a metric: its name, its labels, and the source of its value."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeVar

from autoglm_throttle.admission.counters import DurationCounts
from autoglm_throttle.admission.snapshot import Snapshot
from autoglm_throttle.settings import Settings

PREFIX: Final = "autoglm_throttle_"

Labels = tuple[str, ...]


class RecorderTotals(Protocol):
    """Totals of a traffic recorder: requests in its file, and those that it could not write."""

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


T = TypeVar("T")
Rows = Iterable[tuple[Labels, float]]
Histograms = Iterable[tuple[Labels, DurationCounts]]
ReadRows = Callable[[MetricsInput], Rows]
ReadHistograms = Callable[[MetricsInput], Histograms]


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


def counter(name: str, text: str, read: ReadRows, labels: str = "") -> MetricSpec:
    """Describe a counter; names are without the common prefix, labels one text with spaces."""
    return MetricSpec(PREFIX + name, "counter", tuple(labels.split()), text, read)


def gauge(name: str, text: str, read: ReadRows, labels: str = "") -> MetricSpec:
    """Describe a gauge."""
    return MetricSpec(PREFIX + name, "gauge", tuple(labels.split()), text, read)


def stateset(name: str, text: str, read: ReadRows, labels: str = "") -> MetricSpec:
    """Describe a set of states."""
    return MetricSpec(PREFIX + name, "stateset", tuple(labels.split()), text, read)


def info(name: str, text: str, read: ReadRows, labels: str = "") -> MetricSpec:
    """Describe a constant series whose labels carry the information."""
    return MetricSpec(PREFIX + name, "info", tuple(labels.split()), text, read)


def histogram(name: str, text: str, read: ReadHistograms, labels: str = "") -> HistogramSpec:
    """Describe a histogram of durations."""
    return HistogramSpec(PREFIX + name, tuple(labels.split()), text, read)


def one(find: Callable[[Snapshot], T | None], read: Callable[[T], float | None]) -> ReadRows:
    """Make a single series without labels, if a snapshot holds the object and its value is known."""

    def rows(inputs: MetricsInput) -> Rows:
        found = find(inputs.snapshot)
        value = None if found is None else read(found)
        return [] if value is None else [((), float(value))]

    return rows


def each(
    find: Callable[[MetricsInput], Iterable[tuple[str, T]]], read: Callable[[T], float | None]
) -> ReadRows:
    """Make a series for each label and object with a known value."""

    def rows(inputs: MetricsInput) -> Rows:
        values = ((label, read(found)) for label, found in find(inputs))
        return [((label,), float(value)) for label, value in values if value is not None]

    return rows
