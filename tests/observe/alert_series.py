"""Series that drive each alert rule, for the built-in evaluator and for ``promtool test rules``."""

from __future__ import annotations

import itertools
import json
import random
import re
import subprocess
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path

from autoglm_throttle import Settings
from autoglm_throttle.admission.counters import DURATION_BUCKETS_S
from autoglm_throttle.observe.dashboards import rules_file
from autoglm_throttle.observe.evaluator import Evaluator
from autoglm_throttle.observe.metric import PREFIX
from autoglm_throttle.observe.metrics import METRICS
from autoglm_throttle.observe.rules import RULES, Rule
from autoglm_throttle.observe.series import History, Row
from autoglm_throttle.observe.timer import new_history

STEP_S = 15
STEPS = 80
SPECS = {spec.name.removeprefix(PREFIX): spec for spec in METRICS}

Counts = Counter[str]
Drive = Callable[[bool, Counts], list[Row]]
States = dict[tuple[str, tuple[tuple[str, str], ...]], str]


def level(name: str, labels: tuple[str, ...], off: float, on: float) -> Drive:
    """A gauge with two values."""
    return lambda is_on, _: [(name, labels, on if is_on else off)]


def outcomes(counts: Counts, success: int, failure: int) -> list[Row]:
    counts.update(success=success, failure=failure)
    return [("outcomes", ("high", kind), counts[kind]) for kind in ("success", "failure")]


def durations(counts: Counts, edge_s: float, count: int) -> Row:
    counts[f"<= {edge_s}"] += count
    rows = [float(counts[f"<= {edge}"]) for edge in DURATION_BUCKETS_S]
    return "request_duration_seconds", ("high", "admitted"), [*rows, 0.0]


def waiting(is_on: bool, counts: Counts) -> list[Row]:
    return [("gpu_utilization_ratio", ("0",), 0.86), ("queued_requests", ("low",), float(is_on))]


def memory(is_on: bool, counts: Counts) -> list[Row]:
    used = 91.0 if is_on else 90.0
    return [("gpu_memory_used_bytes", ("0",), used), ("gpu_memory_total_bytes", ("0",), 100.0)]


def growing(is_on: bool, counts: Counts) -> list[Row]:
    total = ("gpu_memory_total_bytes", ("0",), 100.0)
    return [("leak_bytes_per_hour", ("gpu:0",), 1.1 if is_on else 0.9), total]


def errors(is_on: bool, counts: Counts) -> list[Row]:
    return outcomes(counts, 1000, 12 if is_on else 8)


def slow(is_on: bool, counts: Counts) -> list[Row]:
    return [durations(counts, 2.5 if is_on else 2.0, 100)]


def rejected(is_on: bool, counts: Counts) -> list[Row]:
    """Counters that begin at 0, as those of a process do: Prometheus extrapolates others to their start."""
    rows: list[Row] = [
        ("requests", ("high", "admitted", "ok"), counts["ok"]),
        ("requests", ("high", "limited", "rate"), counts["rate"]),
    ]
    counts.update(ok=100, rate=6 if is_on else 4)
    return rows


def stuck(is_on: bool, counts: Counts) -> list[Row]:
    rows = outcomes(counts, 0 if is_on else 20, 0)
    return [
        *rows,
        durations(counts, 1.0, 0 if is_on else 20),
        ("response_chunks", (), counts["success"] * 3),
        ("inflight_requests", (), 1.0),
    ]


def stale_sample(is_on: bool, counts: Counts) -> list[Row]:
    counts["now"] += STEP_S
    age_s = 11.0 if is_on else 9.0
    return [
        ("controller_last_sample_timestamp_seconds", (), counts["now"] - STEP_S - age_s),
        ("telemetry_state", ("fresh",), float(not is_on)),
        ("telemetry_state", ("blind",), float(is_on)),
    ]


def signal(is_on: bool, counts: Counts) -> list[Row]:
    return [("load_signal", ("pressure",), float(is_on)), ("load_signal", ("utilization",), float(not is_on))]


def chassis(is_on: bool, counts: Counts) -> list[Row]:
    return [
        ("gpu_throttle", ("0", "sw_power_cap"), float(is_on)),
        ("gpu_power_watts", ("0",), 240.0),
        ("gpu_power_limit_watts", ("0",), 400.0),
    ]


DRIVES: dict[str, Drive] = {
    "GpuBusy": level("gpu_utilization_ratio", ("0",), 0.85, 0.86),
    "GpuBusyAndWaiting": waiting,
    "GpuMemoryHigh": memory,
    "MemoryGrowing": growing,
    "HighErrorRate": errors,
    "SlowP95": slow,
    "HighPriorityRejected": rejected,
    "NothingComesOut": stuck,
    "BreakerOpen": level("breaker_state", ("db", "open"), 0.0, 1.0),
    "RedisDown": level("redis_up", (), 1.0, 0.0),
    "ControllerStale": stale_sample,
    "TelemetryDegraded": level("telemetry_state", ("stale",), 0.0, 1.0),
    "SourceDown": level("gpu_source_state", ("nvml", "hanging"), 0.0, 1.0),
    "SignalChanged": signal,
    "GpuLost": level("gpu_devices", ("lost",), 0.0, 1.0),
    "GpuStalled": level("gpu_verdict", ("0", "stalled"), 0.0, 1.0),
    "FakeBusy": level("gpu_fake_busy", ("0",), 0.0, 1.0),
    "GpuThrottled": level("gpu_verdict", ("0", "throttled"), 0.0, 1.0),
    "ThrottledByChassis": chassis,
    "Unusual": level("anomaly_active", ("latency_p95",), 0.0, 1.0),
}
"""Rule -> the rows of one step, just below and just above its threshold."""


def near(name: str) -> list[list[Row]]:
    """Rows just below the threshold of a rule, in which its other conditions are met."""
    if name == "GpuBusyAndWaiting":
        return [[("gpu_utilization_ratio", ("0",), 0.85), ("queued_requests", ("low",), 1.0)]] * STEPS
    rows = steps(DRIVES[name], lasting(0, 0))
    if name == "ControllerStale":
        return [[*row[:1], ("telemetry_state", ("blind",), 1.0)] for row in rows]
    return rows


def lasting(start: int, end: int) -> list[bool | None]:
    return [start <= step < end for step in range(STEPS)]


def flapping(on: int, off: int) -> list[bool | None]:
    return [step % (on + off) < on for step in range(STEPS)]


def by_chance(share: float) -> list[bool | None]:
    chance = random.Random(5)
    return [chance.random() < share for _ in range(STEPS)]


def with_gap(first: int, start: int, end: int) -> list[bool | None]:
    return [None if start <= step < end else step >= first for step in range(STEPS)]


def patterns() -> list[list[bool | None]]:
    """24 courses of time: whether the threshold is met in each step of 15 s; None: there are no values."""
    return [
        *(lasting(0, 0), lasting(0, STEPS), lasting(20, STEPS), lasting(0, 40)),
        *(lasting(20, 20 + long) for long in (1, 2, 3, 5, 8, 12, 13, 20, 24, 25)),
        *(flapping(1, 1), flapping(4, 1), flapping(13, 3), flapping(6, 5)),
        *(by_chance(0.5), by_chance(0.9)),
        *(with_gap(0, 0, STEPS), with_gap(10, 30, 40), with_gap(25, 20, 25), with_gap(20, 45, 46)),
    ]


def steps(drive: Drive, pattern: Sequence[bool | None]) -> list[list[Row]]:
    """The rows of each step of 15 s."""
    counts: Counts = Counter()
    rows = [(is_on, drive(bool(is_on), counts)) for is_on in pattern]
    return [[] if is_on is None else made for is_on, made in rows]


def evaluated(rows: list[list[Row]], settings: Settings, rules: Sequence[Rule] = RULES) -> list[States]:
    """The states of all alerts after each step, evaluated every 5 s on values that stay for 15 s."""
    history, evaluator = new_history(), Evaluator(settings, rules)
    found = []
    for step, row in enumerate(rows):
        found.append(_states(history, evaluator, step * 15.0, row))
        for later_s in (5.0, 10.0):
            _states(history, evaluator, step * 15.0 + later_s, row)
    return found


def _states(history: History, evaluator: Evaluator, now: float, rows: list[Row]) -> States:
    history.record(now, now, rows)
    evaluator.step(history)
    return {
        (
            alert.rule.alert_name,
            tuple(sorted({**alert.labels, "severity": alert.rule.severity}.items())),
        ): alert.state
        for alert in evaluator.alerts
    }


def _inputs(rows: list[list[Row]]) -> Iterator[dict[str, str]]:
    series: dict[str, dict[int, float]] = defaultdict(dict)
    for step, row in enumerate(rows):
        for name, labels, value in row:
            for text, number in _exposed(name, labels, value):
                series[text][step] = number
    for text, values in series.items():
        # A series that is missing from a scrape ends at once.
        shown = [f"{values[step]:.17g}" if step in values else "stale" for step in range(len(rows))]
        yield {"series": text, "values": " ".join(shown)}


def _exposed(
    name: str, labels: tuple[str, ...], value: float | Sequence[float]
) -> Iterator[tuple[str, float]]:
    spec = SPECS[name]
    texts = [f'{key}="{label}"' for key, label in zip(spec.labels, labels, strict=True)]
    texts += ['job="j"', 'instance="i"']
    if isinstance(value, (int, float)):
        suffix = "_total" if spec.kind == "counter" else ""
        yield f"{spec.name}{suffix}{{{', '.join(texts)}}}", value
        return
    edges = [*(repr(float(edge)) for edge in DURATION_BUCKETS_S), "+Inf"]
    for edge, count in zip(edges, accumulate(value), strict=True):
        bucket = ", ".join([*texts, f'le="{edge}"'])
        yield f"{spec.name}_bucket{{{bucket}}}", count


def prometheus_states(
    promtool: str, folder: Path, cases: Mapping[str, list[list[Row]]]
) -> dict[str, list[States]]:
    """The states of all alerts after each step of each case, as Prometheus has them.

    ``promtool test rules`` prints what it got where that is not what was expected, and nothing is expected.
    """
    (folder / "rules.yml").write_text(rules_file(Settings()))
    groups = [
        {
            "interval": f"{STEP_S}s",
            "input_series": list(_inputs(rows)),
            "promql_expr_test": [
                {"expr": f'label_replace(ALERTS, "case", "{name}", "", "")', "eval_time": f"{at * STEP_S}s"}
                for at in range(len(rows))
            ],
        }
        for name, rows in cases.items()
    ]
    document = {"rule_files": ["rules.yml"], "evaluation_interval": f"{STEP_S}s", "tests": groups}
    (folder / "tests.yml").write_text(json.dumps(document))
    command = [promtool, "test", "rules", "tests.yml"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    found: dict[str, list[States]] = {name: [{} for _ in rows] for name, rows in cases.items()}
    for time, samples in re.findall(r"time: (\w+),\s+exp: nil\s+got: (.*)", done.stdout + done.stderr):
        for sample in re.findall(r"\{(.*?)\}", samples):
            labels = dict(re.findall(r'(\w+)="(.*?)"', sample))
            case, name, state = (labels.pop(key) for key in ("case", "alertname", "alertstate"))
            kept = tuple(
                sorted((key, labels[key]) for key in labels.keys() - {"__name__", "job", "instance"})
            )
            found[case][_seconds(time) // STEP_S][name, kept] = state
    return found


def _seconds(duration: str) -> int:
    units = {"h": 3600, "m": 60, "s": 1}
    return sum(int(count) * units[unit] for count, unit in re.findall(r"(\d+)([hms])", duration))


def differences(ours: list[States], theirs: list[States]) -> list[tuple[int, str]]:
    """The steps, with the names of alerts, at which one has a state that the other has not within a step."""
    found = []
    for step, key in itertools.product(range(len(ours)), {key for one in (*ours, *theirs) for key in one}):
        near = slice(max(0, step - 1), step + 2)
        for one, other in ((ours, theirs), (theirs, ours)):
            if one[step].get(key) not in {states.get(key) for states in other[near]}:
                found.append((step, key[0]))
                break
    return found


SEVERITIES = {
    "GpuBusy": "info",
    "HighErrorRate": "critical",
    "HighPriorityRejected": "critical",
    "NothingComesOut": "critical",
    "BreakerOpen": "critical",
    "ControllerStale": "critical",
    "GpuLost": "critical",
    "GpuStalled": "critical",
    "Unusual": "info",
} | dict.fromkeys(
    [
        *(
            "GpuBusyAndWaiting",
            "GpuMemoryHigh",
            "MemoryGrowing",
            "SlowP95",
            "RedisDown",
            "TelemetryDegraded",
            "SourceDown",
        ),
        *("SignalChanged", "FakeBusy", "GpuThrottled", "ThrottledByChassis"),
    ],
    "warning",
)
