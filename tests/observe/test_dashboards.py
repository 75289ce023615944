"""The files for Prometheus and Grafana agree with the tables, and with the tools that read them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from autoglm_throttle import Settings
from autoglm_throttle.observe import collector, host
from autoglm_throttle.observe.dashboards import (
    WITHOUT_PANEL,
    dashboard,
    grafana_file,
    panels,
    rules_file,
    scrape_file,
    targets_file,
)
from autoglm_throttle.observe.metric import PREFIX
from autoglm_throttle.observe.metrics import METRICS
from autoglm_throttle.testing import ManualClock
from tests.observe.scraping import GUARDS, HOST, QUOTA, STORE, knowing_all, loaded, with_recent

KEPT = Path(__file__).parents[2] / "examples" / "monitoring"
PROMTOOL = shutil.which("promtool")
BOARD: dict[str, Any] = dashboard()
DRAWN = [panel for panel in BOARD["panels"] if panel["type"] != "row"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("prometheus-rules.yml", rules_file(Settings())),
        ("prometheus.yml", scrape_file("autoglm_throttle")),
        ("grafana.json", grafana_file()),
    ],
)
def test_the_kept_files_are_up_to_date(name: str, text: str) -> None:
    """``autoglm-throttle dashboards examples/monitoring`` writes them."""
    assert (KEPT / name).read_text() == text


def test_each_metric_is_on_a_panel_or_has_a_reason() -> None:
    drawn = {name for panel in panels() for name in panel.metrics}
    names = {spec.name for spec in METRICS}
    assert drawn <= names
    missing = {name.removeprefix(PREFIX) for name in names - drawn}
    assert [name for name in sorted(missing) if not any(part in name for part in WITHOUT_PANEL)] == []
    for part in WITHOUT_PANEL:
        assert any(part in name for name in missing), part


def test_each_panel_can_be_understood() -> None:
    for panel in DRAWN:
        assert panel["title"]
        assert panel["description"].endswith(".")
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["fieldConfig"]["defaults"]["noValue"] == "no data"
        assert panel["datasource"]["uid"] == "${datasource}"
        for target in panel["targets"]:
            assert 'job=~"$job",instance=~"$instance"' in target["expr"]
            assert target["legendFormat"]
            assert re.findall(r"\[(.*?)\]", target["expr"]) in ([], ["$__rate_interval"])
    assert len({panel["title"] for panel in DRAWN}) == len(DRAWN)


def test_identifiers_are_fixed_and_panels_do_not_overlap() -> None:
    assert (BOARD["uid"], BOARD["id"]) == ("autoglm-throttle", None)
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert ids == list(range(1, len(ids) + 1))
    assert [variable["name"] for variable in BOARD["templating"]["list"]] == ["datasource", "job", "instance"]
    grids = [panel["gridPos"] for panel in BOARD["panels"]]
    assert all(grid["x"] + grid["w"] <= 24 for grid in grids)
    for one, other in combinations(grids, 2):
        apart_x = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        apart_y = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert apart_x or apart_y


def test_workers_of_a_host_have_one_instance() -> None:
    targets = json.loads(targets_file("10.0.0.7", range(9100, 9102), "node-7"))
    assert targets == [
        {"targets": ["10.0.0.7:9100"], "labels": {"instance": "node-7", "worker": "0"}},
        {"targets": ["10.0.0.7:9101"], "labels": {"instance": "node-7", "worker": "1"}},
    ]


def test_thresholds_and_runbook_are_those_that_are_given() -> None:
    text = rules_file(Settings(alert_gpu_pct=92, alert_gpu_for_s="5m"), "https://wiki/x")
    assert "> 0.92" in text
    assert "for: 300s" in text
    assert '"https://wiki/x#gpubusy"' in text


@pytest.mark.skipif(PROMTOOL is None, reason="no Prometheus on this machine")
def test_promtool_accepts_rules_configuration_and_expressions(tmp_path: Path) -> None:
    (tmp_path / "prometheus-rules.yml").write_text(rules_file(Settings()))
    (tmp_path / "prometheus.yml").write_text(scrape_file('a "job"'))
    (tmp_path / "targets.json").write_text(targets_file("127.0.0.1", range(9100, 9104), "host"))
    expressions = [target["expr"] for panel in DRAWN for target in panel["targets"]]
    rules = [
        {"record": f"x{number}", "expr": text.replace("$__rate_interval", "1m")}
        for number, text in enumerate(expressions)
    ]
    (tmp_path / "panels.yml").write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    for arguments in (["config", "prometheus.yml"], ["rules", "prometheus-rules.yml", "panels.yml"]):
        command = [str(PROMTOOL), "check", *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(PROMTOOL is None, reason="no Prometheus on this machine")
def test_promtool_accepts_every_metric(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_monitor", lambda: SimpleNamespace(current=lambda: HOST))
    clock = ManualClock()
    throttle = loaded({"clock": clock, "gpu": knowing_all(clock)}, store=STORE, quota=QUOTA, guards=GUARDS)
    throttle.tick()
    with_recent(throttle)
    registry = CollectorRegistry()
    registry.register(collector(throttle))
    command = [str(PROMTOOL), "check", "metrics"]
    done = subprocess.run(command, input=generate_latest(registry), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout + done.stderr == b""
