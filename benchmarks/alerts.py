"""Alerts and metrics before a real Prometheus: equal states, false alarms, cost of a step, exact totals.

Run: ``python -m benchmarks.alerts``, seven minutes; ``--parts`` runs some. States and totals need the
programs ``promtool`` and ``prometheus``; without them these parts are left out.

- states: 24 courses of time by all rules, in the evaluator and through ``promtool test rules``.
- anomalies: events of the dynamic thresholds in 20 simulated days of correlated noise, and steps found.
- step: CPU time of one evaluation of all rules with eight GPUs.
- totals: Prometheus scrapes four workers of an example; its sum must be the number of requests sent.
- panels: each query of the dashboard gives a series while a service uses every mechanism.
"""

from __future__ import annotations

import argparse
import logging
import math
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from autoglm_throttle import Settings
from autoglm_throttle.observe.anomalies import Baseline
from autoglm_throttle.observe.dashboards import SCRAPE_S, expression, panels
from autoglm_throttle.observe.evaluator import Evaluator
from autoglm_throttle.observe.rules import RULES
from autoglm_throttle.observe.series import STEP_S
from autoglm_throttle.observe.timer import history_timer
from autoglm_throttle.testing import FakeGpu, throttle_for_tests
from benchmarks import harness, monitored
from benchmarks.shared.bars import Bar
from tests.observe.alert_series import DRIVES, differences, evaluated, patterns, prometheus_states, steps
from tests.observe.anomaly_series import events, walk
from tests.observe.page_states import send
from tests.store.server import RedisServer

CORRELATIONS = (0.0, 0.9, 0.97, 0.99)
"""Of a sample with that of 15 s before."""
BASELINE = Baseline(floor=0.02, both_sides=True)
DAYS, STEPS, DAY_MIN = 20, 40, 1440
STEP_SIZE, STEP_AT_MIN, FOUND_WITHIN_MIN = 0.25, 45, 8
"""A step of five deviations, its minute, and the minutes in which it must be found."""
FALSE_A_DAY = {0.0: 0.0, 0.9: 0.8, 0.97: 3.0, 0.99: 3.3}
FOUND = {0.0: 40, 0.9: 24, 0.97: 18}
"""Most false events a day, and least steps found of 40, by the correlation."""
STEP_MS, CARDS, HISTORY_STEPS = 1.0, 8, 420
TOTALS_RPS, TOTALS_S, WORKERS = 200.0, 60.0, 4
EXAMPLE_JOBS: tuple[monitored.Job, ...] = (
    ("POST", "/v1/embed", {"prompt": "a few words"}),
    ("GET", "/v1/models", None),
    ("POST", "/v1/generate", {"prompt": "hello"}),
    ("POST", "/v1/embed", {"prompt": "more words"}),
)
PANELS_RPS, PANELS_S, TOGETHER = 80.0, 100.0, 10
SETTLE_S = 60.0

WITHOUT_SERIES: Mapping[str, str] = {
    "anomaly_score": "known after 15 minutes",
    "latency_effect_seconds": "known where a resource moved for a quarter of an hour",
    "leak_bytes_per_hour": "known after 45 minutes",
    "host_cpu_throttled_ratio": "only in a control group with a limit on its cores",
}
"""Metric of a query that may have no series in a run of two minutes, and the reason."""


def states(promtool: str, courses: int | None = None) -> dict[str, Any]:
    """Compare the states of the evaluator and of Prometheus on all courses of time by all rules."""
    cases = {
        f"{name} {number}": steps(drive, pattern)
        for number, pattern in enumerate(patterns()[:courses])
        for name, drive in DRIVES.items()
    }
    with tempfile.TemporaryDirectory() as folder:
        theirs = prometheus_states(promtool, Path(folder), cases)
    settings = Settings()
    found = {name: differences(evaluated(rows, settings), theirs[name]) for name, rows in cases.items()}
    return {
        "cases": len(cases),
        "rules": len(RULES),
        "steps": sum(map(len, cases.values())),
        "shown": sum(len(one) for case in theirs.values() for one in case),
        "differences": {name: [[*one] for one in each] for name, each in found.items() if each},
    }


def anomalies(days: int = DAYS, count: int = STEPS) -> dict[str, Any]:
    """Count the events in simulated days without a fault, and the steps that are found in time."""
    false = {
        str(correlation): sum(len(events(walk(correlation, DAY_MIN, seed), BASELINE)) for seed in range(days))
        / days
        for correlation in CORRELATIONS
    }
    sine = [0.5 + 0.3 * math.sin(2 * math.pi * minute / DAY_MIN) for minute in range(2 * DAY_MIN)]
    noise = walk(0.0, len(sine), seed=1)
    daily = [wave + 0.4 * ((mean or 0.0) - 0.5) for wave, mean in zip(sine, noise, strict=True)]
    found = {str(correlation): sum(map(_finds, [correlation] * count, range(count))) for correlation in FOUND}
    return {
        "days": days,
        "false_a_day": false,
        "sine_a_day": len(events([*daily], BASELINE)) / 2,
        "steps": count,
        "found": found,
    }


def _finds(correlation: float, seed: int) -> bool:
    """Return whether a step is found in time, without an event before it."""
    noise = walk(correlation, STEP_AT_MIN + FOUND_WITHIN_MIN, seed)
    means = [(mean or 0.0) + STEP_SIZE * (minute >= STEP_AT_MIN) for minute, mean in enumerate(noise)]
    return any(minute >= STEP_AT_MIN for minute in events([*means], BASELINE))


def step_ms(rounds: int = 10, each: int = 100) -> dict[str, float]:
    """Measure the CPU time of an evaluation with a full history of eight GPUs and two engines."""
    gpu = FakeGpu(CARDS, engines=2)
    gpu.utilization_pct, gpu.power_w, gpu.power_limit_w = 88.0, 400.0, 700.0
    gpu.throttle = frozenset({"sw_power_cap"})
    throttle = throttle_for_tests(gpu=gpu)
    timer = history_timer(throttle)
    evaluator = Evaluator(throttle.settings)
    for _ in range(HISTORY_STEPS):
        throttle.clock.advance(5.0)
        throttle.tick()
        send(throttle, 3)
        timer.step()
        evaluator.step(timer.history)
    spent = []
    for _ in range(rounds):
        begun_s = time.thread_time()
        for _ in range(each):
            evaluator.step(timer.history)
        spent.append((time.thread_time() - begun_s) / each * 1e3)
    return {"least": min(spent), "most": max(spent)}


def totals(
    program: str, rate_rps: float = TOTALS_RPS, length_s: float = TOTALS_S, scrape_s: int = SCRAPE_S
) -> dict[str, Any]:
    """Let Prometheus scrape four workers under load; return the requests sent and the sum of its counts."""
    total = 'sum(autoglm_throttle_requests_total{decision!="exempt"})'
    falls = "sum(resets(autoglm_throttle_requests_total[10m]))"
    with (
        tempfile.TemporaryDirectory() as folder,
        monitored.served(
            "examples.inference_service:app", "--workers", str(WORKERS), WEB_CONCURRENCY=str(WORKERS)
        ) as port,
        monitored.prometheus(program, Path(folder), port, scrape_s) as server,
    ):
        statuses = monitored.send(port, EXAMPLE_JOBS, rate_rps, length_s)
        sent = sum(statuses.values())
        monitored.wait_for(lambda: sum(server.query(total)) >= sent, SETTLE_S, "all requests in Prometheus")
        time.sleep(scrape_s + STEP_S)  # one more scrape, which must not count more
        return {
            "sent": sent,
            "statuses": dict(statuses),
            "counted": sum(server.query(total)),
            "falls": sum(server.query(falls)),
            "rule_errors": server.rule_errors(),
        }


def panel_series(program: str, rate_rps: float = PANELS_RPS, length_s: float = PANELS_S) -> dict[str, Any]:
    """Let Prometheus scrape a service that uses every mechanism; return the queries without a series."""
    with (
        tempfile.TemporaryDirectory() as folder,
        RedisServer() as redis,
        monitored.served(
            "benchmarks.monitored:create_app", "--factory", AUTOGLM_THROTTLE_REDIS_URL=redis.url
        ) as port,
        monitored.prometheus(program, Path(folder), port) as server,
    ):
        statuses = monitored.send(port, monitored.MIX, rate_rps, length_s, TOGETHER)
        queries = [(panel.title, query) for panel in panels() for query, _ in panel.queries]
        missing = [
            [title, query] for title, query in queries if not monitored.has_value(server.query(_plain(query)))
        ]
    return {
        "panels": len({title for title, _ in queries}),
        "queries": len(queries),
        "statuses": dict(statuses),
        "missing": missing,
    }


def _plain(query: str) -> str:
    """Return a query of a panel with its variables replaced."""
    text = expression(query).replace("$__rate_interval", "1m")
    return text.replace("$job", ".*").replace("$instance", ".*")


def _unexplained(missing: list[list[str]]) -> int:
    return sum(not any(f"${name}" in query for name in WITHOUT_SERIES) for _, query in missing)


def bars(found: Mapping[str, Any]) -> Iterator[Bar]:
    """Compute the bars of the parts that were measured."""
    if "states" in found:
        yield Bar("steps at which a state differs", _different(found["states"]), 0)
    if "anomalies" in found:
        yield from _anomaly_bars(found["anomalies"])
    if "step" in found:
        yield Bar(f"CPU ms of a step with {CARDS} GPUs", found["step"]["least"], STEP_MS)
    if "totals" in found:
        one = found["totals"]
        yield Bar("requests counted by Prometheus, less those sent", abs(one["counted"] - one["sent"]), 0)
        yield Bar("falls of a counter", one["falls"], 0)
        yield Bar("alert rules with an error", len(one["rule_errors"]), 0)
    if "panels" in found:
        yield Bar("queries without a series and a reason", _unexplained(found["panels"]["missing"]), 0)


def _different(found: Mapping[str, Any]) -> int:
    return sum(map(len, found["differences"].values()))


def _anomaly_bars(found: Mapping[str, Any]) -> Iterator[Bar]:
    for correlation, most in FALSE_A_DAY.items():
        value = found["false_a_day"][str(correlation)]
        yield Bar(f"false events a day, correlation {correlation:g}", value, most)
    yield Bar("events a day under a daily sine", found["sine_a_day"], 1.0)
    for correlation, least in FOUND.items():
        count = found["found"][str(correlation)]
        share = least / STEPS * found["steps"]
        yield Bar(
            f"steps found of {found['steps']}, correlation {correlation:g}", count, share, at_most=False
        )


PARTS: Mapping[str, tuple[str, Callable[..., Any]]] = {
    "states": ("promtool", states),
    "anomalies": ("", anomalies),
    "step": ("", step_ms),
    "totals": ("prometheus", totals),
    "panels": ("prometheus", panel_series),
}
"""Name of a part -> the program it needs, and its function, which gets the path of this program."""


def main() -> int:
    """Measure, print and keep the record; returns 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--write", action="store_true", help="keep the result in benchmarks/results")
    options = parser.parse_args()
    logging.getLogger("autoglm_throttle").addHandler(logging.NullHandler())
    found: dict[str, Any] = {}
    for name in options.parts:
        program, measure = PARTS[name]
        path = shutil.which(program) if program else None
        if program and path is None:
            print(f"{name}: left out, there is no {program} on this machine")
            continue
        begun_s = time.monotonic()
        found[name] = measure(path) if path else measure()
        print(f"{name}, {time.monotonic() - begun_s:.0f} s: {found[name]}", flush=True)
    evaluated_bars = list(bars(found))
    print("\n".join(map(str, evaluated_bars)))
    result = {**harness.machine("prometheus-client"), **found}
    result["bars"] = [bar.record() for bar in evaluated_bars]
    if options.write:
        harness.keep("alerts", result)
    return 1 if any(bar.verdict == "MISSED" for bar in evaluated_bars) else 0


if __name__ == "__main__":
    sys.exit(main())
