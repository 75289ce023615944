"""The commands ``dashboards`` and ``ports``."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from autoglm_throttle.cli import main


def test_dashboards_are_written_with_the_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "throttle.toml"
    config.write_text("alert_gpu_pct = 92\n")
    folder = tmp_path / "new" / "monitoring"
    arguments = ["--job", "chat", "--runbook", "https://wiki/run", "--config-file", str(config)]
    assert main(["dashboards", str(folder), *arguments]) == 0
    names = ("prometheus-rules.yml", "prometheus.yml", "grafana.json")
    assert capsys.readouterr().out.split() == [str(folder / name) for name in names]
    rules = (folder / "prometheus-rules.yml").read_text()
    assert "> 0.92" in rules
    assert "https://wiki/run#gpubusy" in rules
    assert 'job_name: "chat"' in (folder / "prometheus.yml").read_text()
    assert json.loads((folder / "grafana.json").read_text())["uid"] == "autoglm-throttle"


def test_a_folder_that_cannot_be_written_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert main(["dashboards", str(tmp_path / "file")]) == 1
    assert capsys.readouterr().err == f"dashboards: {tmp_path / 'file'} cannot be written: File exists\n"


def test_ports_are_written_as_targets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "targets.json"
    arguments = ["--first", "9200", "--address", "10.0.0.7", "--instance", "node-7"]
    assert main(["ports", "2", "--file-sd", str(file), *arguments]) == 0
    labels = {"instance": "node-7", "worker": "1"}
    assert json.loads(file.read_text())[1] == {"targets": ["10.0.0.7:9201"], "labels": labels}
    assert main(["ports", "1"]) == 0
    (target,) = json.loads(capsys.readouterr().out)
    assert target["targets"] == ["127.0.0.1:9100"]
    assert target["labels"]["instance"] == socket.gethostname()


def test_ports_that_do_not_exist_are_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ports", "2", "--first", "65535"]) == 1
    assert capsys.readouterr().err == "ports: 2 ports from 65535 on end above 65535\n"
    assert main(["ports", "1", "--file-sd", str(tmp_path)]) == 1
    assert "cannot be written: Is a directory" in capsys.readouterr().err


@pytest.mark.parametrize("number", ["0", "1001", "-1", "two", "1.5", "²"])
def test_a_wrong_number_of_workers_is_named(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main(["ports", "--", number])
    assert error.value.code == 2
    assert f"must be a whole number from 1 to 1000, not {number!r}" in capsys.readouterr().err
