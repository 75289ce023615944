"""Samples a service under load from outside, once a second: its metrics page, and its processes by psutil."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from time import monotonic
from typing import Any, Final, Protocol, cast

from autoglm_throttle._runtime import how_to_install
from autoglm_throttle._runtime.worker import Worker
from autoglm_throttle.gpu.scrape.exposition import MalformedExpositionError, Series, parse
from autoglm_throttle.gpu.scrape.http import Deadline, fetch
from autoglm_throttle.settings.groups.gpu import ScrapeUrl, parse_items
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.types import ProviderUnavailable

INTERVAL_S: Final = 1.0  # Seconds between two samples: the grid of the report
JOIN_S: Final = 0.5  # Seconds to wait for the end of a sample; a hung probe is abandoned

# Samples between two searches for new children: on a host with thousands of processes a search takes tens of
# milliseconds, and servers start their workers at the beginning.
CHILD_SEARCH_SAMPLES: Final = 10

# A service under load may answer late; an answer after two seconds belongs to another second.
TIMEOUT_S: Final = 2.0

PREFIX: Final = "autoglm_throttle_"


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


# Number of the report, name of the metric, and function that aggregates its series. The last one present
# counts: policy ``fixed`` has no adaptive limiter, and so no ``inflight_requests``.
NUMBERS: Final[tuple[tuple[str, str, Callable[[list[float]], float]], ...]] = (
    ("factor_ratio", "factor_ratio", min),
    ("inflight", "active_requests", sum),
    ("inflight", "inflight_requests", sum),
    ("waiting", "queued_requests", sum),
    ("gpu_utilization_ratio", "gpu_utilization_ratio", _mean),
    ("gpu_power_w", "gpu_power_watts", sum),
    ("gpu_memory_used", "gpu_memory_used_bytes", sum),
    ("gpu_memory_total", "gpu_memory_total_bytes", sum),
)
WANTED: Final = tuple(PREFIX + metric for _, metric, _ in NUMBERS)


class ProbeTargetLostError(Exception):
    """The target of a probe is lost for good; the text continues its name."""


class Probe(Protocol):
    """A target that can be sampled."""

    name: str  # Name for people

    def sample(self, now: float) -> dict[str, float]:
        """Take a sample at ``now`` (monotonic seconds); blocks for 2 s at most. Any exception: no sample."""


class Prober:
    """Samples each target on its own thread, so that a hung one delays no other. Use it with ``with``."""

    def __init__(self, probes: Sequence[Probe], *, every_s: float = INTERVAL_S) -> None:
        self._every_s = every_s
        # Threads only append, and each sets only the fault of its own probe: no lock is needed.
        self._samples: list[tuple[float, dict[str, float]]] = []
        self._faults: dict[str, tuple[str, int]] = {}  # Last error and failed samples of each failing probe
        self._workers = [self._worker(probe) for probe in probes]

    def __enter__(self) -> Prober:
        """Start sampling."""
        for worker in self._workers:
            worker.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop sampling."""
        for join_s in (0.0, JOIN_S):
            for worker in self._workers:
                worker.stop(join_s)

    @property
    def faults(self) -> list[str]:
        """Last error of each failing probe, one sentence each."""
        faults = list(self._faults.values())
        return [f"{text} ({missed} failed samples)" if missed > 1 else text for text, missed in faults]

    def samples(self, start_s: float, end_s: float) -> tuple[dict[str, float], ...]:
        """Return the samples of all probes within a time span, second by second: ``t_s`` and the numbers."""
        rows: dict[int, dict[str, float]] = {}
        for at_s, values in sorted(self._samples, key=lambda one: one[0]):
            if start_s <= at_s <= end_s:
                second = math.floor((at_s - start_s) / self._every_s)
                rows.setdefault(second, {"t_s": round(at_s - start_s, 3)}).update(values)
        return tuple(rows[second] for second in sorted(rows))

    def _worker(self, probe: Probe) -> Worker:
        """Return the thread of a probe; it ends when the target is lost."""
        next_s = monotonic()

        def fail(error: BaseException) -> None:
            _, missed = self._faults.get(probe.name, ("", 0))
            self._faults[probe.name] = (f"{probe.name} {error}", missed + 1)

        def step() -> float | None:
            nonlocal next_s
            now = monotonic()
            # After a slow sample the next one follows at once; missed ones are not caught up.
            next_s = max(next_s + self._every_s, now)
            try:
                values = probe.sample(now)
            except ProbeTargetLostError as error:
                fail(error)
                return None
            except Exception as error:  # noqa: BLE001 - whatever it is, the run goes on
                fail(error)
            else:
                self._samples.append((now, values))
            return max(0.0, next_s - monotonic())

        return Worker(f"watch {probe.name}", step, on_crash=fail)


class ProcessProbe:
    """Probes CPU and memory of a process and its descendants; TrafficError: none such, or no psutil."""

    def __init__(self, pid: int) -> None:
        try:
            import psutil
        except ImportError:
            raise TrafficError(f"this needs psutil: {how_to_install('traffic')}") from None
        self.name: str = f"process {pid}"
        self._psutil = psutil
        self._sample_count = 0
        self._children: list[psutil.Process] = []
        self._cpu_s: dict[psutil.Process, float] = {}
        self._before_s = math.inf
        try:
            self._process = psutil.Process(pid)
        except psutil.Error:
            raise TrafficError(f"there is no process {pid} to watch") from None

    def sample(self, now: float) -> dict[str, float]:
        """Return ``rss_bytes`` and, from the second sample on, ``cpu_share`` in cores."""
        family = {process: self._usage(process) for process in self._find_family()}
        usages = {process: usage for process, usage in family.items() if usage is not None}
        if self._process not in usages:
            raise ProbeTargetLostError("has ended")
        values = {"rss_bytes": sum(rss_bytes for _, rss_bytes in usages.values())}
        cpu_s = {process: used_s for process, (used_s, _) in usages.items()}
        if now > self._before_s:
            # CPU time before the first sample of a process is unknown, so a new one counts from its second.
            used_s = sum(max(0.0, used - self._cpu_s.get(process, used)) for process, used in cpu_s.items())
            values["cpu_share"] = used_s / (now - self._before_s)
        self._cpu_s, self._before_s = cpu_s, now
        return values

    def _find_family(self) -> list[Any]:
        if self._sample_count % CHILD_SEARCH_SAMPLES == 0:
            try:
                self._children = self._process.children(recursive=True)
            except self._psutil.Error:
                self._children = []
        self._sample_count += 1
        return [self._process, *self._children]

    def _usage(self, process: Any) -> tuple[float, float] | None:  # noqa: ANN401 - psutil is optional
        """Return CPU seconds and resident bytes of a process; None if it has ended."""
        try:
            # is_running() compares the start time: the number may have been given to another process.
            if not process.is_running() or process.status() == self._psutil.STATUS_ZOMBIE:
                return None
            times = process.cpu_times()
            return times.user + times.system, float(process.memory_info().rss)
        except self._psutil.Error:
            return None


class MetricsProbe:
    """Probes the metrics page of a service that uses this library; a URL without a path gets ``/metrics``."""

    def __init__(self, url: str) -> None:
        try:
            ((_, parsed, _),) = parse_items([f"dcgm:{url}"])
        except ValueError as error:
            raise TrafficError(str(error).partition(": ")[2]) from None
        self._url = cast("ScrapeUrl", parsed)  # scraped kinds always have one
        self.name: str = f"metrics of {self._url.place}"
        self._path = (self._url.path or "/metrics") + (f"?{self._url.query}" if self._url.query else "")

    def sample(self, now: float) -> dict[str, float]:  # noqa: ARG002 - the page is of the time of its answer
        """Read the numbers of the page; raise ProviderUnavailable if it cannot be read."""
        # There may be thousands of other lines, and parsing blocks the generator.
        page, _ = fetch(self._url, self._path, Deadline(TIMEOUT_S, monotonic))
        lines = page.decode("utf-8", "replace").split("\n")[:-1]
        try:
            series = parse("".join(f"{line}\n" for line in lines if line.startswith(WANTED)))
        except MalformedExpositionError as error:
            raise ProviderUnavailable(str(error)) from None
        values = numbers(series)
        if not values:
            raise ProviderUnavailable("has no metrics of this library")
        return values

    def check(self) -> None:
        """Read the page once before a run; raise TrafficError if it cannot be read."""
        try:
            self.sample(0.0)
        except ProviderUnavailable as error:
            raise TrafficError(f"--metrics: {self.name} {error}") from None


def numbers(series: Iterable[Series]) -> dict[str, float]:
    """Extract the numbers of the report from the series; NaN is left out."""
    found: dict[str, list[float]] = {}
    for one in series:
        if not math.isnan(one.value):
            found.setdefault(one.name, []).append(one.value)
    values = {
        name: join(found[PREFIX + metric]) for name, metric, join in NUMBERS if PREFIX + metric in found
    }
    used, total = values.pop("gpu_memory_used", None), values.pop("gpu_memory_total", 0.0)
    if used is not None and total > 0.0:
        values["gpu_memory_ratio"] = used / total
    return values
