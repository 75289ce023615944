"""Each rule fires at its threshold after its duration, in the evaluator as in Prometheus."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autoglm_throttle import Settings
from autoglm_throttle.observe.evaluator import Evaluator
from autoglm_throttle.observe.rules import RULES, Rule
from autoglm_throttle.observe.series import Row
from autoglm_throttle.observe.timer import RECORDED, new_history
from tests.observe.alert_series import (
    DRIVES,
    SEVERITIES,
    STEP_S,
    STEPS,
    States,
    differences,
    evaluated,
    lasting,
    near,
    patterns,
    prometheus_states,
    steps,
    with_gap,
)

RUNBOOK = Path(__file__).parents[2] / "docs" / "operating.md"
PROMTOOL = shutil.which("promtool")

# Rule -> seconds from the first value above the threshold to the alert. Windows add to the durations.
FIRES_AFTER_S = {
    **dict.fromkeys(["GpuMemoryHigh", "Unusual"], 0),
    **dict.fromkeys(["GpuBusy", "GpuBusyAndWaiting"], 180),
    **dict.fromkeys(["BreakerOpen", "RedisDown", "ControllerStale", "GpuLost", "GpuStalled"], 30),
    **dict.fromkeys(["GpuThrottled", "SignalChanged"], 30),
    **dict.fromkeys(["TelemetryDegraded", "FakeBusy"], 60),
    "SourceDown": 120,
    "HighErrorRate": 30,  # from then on more than half of the minute is above the threshold
    "SlowP95": 180 + 15,  # the second slow step moves the quantile of five minutes
    "MemoryGrowing": 300,
    "HighPriorityRejected": 300 + 195,  # the counters show a rejection one step later
    "NothingComesOut": 15,
    "ThrottledByChassis": 270,
}
START = 45


def fired_after_s(states: list[States], name: str) -> float | None:
    fired = [step for step, one in enumerate(states) if any(_fires(one, key, name) for key in one)]
    return (fired[0] - START) * STEP_S if fired else None


def _fires(states: States, key: tuple[str, tuple[tuple[str, str], ...]], name: str) -> bool:
    return key[0] == f"Autoglm{name}" and states[key] == "firing"


def test_each_rule_has_a_series_a_severity_and_recorded_metrics() -> None:
    names = [rule.name for rule in RULES]
    assert sorted(names) == sorted(DRIVES) == sorted(FIRES_AFTER_S)
    assert {rule.name: rule.severity for rule in RULES} == SEVERITIES
    used = {name for rule in RULES for name in re.findall(r"\$([a-z][a-z_]*)\b(?!\.)", rule.promql)}
    assert {re.sub("_(total|bucket)$", "", name) for name in used} <= RECORDED


@pytest.mark.parametrize("name", DRIVES)
def test_a_rule_fires_above_its_threshold_after_its_duration(name: str) -> None:
    settings = Settings()
    for rows in (steps(DRIVES[name], lasting(0, 0)), near(name)):
        assert fired_after_s(evaluated(rows, settings), name) is None
    then = evaluated(steps(DRIVES[name], lasting(START, 80)), settings)
    assert fired_after_s(then, name) == FIRES_AFTER_S[name]


@pytest.mark.parametrize(
    ("changed", "name", "after_s"),
    [
        ({"alert_gpu_pct": 86.5}, "GpuBusy", None),
        ({"alert_gpu_pct": 86.5}, "GpuBusyAndWaiting", None),
        ({"alert_gpu_for_s": 60}, "GpuBusy", 60),
        ({"alert_gpu_for_s": 60}, "GpuBusyAndWaiting", 60),
        ({"alert_memory_ratio": 0.95}, "GpuMemoryHigh", None),
        ({"alert_p95_s": 5}, "SlowP95", None),
        ({"alert_p95_for_s": 0}, "SlowP95", 15),
    ],
)
def test_settings_change_thresholds(changed: dict[str, Any], name: str, after_s: float | None) -> None:
    settings = Settings(**changed)
    assert fired_after_s(evaluated(steps(DRIVES[name], lasting(START, 80)), settings), name) == after_s


@pytest.mark.parametrize(("reason", "watts"), [("sw_power_cap", 330.0), ("hw_thermal", 240.0)])
def test_a_cap_near_the_limit_or_by_heat_is_not_of_the_chassis(reason: str, watts: float) -> None:
    rows: list[Row] = [
        ("gpu_throttle", ("0", reason), 1.0),
        ("gpu_power_watts", ("0",), watts),
        ("gpu_power_limit_watts", ("0",), 400.0),
    ]
    assert fired_after_s(evaluated([rows] * 80, Settings()), "ThrottledByChassis") is None


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_threshold_or_duration_changed_twofold_is_found(rule: Rule) -> None:
    settings, drive = Settings(), DRIVES[rule.name]
    below, then = near(rule.name), steps(drive, lasting(START, STEPS))
    limit, for_s = rule.limit(settings), rule.duration_s(settings)
    changed = [replace(rule, threshold=2.0 * limit)]
    if for_s:
        changed += [replace(rule, for_s=2.0 * for_s), replace(rule, for_s=0.5 * for_s)]
    if rule.comparison == ">" or limit != 1.0:  # a state has no value between 0 and 1
        changed.append(replace(rule, threshold=0.5 * limit))
    for other in changed:
        fired = [fired_after_s(evaluated(rows, settings, [other]), rule.name) for rows in (below, then)]
        assert fired != [None, FIRES_AFTER_S[rule.name]], other


def test_growth_of_a_process_is_a_share_of_the_hosts_memory() -> None:
    rows: list[Row] = [("leak_bytes_per_hour", ("process",), 1.1), ("host_memory_total_bytes", (), 100.0)]
    assert fired_after_s(evaluated([rows] * 80, Settings()), "MemoryGrowing") == 300 - START * STEP_S
    assert fired_after_s(evaluated([rows[:1]] * 80, Settings()), "MemoryGrowing") is None


def test_every_step_is_late_by_itself_after_a_start() -> None:
    history, evaluator = new_history(), Evaluator(Settings())
    rows = steps(DRIVES["GpuStalled"], lasting(0, 80))
    for step, row in enumerate(rows[:2]):
        history.record(step * 15.0, 0.0, row)
        assert evaluator.step(history) == []
    assert Evaluator(Settings()).step(history) == []


@pytest.mark.slow
@pytest.mark.skipif(PROMTOOL is None, reason="no Prometheus on this machine")
@pytest.mark.parametrize("pattern", [lasting(START, START + 25), with_gap(0, 45, 46)], ids=["lasting", "gap"])
def test_prometheus_has_the_same_states(pattern: list[bool | None], tmp_path: Path) -> None:
    """All courses of time are compared by benchmarks/alerts.py."""
    cases = {name: steps(drive, pattern) for name, drive in DRIVES.items()}
    assert PROMTOOL is not None
    theirs = prometheus_states(PROMTOOL, tmp_path, cases)
    shown = {key[0] for name in cases for states in theirs[name] for key in states}
    assert len(shown) >= len(RULES) - 1  # a signal that is there from the start on has not changed
    for name, rows in cases.items():
        assert differences(evaluated(rows, Settings()), theirs[name]) == [], name


@pytest.mark.skipif(PROMTOOL is None, reason="no Prometheus on this machine")
def test_a_difference_of_the_states_is_found(tmp_path: Path) -> None:
    rows = steps(DRIVES["GpuBusy"], lasting(START, 80))
    assert PROMTOOL is not None
    theirs = prometheus_states(PROMTOOL, tmp_path, {"busy": rows})["busy"]
    late = evaluated(rows, Settings(alert_gpu_for_s=240))
    assert differences(late, theirs) == [(step, "AutoglmGpuBusy") for step in range(START + 12, START + 16)]


def test_there_are_24_courses_of_time() -> None:
    courses = patterns()
    assert len({tuple(course) for course in courses}) == 24


def test_the_runbook_has_a_section_for_each_rule() -> None:
    headings = re.findall(r"^## (\w+)$", RUNBOOK.read_text(), re.MULTILINE)
    assert [heading for heading in headings if heading in DRIVES] == [rule.name for rule in RULES]
    assert {rule.runbook for rule in RULES} == {f"docs/operating.md#{name.lower()}" for name in DRIVES}
