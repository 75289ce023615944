"""Feeds the latency model and the leak tests from the history, and makes the view that pages read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from autoglm_throttle.observe.latency_model import HeatCell, HeatMap, LatencyModel, LatencyView
from autoglm_throttle.observe.leak import LeakTest, LeakView
from autoglm_throttle.observe.series import History

RESOURCES: Final = ("gpu", "gpu_memory", "cpu", "iowait")
AXES: Final = (("gpu", "cpu"), ("gpu", "queue"))
"""The two shares of each heat map; that of the queue is of all requests that wait or run."""

_MIN_REQUESTS: Final = 5  # the mean of fewer is mostly noise
_VIEW_STEPS: Final = 12  # results change once a minute; the cells of full maps take a millisecond


@dataclass(frozen=True, slots=True)
class ModelsView:
    """The latency model, its heat maps by their two axes, and the leak tests, of at most a minute ago."""

    latency: LatencyView
    maps: Mapping[tuple[str, str], tuple[HeatCell, ...]]
    leaks: tuple[LeakView, ...]


class Models:
    """Consumes a history: `step` runs after each step of it, on the thread of its timer."""

    def __init__(self) -> None:
        self._latency = LatencyModel(RESOURCES)
        self._maps = {axes: HeatMap() for axes in AXES}
        self._leaks: dict[str, LeakTest] = {}
        self._steps = 0
        self.view: ModelsView = self._new_view({})
        """Replaced as a whole, so that any thread may read it."""

    def step(self, history: History) -> None:
        """Take the newest step of the history."""
        used, active = _shares(history), sum(history.last("active_requests").values())
        counts = history.counts("request_duration_seconds", history.step_s)
        requests = sum(counts or ())
        # The median would be that of a bucket: with all durations in one bucket it never changes.
        total_s = sum(history.increase("request_duration_seconds_sum", history.step_s).values())
        self._latency.step(total_s / requests if requests >= _MIN_REQUESTS else None, used)
        waiting = sum(history.last("queued_requests").values())
        positions = used | {"queue": waiting / (waiting + active) if waiting + active else 0.0}
        for (x, y), heat in self._maps.items():
            heat.step(positions[x], positions[y], counts)
        memory = _memory(history)
        for what in memory:
            self._leaks.setdefault(what, LeakTest())
        for place, (what, test) in enumerate(self._leaks.items()):
            known = memory.get(what)
            # Each test has a minute of its own: all in one step would hold the interpreter for milliseconds.
            test.step(history.now_s + place * history.step_s, known and known[0], active)
        self._steps += 1
        if self._steps % _VIEW_STEPS == 0:
            self.view = self._new_view(memory)

    def _new_view(self, memory: Mapping[str, tuple[float, float | None]]) -> ModelsView:
        leaks = []
        for what in sorted(memory):
            slope, free = self._leaks[what].bytes_per_hour, memory[what][1]
            leaks.append(LeakView(what, slope, free / slope if slope and free is not None else None))
        maps = {axes: heat.cells() for axes, heat in self._maps.items()}
        return ModelsView(self._latency.view(), maps, tuple(leaks))


def _shares(history: History) -> dict[str, float | None]:
    """Return the used share of each resource, of several GPUs their mean."""
    gpus = history.last("gpu_utilization_ratio").values()
    used = history.last("gpu_memory_used_bytes")
    total = sum(size for gpu, size in history.last("gpu_memory_total_bytes").items() if gpu in used)
    return {
        "gpu": sum(gpus) / len(gpus) if gpus else None,
        "gpu_memory": sum(used.values()) / total if total else None,
        "cpu": history.last("host_cpu_ratio").get(()),
        "iowait": history.last("host_iowait_ratio").get(()),
    }


def _memory(history: History) -> dict[str, tuple[float, float | None]]:
    """Return the used bytes of each series, and those that are free if they are known."""
    totals = history.last("gpu_memory_total_bytes")
    found: dict[str, tuple[float, float | None]] = {}
    for gpu, used in history.last("gpu_memory_used_bytes").items():
        found[f"gpu:{gpu[0]}"] = used, totals[gpu] - used if gpu in totals else None
    own = _own_bytes()
    if own is not None:
        in_use, total = (history.last(f"host_memory_{name}_bytes").get(()) for name in ("used", "total"))
        found["process"] = own, None if in_use is None or total is None else total - in_use
    return found


def _own_bytes() -> float | None:
    try:
        import psutil
    except ImportError:
        return None
    return float(psutil.Process().memory_info().rss)
