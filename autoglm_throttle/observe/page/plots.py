"""The plots of the live page: the newest value of each series, added at each step of a history."""

from __future__ import annotations

import json
import math
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from autoglm_throttle.observe.series import History

POINTS: Final = 181  # of a series: 15 minutes, long enough for a deployment, in a document of some 50 kB
QUANTILE_S: Final = 60.0  # window of a quantile in a plot
MAX_SERIES: Final = 16  # in one plot: the devices of a large host; more lines could not be told apart

Value: TypeAlias = float | str | None
NULL: Final = "null"


@dataclass(frozen=True, slots=True)
class PlotSpec:
    """One plot, and the source of its newest values."""

    id: str
    section: str
    """The id of the section that it belongs to."""
    title: str
    unit: str
    read: Callable[[History], Mapping[str, Value]]
    """Name of a series -> newest value in the unit, or the name of a state in a strip."""
    top: float | None = None
    """Upper end of the axis; None: the largest value."""
    kind: Literal["line", "strip"] = "line"


@dataclass(frozen=True, slots=True)
class Plot:
    """The values of one plot, as JSON texts: all series have a value, or null, for each step."""

    spec: PlotSpec
    bands: tuple[tuple[float, str], ...]
    series: tuple[tuple[str, tuple[str, ...]], ...]

    def json(self, newest: int | None = None) -> str:
        """Return the plot as JSON, with all values or the ``newest`` ones alone."""
        spec = self.spec
        head = {"id": spec.id, "section": spec.section, "title": spec.title, "unit": spec.unit}
        head |= {"kind": spec.kind, "top": spec.top, "bands": self.bands}  # type: ignore[dict-item]
        first = 0 if newest is None else -newest
        series = (
            f'{{"name":{json.dumps(name)},"values":[{",".join(texts[first:])}]}}'
            for name, texts in self.series
        )
        return f'{json.dumps(head, separators=(",", ":"))[:-1]},"series":[{",".join(series)}]}}'


class PlotRings:
    """Keeps the values of every plot in the form in which they are sent."""

    def __init__(self, specs: Sequence[PlotSpec]) -> None:
        self._specs = specs
        self._history: History | None = None
        self.step: int = 0
        """Number of the newest step: monotonic time in steps."""

    def record(self, history: History) -> None:
        """Add the newest step; steps that were left out are gaps. Another history begins anew."""
        step = round(history.now_s / history.step_s)
        if history is not self._history:
            self._history, self.step, self._length = history, step - 1, 0
            self._rings: dict[str, dict[str, deque[str]]] = {spec.id: {} for spec in self._specs}
        passed = min(max(0, step - self.step - 1), POINTS)
        for spec in self._specs:
            self._add(self._rings[spec.id], dict(spec.read(history)), passed)
        self._length = min(self._length + passed + 1, POINTS)
        self.step = step

    def _add(self, rings: dict[str, deque[str]], values: dict[str, Value], passed: int) -> None:
        for name in values:
            if name not in rings and len(rings) < MAX_SERIES:
                rings[name] = deque([NULL] * self._length, POINTS)
        for name, ring in list(rings.items()):
            ring.extend([NULL] * passed)
            ring.append(_text(values.get(name)))
            if name not in values and ring.count(NULL) == len(ring):  # a device that is not there any more
                del rings[name]

    def plots(self, bands: Mapping[str, tuple[tuple[float, str], ...]]) -> list[Plot]:
        """Return the plots that have a series; ``bands`` are those of a plot's id."""
        return [
            Plot(spec, bands.get(spec.id, ()), tuple((name, tuple(ring)) for name, ring in rings.items()))
            for spec in self._specs
            if (rings := self._rings[spec.id])
        ]


def _text(value: Value) -> str:
    if isinstance(value, str):
        return json.dumps(value)
    return NULL if value is None or not math.isfinite(value) else f"{value:.4g}"


def _last(metric: str, prefix: str = "", factor: float = 1.0) -> Callable[[History], Mapping[str, Value]]:
    """Read a series for each label value of a gauge with one label."""

    def read(history: History) -> Mapping[str, Value]:
        values = sorted(history.last(metric).items())
        return {f"{prefix}{labels[0]}": value * factor for labels, value in values}

    return read


def _singles(metrics: Mapping[str, str], factor: float = 1.0) -> Callable[[History], Mapping[str, Value]]:
    """Read one series for each of several gauges; those with labels are added up."""

    def read(history: History) -> Mapping[str, Value]:
        found = {name: history.last(metric).values() for metric, name in metrics.items()}
        return {name: sum(values) * factor for name, values in found.items() if values}

    return read


def _memory(history: History) -> Mapping[str, Value]:
    total = history.last("gpu_memory_total_bytes")
    used = sorted(history.last("gpu_memory_used_bytes").items())
    return {f"GPU {gpu[0]}": 100.0 * bytes_ / total[gpu] for gpu, bytes_ in used if total.get(gpu)}


def _verdicts(history: History) -> Mapping[str, Value]:
    states = sorted(history.last("gpu_verdict").items())
    return {f"GPU {gpu}": verdict for (gpu, verdict), holds in states if holds}


PRIORITIES: Final = ("high", "mid", "low")


def request_rates(history: History, window_s: float) -> Counter[str]:
    """Return the decisions per second of a window by each label, and as ``priority decision``; "" is all."""
    rates = Counter[str]()
    for (priority, decision, reason), count in history.increase("requests", window_s).items():
        for key in ("", priority, decision, reason, f"{priority} {decision}"):
            rates[key] += count / window_s  # type: ignore[assignment]  # a Counter adds up any numbers
    return rates


def _admitted(history: History) -> Mapping[str, Value]:
    rates = request_rates(history, history.step_s)
    return {name: rates[f"{name} admitted"] for name in PRIORITIES}


def _rejected(history: History) -> Mapping[str, Value]:
    rates = request_rates(history, history.step_s)
    return {name: rates[name] - rates[f"{name} admitted"] for name in PRIORITIES}


def _p95(history: History) -> Mapping[str, Value]:
    return {
        name: history.quantile(0.95, "request_duration_seconds", QUANTILE_S, priority=name)
        for name in PRIORITIES
    }


PLOTS: Final = (  # In the order of the page
    PlotSpec(
        "factor",
        "now",
        "Share of the nominal rates admitted",
        "%",
        _singles({"factor_ratio": "share"}, 100.0),
        100.0,
    ),
    PlotSpec("gpu", "gpu", "GPU utilization", "%", _last("gpu_utilization_ratio", "GPU ", 100.0), 100.0),
    PlotSpec("verdicts", "gpu", "Verdicts", "", _verdicts, kind="strip"),
    PlotSpec("memory", "gpu", "GPU memory in use", "%", _memory, 100.0),
    PlotSpec("admitted", "classes", "Admitted requests", "/s", _admitted),
    PlotSpec("rejected", "classes", "Requests that were not admitted", "/s", _rejected),
    PlotSpec("p95", "classes", "95th percentile of the last minute", "s", _p95),
    PlotSpec(
        "concurrency",
        "queue",
        "Requests",
        "",
        _singles({"inflight_requests": "in flight", "inflight_limit": "limit", "queued_requests": "waiting"}),
    ),
    PlotSpec("kv", "engines", "Key-value cache in use", "%", _last("engine_kv_used_ratio", "", 100.0), 100.0),
    PlotSpec(
        "engine_queue", "engines", "Requests that wait inside the engine", "", _last("engine_queued_requests")
    ),
    PlotSpec(
        "host",
        "host",
        "Cores of the host",
        "%",
        _singles({"host_cpu_ratio": "busy", "host_iowait_ratio": "waiting for disks"}, 100.0),
        100.0,
    ),
)
