"""The timer of a history: reads the snapshot of a throttle at each step, then runs the consumers."""

from __future__ import annotations

import os
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from autoglm_throttle._runtime import weak_method
from autoglm_throttle._runtime.fork import keep_parent_part, rebuild_after_fork
from autoglm_throttle._runtime.worker import Worker
from autoglm_throttle.events import RateLimitedLogger
from autoglm_throttle.observe.gpu_metrics import ENGINE_METRICS, GPU_METRICS
from autoglm_throttle.observe.metric import (
    PREFIX,
    AlertsView,
    HistogramSpec,
    MetricsInput,
    MetricSpec,
    RecorderProtocol,
)
from autoglm_throttle.observe.metrics import METRICS
from autoglm_throttle.observe.models import Models
from autoglm_throttle.observe.series import History, Row
from autoglm_throttle.observe.siblings import Series, Siblings, folder_of
from autoglm_throttle.throttle import Throttle
from autoglm_throttle.types.identity import CallerHasher

if TYPE_CHECKING:
    from autoglm_throttle.observe.alerts import Alerts

# Metrics that a history has, without their prefix: those that alerts, pages and models read.
RECORDED: Final = frozenset(
    [
        *("requests", "request_duration_seconds", "time_to_first_token_seconds"),
        *("inter_token_latency_seconds", "outcomes"),
        *("active_requests", "queued_requests", "inflight_requests", "inflight_limit"),
        *("factor_ratio", "table_armed", "service_rate", "pressure_ratio"),
        *("redis_up", "breaker_state", "telemetry_state", "controller_last_sample_timestamp_seconds"),
        *("gpu_utilization_ratio", "gpu_sm_active_ratio", "gpu_memory_used_bytes", "gpu_memory_total_bytes"),
        *("gpu_power_watts", "gpu_power_limit_watts", "gpu_throttle", "gpu_verdict", "gpu_fake_busy"),
        *("gpu_devices", "gpu_source_state", "host_cpu_ratio", "host_memory_used_bytes"),
        *("host_memory_total_bytes", "host_iowait_ratio", "host_pressure_ratio"),
        *("load_signal", "response_chunks", "anomaly_active", "leak_bytes_per_hour"),
        *("engine_running_requests", "engine_queued_requests", "engine_kv_used_ratio", "engine_tokens"),
    ]
)
_SPECS: Final = {
    spec.name.removeprefix(PREFIX): spec for spec in METRICS if spec.name.removeprefix(PREFIX) in RECORDED
}

_DURATIONS: Final = "request_duration_seconds"

# Gauges that are added up over the workers of a service, as all counts are but those of devices and engines:
# each worker reads the same device.
SUMMED: Final = frozenset(
    [
        *("active_requests", "queued_requests", "inflight_requests", "inflight_limit", "service_rate"),
        *("paused_requests", "work_class_rate", "work_class_inflight_requests"),
    ]
)
_COUNTERS: Final = {
    spec.name.removeprefix(PREFIX)
    for spec in METRICS
    if spec.kind in {"counter", "histogram"} and spec not in {*GPU_METRICS, *ENGINE_METRICS}
}
SHARED: Final[dict[str, MetricSpec | HistogramSpec]] = {
    spec.name.removeprefix(PREFIX): spec
    for spec in METRICS
    if spec.name.removeprefix(PREFIX) in (_COUNTERS | SUMMED) - {"recorder_records"}
}
"""Name without prefix -> metric whose values the workers of a service share."""

SHOWN_USERS: Final = 20  # of those with the most rejections by a user limit
USERS_SERIES: Final = "limited_users"

Consumer = Callable[[History], object]


def new_history() -> History:
    """Make an empty history of the recorded metrics."""
    labels = {name: spec.labels for name, spec in _SPECS.items()}
    return History(labels | {f"{_DURATIONS}_sum": labels[_DURATIONS]})


def rows_of(inputs: MetricsInput) -> Iterator[Row]:
    """Read the recorded metrics, with the labels and values that a scrape would show."""
    for name, spec in _SPECS.items():
        if isinstance(spec, HistogramSpec):
            for labels, durations in spec.read(inputs):
                yield name, labels, durations.counts
                if name == _DURATIONS:
                    yield f"{name}_sum", labels, durations.total_s
        else:
            yield from ((name, labels, value) for labels, value in spec.read(inputs))


def shared_series(inputs: MetricsInput) -> Series:
    """Read the values that the workers of a service share, and the hashes of the users limited most."""
    found: Series = {}
    for name, spec in SHARED.items():
        if isinstance(spec, HistogramSpec):
            found[name] = {labels: (*one.counts, one.total_s) for labels, one in spec.read(inputs)}
        else:
            found[name] = {labels: (float(value),) for labels, value in spec.read(inputs)}
    found[USERS_SERIES] = {(user,): (float(count),) for user, count in limited_users(inputs)}
    return found


def limited_users(inputs: MetricsInput) -> list[tuple[str, int]]:
    """Return the users with most of the newest rejections by a user limit: their hashes and counts."""
    hasher = CallerHasher(inputs.settings.identity_key)
    most = Counter(inputs.snapshot.limited_users).most_common(SHOWN_USERS)
    return [(hasher.text(user), count) for user, count in most]


def _with_totals(rows: Iterator[Row], totals: Series) -> Iterator[Row]:
    """Put the totals of all workers in the place of the rows of this one."""
    yield from (row for row in rows if row[0].removesuffix("_sum") not in totals)
    for name, series in totals.items():
        spec = _SPECS.get(name)
        for labels, counts in () if spec is None else series.items():
            yield name, labels, counts[:-1] if isinstance(spec, HistogramSpec) else counts[0]
            if name == _DURATIONS:
                yield f"{name}_sum", labels, counts[-1]


class HistoryTimer:
    """Feeds a history from the snapshots of a throttle on a thread of its own, never on a request's path.

    With several workers the history is that of all of them: see `Siblings`.
    In a forked child it begins anew with an empty history. `history_timer` makes one for each throttle.
    """

    def __init__(self, throttle: Throttle) -> None:
        self.history: History = new_history()
        self._throttle = weakref.ref(throttle)
        self._is_manual = throttle.is_manual
        self.models: Models = Models()
        self.alerts: Alerts | None = None
        """The alerts that are evaluated on the history; None: there are none."""
        self._consumers: list[Consumer] = []
        self._make_worker()
        self.siblings: Siblings | None = self._find_siblings()
        """The workers of the service; None: there is this one alone."""
        throttle.before_stop.append(weak_method(self._share))
        rebuild_after_fork(self, HistoryTimer._rebuild)

    @property
    def is_up(self) -> bool:
        """Whether the newest step was recorded; False after a failed one, until the next attempt."""
        return not self._worker.has_crashed

    def alerts_view(self) -> AlertsView | None:
        """Return the state of the alerts, for metrics; None: none are evaluated in this process."""
        return None if self.alerts is None else self.alerts.view()

    def add_consumer(self, consumer: Consumer) -> None:
        """Add a function that is called with the history after each step; an exception of it is logged."""
        self._consumers.append(consumer)

    def start(self) -> None:
        """Start the thread, unless the throttle is a manual one: then call `step`. Idempotent."""
        if not self._is_manual:
            self._worker.start()

    def stop(self) -> None:
        """Stop the thread; `start` works again. Idempotent."""
        self._worker.stop()

    def inputs(self, throttle: Throttle, recorder: RecorderProtocol | None = None) -> MetricsInput:
        """Return the input of a reader of metrics: a snapshot, the history, and what was made from it."""
        return MetricsInput(
            throttle.snapshot(),
            throttle.settings,
            recorder,
            history=self.history,
            models=self.models.view,
            workers=() if self.siblings is None else self.siblings.workers,
            alerts=self.alerts_view(),
        )

    def step(self) -> float | None:
        """Record a step and run the consumers.

        Returns:
            Seconds until the next step is due; None: the throttle is gone.
        """
        throttle = self._throttle()
        if throttle is None:
            return None
        inputs = self.inputs(throttle)
        now = inputs.snapshot.taken_at_s
        rows = _with_totals(rows_of(inputs), self._exchange(now, inputs))
        self.history.record(now, inputs.snapshot.taken_at_wall_s, rows)
        for consumer in (self.models.step, *self._consumers):
            try:
                consumer(self.history)
            except Exception as error:  # noqa: BLE001 - one consumer's fault must not stop the others
                self._log.warn("consumer", f"{consumer!r} failed: {error!r}", error=error)
        # Steps begin at multiples of their length, so that a slow one does not shift the next ones.
        return self.history.step_s - now % self.history.step_s

    def _find_siblings(self) -> Siblings | None:
        """Return the exchange of counts, if the settings name several workers."""
        throttle = self._throttle()
        if throttle is None or self._is_manual:
            return None
        settings = throttle.settings
        if settings.rates.workers == 1 and not settings.fleet.fleet:
            return None
        try:
            return Siblings(folder_of(settings.store.service), _COUNTERS, os.getpid())
        except (OSError, AttributeError) as error:  # no place for files, or a system without user ids
            self._log.warn("siblings", f"metrics and the live page show this process alone: {error!r}")
            return None

    def _exchange(self, now: float, inputs: MetricsInput) -> Series:
        """Return the totals of all workers; empty: those of this one are meant."""
        if self.siblings is None:
            return {}
        try:
            self.siblings.exchange(now, shared_series(inputs))
        except OSError as error:  # a full disk
            self._log.warn("siblings", f"other workers do not see the counts of this one: {error!r}")
        return self.siblings.totals

    def _share(self) -> None:
        """Share the counts since the newest step, before this process ends: the others keep them."""
        throttle = self._throttle()
        if throttle is not None:
            inputs = self.inputs(throttle)
            self._exchange(inputs.snapshot.taken_at_s, inputs)

    def _make_worker(self) -> None:
        self._log = RateLimitedLogger("history", time.monotonic)
        self._worker = Worker(
            "autoglm-throttle history",
            weak_method(self.step),
            on_crash=weak_method(self._log_crash),
        )
        owner = self._throttle()
        if owner is not None:
            self._worker.stop_with(owner)

    def _log_crash(self, error: BaseException) -> None:
        self._log.warn("step", f"no step was recorded, alerts are not evaluated: {error!r}")

    def _rebuild(self) -> None:
        """Begin anew in a forked child: the thread of the parent is not here."""
        was_running = not self._worker.is_stopping
        keep_parent_part((self.history, self._worker))
        self.history, self.models = new_history(), Models()
        self._make_worker()
        self.siblings = self._find_siblings()
        if was_running:
            self.start()


_TIMERS: Final[weakref.WeakKeyDictionary[Throttle, HistoryTimer]] = weakref.WeakKeyDictionary()


def history_timer(throttle: Throttle) -> HistoryTimer:
    """Return the timer of a throttle, made at the first call and not yet started."""
    timer = _TIMERS.get(throttle)
    return _TIMERS.setdefault(throttle, HistoryTimer(throttle)) if timer is None else timer
