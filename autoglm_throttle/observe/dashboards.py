"""The files for Prometheus and Grafana, made from the tables of metrics and rules."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from autoglm_throttle.observe.evaluator import KEEP_FIRING_S
from autoglm_throttle.observe.metric import PREFIX
from autoglm_throttle.observe.metrics import METRICS
from autoglm_throttle.observe.rules import RULES, RUNBOOK, Rule
from autoglm_throttle.settings import Settings

SCRAPE_S: Final = 15  # the windows of the rules need two samples in 30 s

# A metric in a query, and its matchers.
_METRIC: Final = r"\$([a-z][a-z_]*)(?:\{([^}]*)\})?"
_HELP: Final = {spec.name: spec.help for spec in METRICS}


def rules_file(settings: Settings, runbook: str = RUNBOOK) -> str:
    """Return the file of alert rules for Prometheus, with the thresholds of the settings."""
    rows = [
        "# Made by `autoglm-throttle dashboards`. The scrape interval must be 15 s or less.",
        "groups:",
        "  - name: autoglm-throttle",
        f"    interval: {SCRAPE_S}s",
        "    rules:",
    ]
    for rule in RULES:
        rows += [f"      {row}" for row in _rule_rows(rule, settings, runbook)]
    return "\n".join(rows) + "\n"


def _rule_rows(rule: Rule, settings: Settings, runbook: str) -> Iterator[str]:
    """Yield the lines of one rule; a string of JSON is one of YAML, too."""
    promql = re.sub(r"\$(?=[a-z])", PREFIX, rule.promql)
    expression = f"({promql}) {rule.comparison} {rule.limit(settings):g}"
    yield f"- alert: {rule.alert_name}"
    yield f"  expr: {json.dumps(expression)}"
    yield f"  for: {rule.duration_s(settings):g}s"
    yield f"  keep_firing_for: {KEEP_FIRING_S:g}s"
    yield "  labels:"
    yield f"    severity: {rule.severity}"
    yield "  annotations:"
    yield f"    summary: {json.dumps(rule.summary)}"
    yield f"    runbook_url: {json.dumps(rule.runbook.replace(RUNBOOK, runbook))}"


def scrape_file(job: str) -> str:
    """Return an example of a Prometheus configuration that scrapes all workers of a host."""
    return f"""\
# Made by `autoglm-throttle dashboards`. `autoglm-throttle ports N --file-sd targets.json` writes the targets.
global:
  scrape_interval: {SCRAPE_S}s
  evaluation_interval: {SCRAPE_S}s
rule_files:
  - prometheus-rules.yml
scrape_configs:
  - job_name: {json.dumps(job)}
    file_sd_configs:
      - files: [targets.json]
"""


def targets_file(address: str, ports: range, instance: str) -> str:
    """Return the targets of all workers of a host for Prometheus.

    All have the instance of the host, so that rules add up its workers; ``worker`` tells them apart.
    """
    rows = [
        {"targets": [f"{address}:{port}"], "labels": {"instance": instance, "worker": str(worker)}}
        for worker, port in enumerate(ports)
    ]
    return json.dumps(rows, indent=2) + "\n"


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel of the dashboard; its description is the help of its metrics."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    """Expressions with ``$`` before the short names of metrics, each with its legend."""

    @property
    def metrics(self) -> set[str]:
        """Names of its metrics."""
        names = [name for query, _ in self.queries for name in re.findall(_METRIC, query)]
        return {PREFIX + re.sub("_(total|bucket)$", "", name) for name, _ in names}

    @property
    def kind(self) -> str:
        """Type of the panel in Grafana."""
        if not self.queries:
            return "row"
        query = self.queries[0][0]
        return (
            "state-timeline"
            if query.endswith(" == 1")
            else "heatmap"
            if query.startswith("sum by (le)")
            else "timeseries"
        )


# Panels: title | unit | queries. A query is a function, a metric and its labels, or PromQL after
# "=" with "$" before metrics; after "->" stands a legend. States are drawn over time.
PANELS: Final = """
## Are requests limited, and why?
Decisions | reqps | rate requests decision
Rejections | reqps | = sum by (priority, reason) (rate($requests_total{reason!="ok"}[$__rate_interval])) -> {{priority}} {{reason}}
Rejections by route and limit | reqps | rate rejections route limit
Factor of the rates | percentunit | max factor_ratio -> in force; max table_factor_ratio -> table
Tier | short | state tier tier
Load signal | short | state load_signal signal
Requests in flight | short | sum inflight_requests -> in flight; sum inflight_limit -> limit; sum paused_requests -> paused
Pressure | percentunit | max pressure_ratio term
Wanted replicas over the present ones | percentunit | max desired_replicas_ratio -> wanted; max scale_hold -> none may be removed
Alerts that fire | short | max alert_active alert; max table_armed -> table armed; max alerts_up -> evaluated
Distance from the last half hour | short | max anomaly_score series
## GPU
Utilization | percentunit | max gpu_utilization_ratio gpu
Verdict | short | state gpu_verdict gpu verdict
Activity | percentunit | max gpu_sm_active_ratio gpu; max gpu_tensor_active_ratio gpu -> {{gpu}} tensor; max gpu_dram_active_ratio gpu -> {{gpu}} memory
Memory of devices | bytes | max gpu_memory_used_bytes gpu; max gpu_memory_total_bytes gpu -> {{gpu}} total
Power | watt | max gpu_power_watts gpu; max gpu_power_limit_watts gpu -> {{gpu}} limit
Temperature | celsius | max gpu_temperature_celsius gpu
Clock | hertz | max gpu_sm_clock_hertz gpu
Reasons for a reduced clock | short | state gpu_throttle gpu reason
Leaks of memory per hour | bytes | max leak_bytes_per_hour what
PCIe | Bps | max gpu_pcie_bytes_per_second gpu direction
NVLink | Bps | max gpu_nvlink_bytes_per_second gpu direction
Devices | short | max gpu_devices health; max gpu_capacity_ratio -> capacity; max gpu_fake_busy gpu -> {{gpu}} fake busy
## Priorities
Admitted | reqps | = sum by (priority) (rate($requests_total{decision="admitted"}[$__rate_interval])) -> {{priority}}
Rates in force | reqps | sum rate_limit priority
Tokens left | short | sum tokens priority
Tokens of requests | ops | rate limited_tokens result
Requests in the queue | short | sum queued_requests priority
Requests in the service | short | sum active_requests priority
Outcomes | reqps | rate outcomes priority outcome
## Latency
Durations | s | = sum by (le) (rate($request_duration_seconds_bucket[$__rate_interval])) -> {{le}}
Duration, quantiles | s | p50 request_duration_seconds -> p50; p95 request_duration_seconds -> p95; p99 request_duration_seconds -> p99
Time in the queue, p95 | s | p95 queue_time_seconds priority
Time to the first token, p95 | s | p95 time_to_first_token_seconds priority
Time between tokens, p95 | s | p95 inter_token_latency_seconds priority
Objective | s | max objective_seconds -> objective; max retry_backlog_seconds -> backlog
Service rate | reqps | sum service_rate -> all; sum work_class_rate work_class
Latency of work classes | s | max work_class_latency_seconds work_class; max work_class_unloaded_latency_seconds work_class -> {{work_class}} unloaded
Effect of ten points of a resource | s | max latency_effect_seconds resource
Parts of responses | ops | rate response_chunks -> parts
## Engines
Requests in engines | short | max engine_running_requests engine; max engine_queued_requests engine -> {{engine}} queued
Key-value cache | percentunit | max engine_kv_used_ratio engine
Tokens | ops | = max by (engine) (rate($engine_tokens_total[$__rate_interval])) -> {{engine}}
Preemptions | ops | = max by (engine) (rate($engine_preemptions_total[$__rate_interval])) -> {{engine}}
## Micro-batchers
Cost of a full batch | short | max batcher_target batcher
Cost that runs | ops | rate batcher_cost batcher
Waiting items and running batches | short | sum batcher_waiting batcher; sum batcher_running batcher -> {{batcher}} running
From submission to result, p95 | s | max batcher_latency_seconds batcher
Time of items | s | rate batcher_wait_seconds batcher; rate batcher_run_seconds batcher -> {{batcher}} running
Items | ops | rate batcher_items batcher; rate batcher_full batcher -> {{batcher}} queue full; rate batcher_late batcher -> {{batcher}} too late
Batches | ops | rate batcher_batches batcher; rate batcher_failed batcher -> {{batcher}} failed
## Breakers
State | short | state breaker_state breaker state
Calls | ops | rate breaker_calls breaker; rate breaker_rejected breaker cause
Degraded answers | ops | rate degraded guard fallback cause
Degradation level | short | state degradation_level level
## Store and fleet
Store | short | max redis_up -> store; max fleet_up -> fleet; max fleet_members -> members
Decisions of the store | ops | rate redis_decisions -> requested; rate redis_round_trips -> calls; rate redis_deny_cache_hits -> deny cache; rate redis_late_replies -> late
Decisions without the store | ops | rate redis_fallback reason; rate fleet_failures -> fleet
## Host
Cores | percentunit | max host_cpu_ratio -> all; max host_cpu_busiest_ratio -> busiest; max host_cpu_throttled_ratio -> held; max host_iowait_ratio -> waiting for a disk
Memory of the host | bytes | max host_memory_used_bytes -> used; max host_memory_total_bytes -> total
Waiting for a resource | percentunit | max host_pressure_ratio resource
Disks | Bps | max host_disk_bytes_per_second direction
Network | Bps | max host_network_bytes_per_second direction
Swap | Bps | max host_swap_bytes_per_second direction
## The throttle itself
Telemetry | short | state telemetry_state state
Sources | short | state gpu_source_state source state
Age of the newest sample | s | = time() - max($controller_last_sample_timestamp_seconds) -> age
Errors | ops | rate controller_errors -> telemetry; rate oddities kind
"""  # noqa: E501 - a table has one line for each panel

_FUNCTIONS: Final[Mapping[str, str]] = {
    "sum": "sum by ({by}) (${name})",
    "max": "max by ({by}) (${name})",
    "rate": "sum by ({by}) (rate(${name}_total[$__rate_interval]))",
    "state": "max by ({by}) (${name}) == 1",
} | {
    f"p{share}": f"histogram_quantile(0.{share}, sum by ({{by}}) (rate(${{name}}_bucket[$__rate_interval])))"
    for share in (50, 95, 99)
}
_BANDS: Final = ((0.85, "yellow"), (0.9, "orange"), (0.95, "red"))  # as the default table of tiers


def panels() -> list[Panel]:
    """Return the panels in their order; a panel without queries begins a row."""
    found = []
    for line in filter(None, PANELS.splitlines()):
        title, unit, queries = (*line.removeprefix("## ").split(" | "), "", "")[:3]
        found.append(Panel(title, unit, tuple(map(_query, filter(None, queries.split("; "))))))
    return found


def _query(text: str) -> tuple[str, str]:
    """Return the expression of a query, and its legend."""
    words, _, legend = text.partition(" -> ")
    function, name, *labels = words.split(" ")
    if function == "=":
        return words.removeprefix("= "), legend
    by = ", ".join([*labels, "le"] if function in {"p50", "p95", "p99"} else labels)
    shown = legend or " ".join(f"{{{{{label}}}}}" for label in labels)
    return _FUNCTIONS[function].format(by=by, name=name), shown


# Metrics without a panel, by a part of their names, and why.
WITHOUT_PANEL: Final[Mapping[str, str]] = {
    "_info": "labels only",
    "quota_": "only with QUOTAS; one host's figures",
    "recorder_": "only while traffic is recorded",
    "would_reject": "only in a dry run",
    "dynamic_threshold": "in the units of several series; beside the score on the live page",
    "anomaly_active": "the score shows it",
    "stale_results": "late results are harmless: a count for a closer look",
    "breaker_transitions": "the state shows them",
    "gpu_source_": "for a closer look at one source",
    "objective_learned": "a flag; the objective has a panel",
    "work_class_negligible": "a flag for a closer look",
    "work_class_inflight": "the requests in flight have a panel",
    "fleet_round_trips": "for a closer look",
    "token_estimates": "for the choice of the estimate",
    "token_streams_ended": "a count for a closer look",
    "lost_refunds": "a count for a closer look",
    "latency_seconds": "a quantile for readers without PromQL; the histogram has a panel",
    "error_ratio": "of a minute, for readers without PromQL; the outcomes have a panel",
    "tokens_per_second": "of a minute, for readers without PromQL; the engines have a panel",
    "latency_effect_known": "the effect is absent while it is not known",
    "gpu_": "a further quantity of a device, for a closer look",
}


def grafana_file() -> str:
    """Return the dashboard for Grafana 9 or later, as JSON to import."""
    return json.dumps(dashboard(), indent=1) + "\n"


def dashboard() -> dict[str, Any]:
    """Return the dashboard: one row for each question, three panels side by side."""
    drawn, x, y = list[dict[str, Any]](), 0, 0
    for number, panel in enumerate(panels(), 1):
        is_row = panel.kind == "row"
        if x and (is_row or x == 24):
            x, y = 0, y + 8
        width, height = (24, 1) if is_row else (8, 8)
        drawn.append({"id": number, **_panel(panel), "gridPos": {"w": width, "h": height, "x": x, "y": y}})
        x, y = (0, y + 1) if is_row else (x + 8, y)
    return {
        "uid": "autoglm-throttle",
        "id": None,
        "title": "autoglm_throttle",
        "tags": ["autoglm-throttle"],
        "schemaVersion": 37,
        "version": 1,
        "editable": True,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": [_DATASOURCE, _variable("job", ""), _variable("instance", 'job=~"$job"')]},
        "annotations": {"list": []},
        "panels": drawn,
    }


_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_DATASOURCE: Final = {
    "name": "datasource",
    "label": "Data source",
    "type": "datasource",
    "query": "prometheus",
}


def _variable(name: str, match: str) -> dict[str, Any]:
    query = f"label_values({PREFIX}build_info{{{match}}}, {name})"
    kind = {"name": name, "label": name.capitalize(), "type": "query", "datasource": _SOURCE, "refresh": 2}
    chosen = {
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }
    return kind | chosen | {"query": {"query": query, "refId": name}, "definition": query}


def expression(query: str) -> str:
    """Return PromQL for a query: full names, and the job and the instance that were chosen."""

    def selected(match: re.Match[str]) -> str:
        more = f",{match[2]}" if match[2] else ""
        return f'{PREFIX}{match[1]}{{job=~"$job",instance=~"$instance"{more}}}'

    return re.sub(_METRIC, selected, query).replace(" by () ", "")


def _panel(panel: Panel) -> dict[str, Any]:
    if panel.kind == "row":
        return {"type": "row", "title": panel.title, "collapsed": False, "panels": []}
    bands = _BANDS if panel.title == "Utilization" else ()
    steps = [{"value": value, "color": color} for value, color in ((None, "green"), *bands)]
    is_heatmap = panel.kind == "heatmap"
    defaults = {
        "unit": panel.unit,
        "noValue": "no data",
        "custom": {"thresholdsStyle": {"mode": "area"}} if bands else {},
        "thresholds": {"mode": "absolute", "steps": steps},
    }
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": " ".join(_HELP[name] for name in sorted(panel.metrics)),
        "datasource": _SOURCE,
        "targets": [
            {
                "refId": chr(ord("A") + position),
                "datasource": _SOURCE,
                "expr": expression(query),
                "legendFormat": legend,
                "format": "heatmap" if is_heatmap else "time_series",
            }
            for position, (query, legend) in enumerate(panel.queries)
        ],
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {"yAxis": {"unit": panel.unit}} if is_heatmap else {},
    }
