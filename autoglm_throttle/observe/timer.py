"""The timer of a history: reads the snapshot of a throttle at each step, then runs the consumers."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator
from typing import Final

from autoglm_throttle._runtime import weak_method
from autoglm_throttle._runtime.fork import keep_parent_part, rebuild_after_fork
from autoglm_throttle._runtime.worker import Worker
from autoglm_throttle.events import RateLimitedLogger
from autoglm_throttle.observe.metric import PREFIX, HistogramSpec, MetricsInput, RecorderProtocol
from autoglm_throttle.observe.metrics import METRICS
from autoglm_throttle.observe.models import Models
from autoglm_throttle.observe.series import History, Row
from autoglm_throttle.throttle import Throttle

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
        *("engine_running_requests", "engine_queued_requests", "engine_kv_used_ratio", "engine_tokens"),
    ]
)
_SPECS: Final = {
    spec.name.removeprefix(PREFIX): spec for spec in METRICS if spec.name.removeprefix(PREFIX) in RECORDED
}

_DURATIONS: Final = "request_duration_seconds"

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


class HistoryTimer:
    """Feeds a history from the snapshots of a throttle on a thread of its own, never on a request's path.

    In a forked child it begins anew with an empty history. `history_timer` makes one for each throttle.
    """

    def __init__(self, throttle: Throttle) -> None:
        self.history: History = new_history()
        self._throttle = weakref.ref(throttle)
        self._is_manual = throttle.is_manual
        self.models: Models = Models()
        self._consumers: list[Consumer] = []
        self._make_worker()
        rebuild_after_fork(self, HistoryTimer._rebuild)

    @property
    def is_up(self) -> bool:
        """Whether the newest step was recorded; False after a failed one, until the next attempt."""
        return not self._worker.has_crashed

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
            throttle.snapshot(), throttle.settings, recorder, history=self.history, models=self.models.view
        )

    def step(self) -> float | None:
        """Record a step and run the consumers.

        Returns:
            Seconds until the next step is due; None: the throttle is gone.
        """
        throttle = self._throttle()
        if throttle is None:
            return None
        snapshot = throttle.snapshot()
        now = snapshot.taken_at_s
        rows = rows_of(MetricsInput(snapshot, throttle.settings))
        self.history.record(now, snapshot.taken_at_wall_s, rows)
        for consumer in (self.models.step, *self._consumers):
            try:
                consumer(self.history)
            except Exception as error:  # noqa: BLE001 - one consumer's fault must not stop the others
                self._log.warn("consumer", f"{consumer!r} failed: {error!r}", error=error)
        # Steps begin at multiples of their length, so that a slow one does not shift the next ones.
        return self.history.step_s - now % self.history.step_s

    def _make_worker(self) -> None:
        self._log = RateLimitedLogger("history", time.monotonic)
        self._worker = Worker(
            "autoglm-throttle history", weak_method(self.step), on_crash=weak_method(self._log_crash)
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
        if was_running:
            self.start()


_TIMERS: Final[weakref.WeakKeyDictionary[Throttle, HistoryTimer]] = weakref.WeakKeyDictionary()


def history_timer(throttle: Throttle) -> HistoryTimer:
    """Return the timer of a throttle, made at the first call and not yet started."""
    timer = _TIMERS.get(throttle)
    return _TIMERS.setdefault(throttle, HistoryTimer(throttle)) if timer is None else timer
