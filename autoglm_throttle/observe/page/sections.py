"""The content of the live page: one sentence, and its sections, from a snapshot and a history.

All cells are plain text. Names from outside are cut and have no unprintable characters.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from autoglm_throttle.observe.gpu_metrics import labelled
from autoglm_throttle.observe.metric import MetricsInput
from autoglm_throttle.observe.metrics import work_classes
from autoglm_throttle.observe.page.latency import latency_section
from autoglm_throttle.observe.page.plots import QUANTILE_S, request_rates
from autoglm_throttle.observe.page.text import Pairs, Section, duration, number, percent, section, table
from autoglm_throttle.observe.series import History
from autoglm_throttle.observe.siblings import WorkerView
from autoglm_throttle.observe.timer import SHOWN_USERS, USERS_SERIES, limited_users
from autoglm_throttle.settings import Settings, settings_table
from autoglm_throttle.types import ControlCause, ControlState, GpuSample, Priority, Signal
from autoglm_throttle.version import __version__

RECENT_S: Final = 15.0  # window of rates: three steps, so that a short gap does not show as an end
CAUSES: Final = {
    ControlCause.STRIKE: "the load is above a band for the first samples",
    ControlCause.TIER: "the load is above a band",
    ControlCause.HELD: "the reduction is held until the load stays lower",
    ControlCause.RELEASED: "the load has fallen and the rates rise in steps",
    ControlCause.STALE: "GPU telemetry is stale",
    ControlCause.BLIND: "GPU telemetry is missing",
    ControlCause.LOST: "a GPU is lost",
    ControlCause.STALLED: "a GPU is busy without output",
    ControlCause.DEGRADED: "a GPU is far slower than before under the same load",
}
REASONS: Final = {
    "rate": "above the rate of their class",
    "user": "above the limit of their user",
    "concurrency": "beside too many others of their user",
    "too_large": "larger than a limit",
    "gpu": "because of GPU load",
    "queue": "that would wait too long",
    "breaker": "while the breaker of the app is open",
    "store": "while the store of user limits is unavailable",
}


def bands(settings: Settings) -> tuple[tuple[float, str], ...]:
    """Return the bands of the tier table: percent of load, and the rates above it."""
    return tuple((at, f"{at:g} %: rates at {factor:.0%}") for at, factor in settings.control.tiers)


def sentence(inputs: MetricsInput, history: History) -> str:
    """Say what is limited now, and why."""
    snapshot, control = inputs.snapshot, inputs.snapshot.control
    rates = request_rates(history, RECENT_S)
    rejected = {phrase: rps for reason, phrase in REASONS.items() if (rps := rates[reason]) > 0.0}
    parts = []
    if control.factor < 1.0:
        share = (
            f"rates are at {control.factor:.0%} of nominal" if control.factor else "no request is admitted"
        )
        since = duration(max(0.0, snapshot.taken_at_s - control.since_s))
        parts.append(
            f"{share} for {since}, because {CAUSES.get(control.cause, control.cause)}{_load(control)}"
        )
    parts += [f"{number(rps)} requests/s {phrase} are not admitted" for phrase, rps in rejected.items()]
    if snapshot.dry_run:
        count = sum(snapshot.would_reject.values())
        return f"Not limiting, a dry run: {count:,} requests would have been rejected since the start."
    if parts:
        return f"Limiting: {'; '.join(parts)}."
    concurrency = snapshot.concurrency
    waiting = 0 if concurrency is None else sum(concurrency.waiting)
    queue = f", and {waiting} wait in the queue" if waiting else ""
    return f"Not limiting: {number(rates['admitted'])} requests/s are admitted{queue}."


def _load(control: ControlState) -> str:
    if control.load is None:
        return ""
    name = "GPU utilization" if control.signal is Signal.UTILIZATION else f"pressure ({control.term})"
    return f": {name} is {percent(control.load)}"


def _now(inputs: MetricsInput, history: History) -> Section:
    snapshot, control, view = inputs.snapshot, inputs.snapshot.control, inputs.snapshot.view
    rates = request_rates(history, RECENT_S)
    admitted = rates["admitted"]
    failed = sum(history.increase("outcomes", QUANTILE_S, outcome="failure").values())
    ended = sum(history.increase("outcomes", QUANTILE_S).values())
    p95_s = history.quantile(0.95, "request_duration_seconds", QUANTILE_S)
    pairs: Pairs = [
        ("admitted", number(admitted, "/s")),
        ("not admitted", number(rates[""] - rates["exempt"] - admitted, "/s")),
        ("share of the nominal rates", percent(control.factor)),
        ("p95 of the last minute", duration(p95_s)),
        ("failures of the last minute", percent(failed / ended) if ended else None),
        ("in flight", number(_sum(history, "active_requests"))),
        ("GPU utilization", number(None if view is None else view.utilization_pct, "%")),
        ("telemetry", control.telemetry),
        ("policy", snapshot.policy),
        ("dry run", "on: nothing is rejected" if snapshot.dry_run else None),
        ("ready", None if snapshot.ready else "no: no usable GPU is left"),
    ]
    return section("now", "Now", pairs)


def _gpu(inputs: MetricsInput, _: History) -> Section | None:
    every, sources = inputs.snapshot.devices, inputs.snapshot.sources
    devices = [
        (name, one.name, *_device(inputs, one)) for name, one in labelled(every) if one.kind != "engine"
    ]
    reads = [(one.name, one.state, one.failures, duration(one.age_s), one.last_error) for one in sources]
    tables = [
        table("Devices", "GPU|model|utilization|SM active|memory|power|verdict|for|certainty", devices),
        table("Sources of telemetry", "source|state|failed reads|age|last error", reads),
    ]
    return section("gpu", "GPU", tables=tables)


def _device(inputs: MetricsInput, device: GpuSample) -> Iterator[object]:
    used, total = device.memory_used_bytes, device.memory_total_bytes
    yield number(device.utilization_pct, "%")
    yield percent(device.sm_active_ratio)
    yield percent(used / total) if used is not None and total else None
    yield number(device.power_w, "W")
    view, now = inputs.snapshot.view, inputs.snapshot.taken_at_s
    verdict = None if view is None else view.verdicts.get((device.host, device.device))
    if verdict is not None:
        yield verdict.condition
        yield duration(max(0.0, now - verdict.since_s))
        yield percent(verdict.confidence)


def _classes(inputs: MetricsInput, history: History) -> Section:
    caption = f"Requests/s of the last {RECENT_S:g} s, latency of the last {QUANTILE_S:g} s"
    head = "class|admitted/s|not admitted/s|in flight|waiting|p50|p95|rate limit/s|tokens"
    rates = request_rates(history, RECENT_S)
    rows = [_class(inputs, history, rates, priority) for priority in Priority]
    return section("classes", "Classes", tables=[table(caption, head, rows)])


def _class(inputs: MetricsInput, history: History, rates: Counter[str], priority: Priority) -> list[object]:
    snapshot, name = inputs.snapshot, priority.label
    admitted = rates[f"{name} admitted"]
    others = rates[name] - admitted
    active, waiting = (_sum(history, f"{state}_requests", priority=name) for state in ("active", "queued"))
    p50, p95 = (
        duration(history.quantile(share, "request_duration_seconds", QUANTILE_S, priority=name))
        for share in (0.5, 0.95)
    )
    requests = (name, number(admitted), number(others), number(active), number(waiting), p50, p95)
    return [*requests, number(snapshot.rate_limit_rps[priority]), number(snapshot.tokens[priority])]


def _sum(history: History, metric: str, **match: str) -> float | None:
    """Return the newest value of a gauge with all its labels added up; None: it is not known."""
    values = history.last(metric, offset_s=0.0, **match).values()
    return sum(values) if values else None


def _queue(inputs: MetricsInput, history: History) -> Section | None:
    view = inputs.snapshot.concurrency
    if view is None:
        return None
    pairs: Pairs = [
        ("in flight", number(_sum(history, "inflight_requests"))),
        ("limit", number(_sum(history, "inflight_limit"))),
        ("bound by memory", "yes" if view.memory_cap < view.limit else None),
        ("paused", number(view.paused) if view.paused else None),
        ("waiting", number(_sum(history, "queued_requests"))),
        ("service rate", number(_sum(history, "service_rate"), "/s")),
        ("demand", None if inputs.workers else number(sum(view.demand_rps), "/s")),
        ("learned objective" if view.slo_learned else "objective", duration(view.slo_s)),
        ("mean time in the service", duration(view.latency_s)),
        ("objective out of reach", "yes: half of it passes without load" if view.slo_unreachable else None),
    ]
    rows = [
        (name, number(one.rate_rps), duration(one.mean_s), duration(one.unloaded_s), one.in_flight)
        for name, one in work_classes(inputs)
    ]
    head = "work class|ends/s|mean|without load|in flight"
    return section("queue", "Queue and concurrency limit", pairs, [table("Work classes", head, rows)])


def _users(inputs: MetricsInput, _: History) -> Section:
    snapshot, store = inputs.snapshot, inputs.snapshot.store
    pairs: Pairs = [
        ("users in memory", number(snapshot.users)),
        ("users limited", None if inputs.workers else number(len(set(snapshot.limited_users)))),
        ("limit", inputs.settings.text_of("user_limit")),
        ("shared store", None if store is None else store.state),
        ("fault of the store", None if store is None else store.cause),
    ]
    rows: Iterable[tuple[str, float]] = limited_users(inputs)
    caption = f"Of the newest {len(snapshot.limited_users):,} rejections by a user limit"
    if inputs.workers:
        counts = Counter[str]()
        for worker in inputs.workers:
            for (user,), (count,) in worker.series[USERS_SERIES].items():
                counts[user] += int(count)
        rows, caption = (
            counts.most_common(SHOWN_USERS),
            "Of the newest rejections by a user limit, of all workers",
        )
    return section(
        "users", "Users limited most", pairs, [table(caption, "hash of the user|rejections", rows)]
    )


def _engines(inputs: MetricsInput, _: History) -> Section | None:
    rows = [
        (
            *(name, one.name, number(one.running), number(one.queued), percent(one.kv_used_ratio)),
            *(number(one.tokens_per_s), number(one.preemptions_per_s)),
        )
        for name, one in labelled(inputs.snapshot.devices)
        if one.kind == "engine"
    ]
    head = "engine|model|running|waiting inside|key-value cache|tokens/s|preemptions/s"
    return section("engines", "Engines", tables=[table("Inference engines", head, rows)]) if rows else None


def _guards(inputs: MetricsInput, _: History) -> Section | None:
    guards = inputs.snapshot.guards
    if guards is None:
        return None
    store = None if guards.store_up is None else "up" if guards.store_up else "down"
    pairs: Pairs = [("degradation level", guards.level.label), ("shared store", store)]
    rows = [
        (
            *(one.name, one.state, one.cause, one.streak, one.calls, sum(one.rejected.values())),
            duration(one.retry_after_s or None),
        )
        for one in guards.breakers
    ]
    degraded = Counter[str]()
    for (name, _kind, _cause), count in guards.degraded.items():
        degraded[name] += count
    tables = [
        table("Circuit breakers", "guard|breaker|cause|failures in a row|calls|rejected|next probe in", rows),
        table("Answers without the dependency", "guard|answers", degraded.most_common(SHOWN_USERS)),
    ]
    return section("guards", "Guards", pairs, tables)


def _alerts(inputs: MetricsInput, _: History) -> Section | None:
    if inputs.alerts is None:
        return None
    now, current = inputs.snapshot.taken_at_s, inputs.alerts.current
    pairs: Pairs = [
        ("firing", sum(alert.state == "firing" for alert in current)),
        ("evaluation", None if inputs.alerts.up else "failed: see the log"),
    ]
    rows = [
        (
            *(alert.rule.name, alert.rule.severity, alert.state, duration(max(0.0, now - alert.since_s))),
            *(number(alert.value), alert.summary, alert.rule.runbook),
        )
        for alert in current
    ]
    head = "alert|severity|state|for|value|meaning|runbook"
    return section("alerts", "Alerts", pairs, [table("Pending and firing alerts", head, rows)])


def _host(inputs: MetricsInput, _: History) -> Section | None:
    host = inputs.host
    used, total = host.memory_used_bytes, host.memory_total_bytes
    pairs: Pairs = [
        ("cores busy", percent(host.cpu_ratio)),
        ("busiest core", percent(host.cpu_busiest_ratio)),
        ("periods throttled by the control group", percent(host.cpu_throttled_ratio)),
        ("waiting for disks", percent(host.iowait_ratio)),
        ("memory in use", percent(used / total) if used is not None and total else None),
        *((f"pressure: {name}", percent(ratio)) for name, ratio in host.pressure_ratio.items()),
        *((f"swap {way}", number(rate, "MB/s", 1e-6)) for way, rate in host.swap_bytes_per_second.items()),
        *((f"disks {way}", number(rate, "MB/s", 1e-6)) for way, rate in host.disk_bytes_per_second.items()),
        *(
            (f"network {way}", number(rate, "MB/s", 1e-6))
            for way, rate in host.network_bytes_per_second.items()
        ),
    ]
    made = section("host", "Host", pairs)
    return made if made["pairs"] else None


def _workers(inputs: MetricsInput, _: History) -> Section:
    fleet, alone = inputs.snapshot.fleet, not inputs.workers
    pairs: Pairs = [
        (
            "shown",
            f"process {os.getpid()} only" if alone else f"{len(inputs.workers)} processes of this host",
        ),
        ("WORKERS", inputs.settings.rates.workers),
        ("processes of the fleet", None if fleet is None else fleet.members),
        ("guards, work classes and configuration of", None if alone else f"process {os.getpid()}"),
        ("version", __version__),
    ]
    head = "process|admitted/s|not admitted/s|in flight|waiting|state"
    rows = map(_worker, inputs.workers)
    return section("workers", "Workers", pairs, [table("Workers of this service on this host", head, rows)])


def _worker(worker: WorkerView) -> Iterator[object]:
    rates = Counter[str]()
    for (_, decision, _), (count,) in worker.increases.get("requests", {}).items():
        rates[decision] += count / worker.passed_s if worker.passed_s else 0.0  # type: ignore[assignment]
    yield worker.process
    yield number(None if worker.is_stale else rates["admitted"])
    yield number(None if worker.is_stale else rates.total() - rates["admitted"] - rates["exempt"])
    for gauge in ("active_requests", "queued_requests"):
        yield number(None if worker.is_stale else sum(count for (count,) in worker.series[gauge].values()))
    yield f"no data for {duration(worker.age_s)}" if worker.is_stale else "running"


def configuration(settings: Settings) -> Section:
    """Return every setting in force with its source; secrets are masked."""
    rows = (
        (known.variable, settings.text_of(name), settings.source_of(name))
        for name, known in settings_table().items()
    )
    return section("configuration", "Configuration", tables=[table("Settings", "setting|value|source", rows)])


MakeSection = Callable[[MetricsInput, History], Section | None]
SECTIONS: Final[tuple[MakeSection, ...]] = (
    _now,
    _alerts,
    _gpu,
    _classes,
    _queue,
    _users,
    _engines,
    _guards,
    latency_section,
    _host,
    _workers,
)
