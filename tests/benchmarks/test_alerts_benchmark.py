"""The benchmark of alerts and metrics: its record, and a small part of it."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest

from benchmarks import alerts, harness

PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")


def test_the_record_keeps_its_bars() -> None:
    kept: dict[str, Any] = json.loads((harness.RESULTS / "alerts.json").read_text())
    bars = list(alerts.bars(kept))
    assert kept.keys() >= alerts.PARTS.keys()
    assert [str(bar) for bar in bars if not bar.met] == []
    assert [bar.record() for bar in bars] == kept["bars"]


def test_a_query_without_a_series_needs_a_reason() -> None:
    kept: dict[str, Any] = json.loads((harness.RESULTS / "alerts.json").read_text())
    missing = kept["panels"]["missing"]
    for name in alerts.WITHOUT_SERIES:
        if not name.startswith("host_"):  # as the machine is
            assert any(f"${name}" in query for _, query in missing), name
    missing.append(["Tier", "max by (tier) ($tier) == 1"])
    (bar,) = alerts.bars({"panels": kept["panels"]})
    assert bar.value == 1.0
    assert not bar.met


def test_one_day_of_noise_and_a_step() -> None:
    found = alerts.anomalies(days=1, count=1)
    assert found["false_a_day"]["0.0"] == 0.0
    assert found["found"]["0.0"] == 1


def test_a_step_of_the_evaluator_takes_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alerts, "HISTORY_STEPS", 20)
    found = alerts.step_ms(rounds=2, each=2)
    assert 0.0 < found["least"] <= found["most"]


@pytest.mark.slow
@pytest.mark.skipif(PROMTOOL is None, reason="no Prometheus on this machine")
def test_states_agree_on_two_courses() -> None:
    assert PROMTOOL is not None
    found = alerts.states(PROMTOOL, 2)
    assert found["cases"] == 2 * found["rules"]
    assert found["differences"] == {}
    assert found["shown"] > 500


@pytest.mark.slow
@pytest.mark.xdist_group("load")
@pytest.mark.skipif(PROMETHEUS is None, reason="no Prometheus on this machine")
def test_prometheus_counts_the_requests_of_all_workers() -> None:
    assert PROMETHEUS is not None
    found = alerts.totals(PROMETHEUS, rate_rps=50.0, length_s=2.0, scrape_s=1)
    assert found["sent"] == found["counted"] == 100
    assert found["rule_errors"] == []
