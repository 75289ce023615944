"""The table of all alert rules, as PromQL for Prometheus and as functions of the built-in evaluator.

`RULES` is the only place that names an alert. Both forms of a rule have one threshold and one duration, and a
test compares their states on the same series. A value that is missing fires nothing.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from autoglm_throttle.observe.series import History, Labels
from autoglm_throttle.settings import Settings

Values = dict[Labels, float]  # Label values of an alert -> value of the expression
Severity = Literal["info", "warning", "critical"]

_COMPARISONS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "==": operator.eq,
}

# Longest age of a sample at which a source may be believed, whatever its interval; ten times the default one.
SAMPLE_AGE_S: Final = 10.0
RUNBOOK: Final = "docs/operating.md"
NO_PROGRESS_S: Final = 30.0  # longer than pauses of a healthy service: a garbage collection, a compilation
# For services that take longer: the largest duration that the histograms tell apart is 60 s.
NO_PROGRESS_SLOW_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class Rule:
    """One alert. It fires when its expression has met the threshold for ``for_s`` without interruption."""

    name: str
    severity: Severity
    labels: Labels
    """Labels of the alert, beside job and instance."""
    summary: str
    """One sentence; ``{{ $labels.gpu }}`` stands for a label, as in Prometheus."""
    promql: str
    """The expression, with ``$`` for the prefix of metrics."""
    value: Callable[[History], Values]
    """The same for the evaluator."""
    comparison: Literal[">", ">=", "<", "=="]
    threshold: float | Callable[[Settings], float]
    for_s: float | Callable[[Settings], float] = 0.0

    @property
    def alert_name(self) -> str:
        """Name of the alert in Prometheus and Alertmanager."""
        return f"Autoglm{self.name}"

    @property
    def runbook(self) -> str:
        """Address of its section in the runbook."""
        return f"{RUNBOOK}#{self.name.lower()}"

    def limit(self, settings: Settings) -> float:
        """Return the threshold."""
        return self.threshold(settings) if callable(self.threshold) else self.threshold

    def duration_s(self, settings: Settings) -> float:
        """Return the seconds for which the expression must hold."""
        return self.for_s(settings) if callable(self.for_s) else self.for_s

    def holding(self, values: Values, settings: Settings) -> Values:
        """Return the values of the expression that meet the threshold."""
        meets, limit = _COMPARISONS[self.comparison], self.limit(settings)
        return {labels: value for labels, value in values.items() if meets(value, limit)}


def _most(values: Values, *positions: int) -> Values:
    """Return the largest value of each combination of some labels, as ``max by`` does."""
    found: Values = {}
    for labels, value in values.items():
        key = tuple(labels[position] for position in positions)
        found[key] = max(value, found.get(key, value))
    return found


def _sum(values: Iterable[float]) -> Values:
    """Return the sum as the single series of a rule without labels; nothing without values."""
    known = list(values)
    return {(): sum(known)} if known else {}


def _last(name: str, *positions: int, **match: str) -> Callable[[History], Values]:
    return lambda history: _most(history.last(name, offset_s=0.0, **match), *positions)


def _any_of(history: History, name: str, label: str, members: Iterable[str]) -> list[Values]:
    return [history.last(name, offset_s=0.0, **{label: member}) for member in members]


def _memory(history: History) -> Values:
    used, total = history.last("gpu_memory_used_bytes"), history.last("gpu_memory_total_bytes")
    return {labels: value / total[labels] for labels, value in used.items() if total.get(labels)}


def _busy_and_waiting(history: History) -> Values:
    waiting = sum(max(values) for values in history.known("queued_requests", 60.0).values())
    armed = any(1.0 in values for values in history.known("table_armed", 60.0).values())
    return history.last("gpu_utilization_ratio") if waiting or armed else {}


def _errors(history: History) -> Values:
    ended = history.increase("outcomes", 60.0)
    every = sum(count for (_, outcome), count in ended.items() if outcome != "neutral")
    failed = sum(count for (_, outcome), count in ended.items() if outcome == "failure")
    return {(): failed / every} if every / 60.0 >= 1.0 else {}


def _p95(history: History, window_s: float = 300.0) -> Values:
    p95_s = history.quantile(0.95, "request_duration_seconds", window_s, decision="admitted")
    return {} if p95_s is None else {(): p95_s}


def _sample_age(history: History) -> Values:
    states = history.last("telemetry_state")
    if any(states.get((state,)) == 1.0 for state in ("fresh", "late", "none")):
        return {}
    last = history.last("controller_last_sample_timestamp_seconds")
    return {labels: history.wall_s - value for labels, value in last.items()}


def _blind(history: History) -> Values:
    states = history.last("telemetry_state")
    return _sum(states[state,] for state in ("stale", "blind") if (state,) in states)


def _high_rejected(history: History) -> Values:
    decided = history.increase("requests", 300.0, priority="high")
    every = sum(decided.values())
    rejected = sum(count for (_, how, _), count in decided.items() if how in {"limited", "shed"})
    return {(): rejected / every} if every / 300.0 > 1.0 else {}


def _source_down(history: History) -> Values:
    down = ("failing", "hanging", "crashed", "misconfigured")
    found = _any_of(history, "gpu_source_state", "state", down)
    return _most({labels: value for values in found for labels, value in values.items()}, 0)


def _signal_changed(history: History) -> Values:
    before = history.last("load_signal", offset_s=600.0)
    now = history.last("load_signal")
    return {labels: value - before[labels] for labels, value in now.items() if labels in before}


def _stuck(history: History, window_s: float) -> Values:
    """Return the requests in flight while nothing has come out for a time; nothing else."""
    in_flight = history.known("inflight_requests", window_s)
    ended = history.increase("outcomes", window_s)
    chunks = history.increase("response_chunks", window_s)
    tokens = history.increase("engine_tokens", window_s)
    progress = sum(ended.values()) + sum(chunks.values()) + sum(tokens.values())
    # A process that has just begun has shown nothing yet, which is no fault; nor have values that are gone.
    has_both_ends = history.last("inflight_requests", offset_s=window_s) and history.last("inflight_requests")
    if not has_both_ends or not ended or not chunks or progress:
        return {}
    return _sum(min(values) for values in in_flight.values() if values)


def _nothing_comes_out(history: History) -> Values:
    usual_s = _p95(history, 600.0).get((), NO_PROGRESS_S)
    quick = _stuck(history, NO_PROGRESS_S) if 2.0 * usual_s <= NO_PROGRESS_S else {}
    return quick or _stuck(history, NO_PROGRESS_SLOW_S)


def _growth(history: History) -> Values:
    """Return the share of the whole memory by which it grows in an hour without more load."""
    totals: Values = {
        (f"gpu:{gpu}",): total for (gpu,), total in history.last("gpu_memory_total_bytes").items()
    }
    totals["process",] = history.last("host_memory_total_bytes").get((), 0.0)
    growth = history.last("leak_bytes_per_hour")
    return {labels: slope / totals[labels] for labels, slope in growth.items() if totals.get(labels)}


def _chassis(history: History) -> Values:
    limits = history.last("gpu_power_limit_watts")
    power = {gpu: sum(watts) / len(watts) for gpu, watts in history.known("gpu_power_watts", 300.0).items()}
    low = [gpu for gpu, watts in power.items() if watts < 0.8 * limits.get(gpu, 0.0)]
    found: Values = {}
    for reason in ("sw_power_cap", "hw_power_brake"):
        for (gpu, _), bits in history.known("gpu_throttle", 300.0, reason=reason).items():
            if (gpu,) in low:
                found[gpu,] = max(sum(bits) / len(bits), found.get((gpu,), 0.0))
    return found


_STUCK: Final = (
    "sum by (job, instance) (min_over_time($inflight_requests[{0}])) "
    "and on (job, instance) (sum by (job, instance) (increase($outcomes_total[{0}])) == 0) "
    "and on (job, instance) (sum by (job, instance) (increase($response_chunks_total[{0}])) == 0) "
    "unless on (job, instance) (sum by (job, instance) (increase($engine_tokens_total[{0}])) > 0) "
    # A process that has just begun has shown nothing yet, which is no fault; nor have values that are gone.
    "and on (job, instance) (sum by (job, instance) ($inflight_requests offset {0})) "
    "and on (job, instance) (sum by (job, instance) ($inflight_requests))"
)
_P95: Final = (
    "histogram_quantile(0.95, sum by (job, instance, le) "
    '(rate($request_duration_seconds_bucket{{decision="admitted"}}[{0}])))'
)


def _max_by(metric: str, *labels: str) -> str:
    return f"max by ({', '.join(('job', 'instance', *labels))}) ({metric})"


_GPU_BUSY: Final = _max_by("$gpu_utilization_ratio", "gpu")

RULES: Final[tuple[Rule, ...]] = (  # In the order of the runbook
    Rule(
        "GpuBusy", "info", ("gpu",),
        "GPU {{ $labels.gpu }} was busy for some minutes. By itself this is no fault.",
        _GPU_BUSY,
        _last("gpu_utilization_ratio", 0), ">", lambda settings: settings.alerting.gpu_pct / 100.0,
        lambda settings: settings.alerting.gpu_for_s,
    ),
    Rule(
        "GpuBusyAndWaiting", "warning", ("gpu",),
        "GPU {{ $labels.gpu }} was busy for minutes and requests waited: load is above capacity.",
        f"{_GPU_BUSY} and on (job, instance) "
        "(sum by (job, instance) (max_over_time($queued_requests[1m])) > 0 "
        "or max by (job, instance) (max_over_time($table_armed[1m])) > 0)",
        _busy_and_waiting, ">", lambda settings: settings.alerting.gpu_pct / 100.0,
        lambda settings: settings.alerting.gpu_for_s,
    ),
    Rule(
        "GpuMemoryHigh", "warning", ("gpu",),
        "The memory of GPU {{ $labels.gpu }} is nearly full.",
        _max_by("$gpu_memory_used_bytes / $gpu_memory_total_bytes", "gpu"),
        _memory, ">", lambda settings: settings.alerting.memory_ratio,
    ),
    Rule(
        "MemoryGrowing", "warning", ("what",),
        "The memory of {{ $labels.what }} grows by more than a hundredth in an hour, without more load.",
        f"{_max_by('$leak_bytes_per_hour', 'what')} / on (job, instance, what) ("
        f"label_replace({_max_by('$gpu_memory_total_bytes', 'gpu')}, 'what', 'gpu:$1', 'gpu', '(.*)') "
        f"or label_replace({_max_by('$host_memory_total_bytes')}, 'what', 'process', '', ''))",
        _growth, ">", 0.01, 300.0,
    ),
    Rule(
        "HighErrorRate", "critical", (),
        "More than one of a hundred admitted requests fails.",
        'sum by (job, instance) (rate($outcomes_total{outcome="failure"}[1m])) '
        '/ (sum by (job, instance) (rate($outcomes_total{outcome!="neutral"}[1m])) >= 1)',
        _errors, ">", 0.01,
    ),
    Rule(
        "SlowP95", "warning", (),
        "Five of a hundred admitted requests take longer than they should.",
        _P95.format("5m"),
        _p95, ">", lambda settings: settings.alerting.p95_s, lambda settings: settings.alerting.p95_for_s,
    ),
    Rule(
        "HighPriorityRejected", "critical", (),
        "More than one of twenty requests of high priority are rejected.",
        'sum by (job, instance) (rate($requests_total{priority="high",decision=~"limited|shed"}[5m])) '
        '/ (sum by (job, instance) (rate($requests_total{priority="high"}[5m])) > 1)',
        _high_rejected, ">", 0.05, 300.0,
    ),
    Rule(
        "NothingComesOut", "critical", (),
        "Requests are in flight, and none has ended or sent anything for a time.",
        f"({_STUCK.format('30s')} and on (job, instance) ({_P95.format('10m')} <= 15)) "
        f"or ({_STUCK.format('2m')})",
        _nothing_comes_out, ">=", 1.0,
    ),
    Rule(
        "BreakerOpen", "critical", ("breaker",),
        "The breaker {{ $labels.breaker }} is open: calls of this dependency are rejected.",
        _max_by('$breaker_state{state="open"}', "breaker"),
        _last("breaker_state", 0, state="open"), "==", 1.0, 30.0,
    ),
    Rule(
        "RedisDown", "warning", (),
        "The store of REDIS_URL does not answer: each process limits for itself.",
        _max_by("$redis_up"),
        _last("redis_up"), "<", 1.0, 30.0,
    ),
    Rule(
        "ControllerStale", "critical", (),
        "No GPU sample has come for more than ten seconds.",
        f"time() - {_max_by('$controller_last_sample_timestamp_seconds')} unless on (job, instance) "
        '(max by (job, instance) ($telemetry_state{state=~"fresh|late|none"}) == 1)',
        _sample_age, ">", SAMPLE_AGE_S, 30.0,
    ),
    Rule(
        "TelemetryDegraded", "warning", (),
        "GPU telemetry is too old to be believed.",
        'sum by (job, instance) ($telemetry_state{state=~"stale|blind"})',
        _blind, ">=", 1.0, 60.0,
    ),
    Rule(
        "SourceDown", "warning", ("source",),
        "The telemetry source {{ $labels.source }} gives nothing.",
        _max_by('$gpu_source_state{state=~"failing|hanging|crashed|misconfigured"}', "source"),
        _source_down, "==", 1.0, 120.0,
    ),
    Rule(
        "SignalChanged", "warning", ("signal",),
        "The load is measured by {{ $labels.signal }}, and was by another signal ten minutes ago.",
        f"{_max_by('$load_signal', 'signal')} - {_max_by('$load_signal offset 10m', 'signal')}",
        _signal_changed, "==", 1.0, 30.0,
    ),
    Rule(
        "GpuLost", "critical", (),
        "A GPU is lost.",
        _max_by('$gpu_devices{health="lost"}'),
        _last("gpu_devices", health="lost"), ">=", 1.0, 30.0,
    ),
    Rule(
        "GpuStalled", "critical", ("gpu",),
        "GPU {{ $labels.gpu }} is busy and nothing comes out.",
        _max_by('$gpu_verdict{verdict="stalled"}', "gpu"),
        _last("gpu_verdict", 0, verdict="stalled"), "==", 1.0, 30.0,
    ),
    Rule(
        "FakeBusy", "warning", ("gpu",),
        "GPU {{ $labels.gpu }} reports itself busy and does little.",
        _max_by("$gpu_fake_busy", "gpu"),
        _last("gpu_fake_busy", 0), "==", 1.0, 60.0,
    ),
    Rule(
        "GpuThrottled", "warning", ("gpu",),
        "GPU {{ $labels.gpu }} is slowed down by heat or power.",
        _max_by('$gpu_verdict{verdict="throttled"}', "gpu"),
        _last("gpu_verdict", 0, verdict="throttled"), "==", 1.0, 30.0,
    ),
    Rule(
        "ThrottledByChassis", "warning", ("gpu",),
        "GPU {{ $labels.gpu }} is capped far below its own power limit: the chassis or its supply caps it.",
        "max by (job, instance, gpu) "
        '(avg_over_time($gpu_throttle{reason=~"sw_power_cap|hw_power_brake"}[5m])) '
        "and on (job, instance, gpu) (max by (job, instance, gpu) "
        "(avg_over_time($gpu_power_watts[5m]) / $gpu_power_limit_watts) < 0.8)",
        _chassis, ">=", 0.9,
    ),
    Rule(
        "Unusual", "info", ("series",),
        "{{ $labels.series }} differs from the last half hour by more than is usual.",
        _max_by("$anomaly_active", "series"),
        _last("anomaly_active", 0), "==", 1.0,
    ),
)  # fmt: skip
