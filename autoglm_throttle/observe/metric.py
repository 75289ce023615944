"""Describes a metric: its name, its labels, and the source of its value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal, Protocol, TypeAlias

from autoglm_throttle.admission.counters import DurationHistogram
from autoglm_throttle.admission.snapshot import Snapshot
from autoglm_throttle.observe.evaluator import Alert
from autoglm_throttle.observe.host import HostView, host_view
from autoglm_throttle.observe.models import ModelsView
from autoglm_throttle.observe.series import History
from autoglm_throttle.observe.siblings import WorkerView
from autoglm_throttle.settings import Settings
from autoglm_throttle.types import GpuSample

PREFIX: Final = "autoglm_throttle_"

Labels = tuple[str, ...]


class RecorderProtocol(Protocol):
    """A traffic recorder as the metrics read it, such as that of ``autoglm_throttle.traffic.record``."""

    @property
    def counts(self) -> tuple[int, int, str]:
        """Requests in its file, those that it could not write, and why it has ended."""
        ...


@dataclass(frozen=True, slots=True)
class AlertsView:
    """The built-in alerts at one moment."""

    current: Sequence[Alert]
    """Pending and firing alerts."""
    up: bool
    """Whether the rules were evaluated at the newest step."""
    firing: Mapping[str, bool]
    """Rule -> whether an alert of it fires."""
    scores: Mapping[str, tuple[float, float, bool]]
    """Series -> deviations from its baseline, value at which it is unusual, and whether it is."""


@dataclass(frozen=True, slots=True)
class MetricsInput:
    """Input of one scrape."""

    snapshot: Snapshot
    settings: Settings
    recorder: RecorderProtocol | None = None
    host: HostView = field(default_factory=host_view)
    alerts: AlertsView | None = None
    """None: no alerts are evaluated in this process."""
    reported: dict[bool, list[tuple[str, GpuSample]]] = field(default_factory=dict)
    """The result of `gpu_metrics.reported_by`, for GPUs and for engines: many metrics read it."""
    history: History | None = None
    """The recent values; None while they are recorded, and where there is no timer, as `models`."""
    models: ModelsView | None = None
    workers: Sequence[WorkerView] = ()
    """The workers of the service on this host, if there are several."""


Rows = Iterable[tuple[Labels, float]]
Histograms = Iterable[tuple[Labels, DurationHistogram]]
ReadRows = Callable[[MetricsInput], Rows]
Value: TypeAlias = Any  # Of an attribute: a number, a state, a mapping
Kind = Literal["counter", "gauge", "stateset", "info"]
# Finds named objects, such as sources and devices; the name is a label.
FindNamed = Callable[[MetricsInput], Iterable[tuple[str, object]]]


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric."""

    name: str
    """As in Prometheus, without the ``_total`` that its format adds to counters."""
    kind: Kind
    """A state set is a gauge that is 1 for the state in force and 0 for the others; info is always 1."""
    labels: Labels
    help: str
    read: ReadRows
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


def _describe(kind: Kind, name: str, text: str, read: ReadRows, labels: str = "") -> MetricSpec:
    """Describe a metric; names are without the common prefix, labels one text with spaces."""
    return MetricSpec(PREFIX + name, kind, tuple(labels.split()), text, read)


counter: Final = partial(_describe, "counter")
gauge: Final = partial(_describe, "gauge")
stateset: Final = partial(_describe, "stateset")
info: Final = partial(_describe, "info")


def histogram(name: str, text: str, read: Callable[[MetricsInput], Histograms], labels: str) -> HistogramSpec:
    """Describe a histogram of durations."""
    return HistogramSpec(PREFIX + name, tuple(labels.split()), text, read)


def value_at(found: object, path: str) -> Value:
    """Follow a path of attributes, such as ``store.stats.sent``; None if one of them is None."""
    for name in path.split("."):
        found = None if found is None else getattr(found, name)
    return found


def label_of(value: object) -> str:
    """Return a label value: the text of a priority or level is its name in lower case."""
    return str(getattr(value, "label", value))


def one(path: str, read: Callable[[Any], float | None] = float) -> ReadRows:
    """Make a single series without labels from a value of the snapshot, if it is known."""

    def rows(inputs: MetricsInput) -> Rows:
        found = value_at(inputs.snapshot, path)
        value = None if found is None else read(found)
        return [] if value is None else [((), float(value))]

    return rows


def by_key(path: str) -> Callable[[MetricsInput], Iterable[tuple[Labels, Any]]]:
    """Make a series for each key of a mapping in the snapshot; a key is one label, or a tuple of them."""

    def rows(inputs: MetricsInput) -> Iterable[tuple[Labels, Any]]:
        for key, value in (value_at(inputs.snapshot, path) or {}).items():
            yield tuple(map(label_of, key if isinstance(key, tuple) else (key,))), value

    return rows


def named(path: str) -> FindNamed:
    """Find the objects of a sequence in the snapshot, with their names."""
    return lambda inputs: ((found.name, found) for found in value_at(inputs.snapshot, path) or ())


def each(find: FindNamed, path: str, factor: float = 1.0) -> ReadRows:
    """Make a series for each named object with a known value, times ``factor``."""

    def rows(inputs: MetricsInput) -> Rows:
        values = ((label, value_at(found, path)) for label, found in find(inputs))
        return [((label,), value * factor) for label, value in values if value is not None]

    return rows


def per(find: FindNamed, label: str) -> Callable[..., MetricSpec]:
    """Return a maker of metrics of each named object: of a field, by default the last words of the name."""

    def describe(kind: Kind, name: str, text: str, field: str = "", factor: float = 1.0) -> MetricSpec:
        field = field or name.rpartition(f"{label}_")[2]
        return _describe(kind, name, text, each(find, field, factor), label)

    return describe


def states(path: str, members: Iterable[object]) -> ReadRows:
    """Make a series for each member: 1 for the value of the snapshot, if it is known."""

    def rows(inputs: MetricsInput) -> Rows:
        now = value_at(inputs.snapshot, path)
        return [] if now is None else [((label_of(one),), float(one == now)) for one in members]

    return rows


def each_states(find: FindNamed, path: str, members: Iterable[object]) -> ReadRows:
    """Make a series for each named object and member: 1 for the value of the object."""

    def rows(inputs: MetricsInput) -> Rows:
        for label, found in find(inputs):
            for member in members:
                yield (label, label_of(member)), float(member == value_at(found, path))

    return rows
