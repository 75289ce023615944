from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from autoglm_throttle.cli import doctor_redis, main
from tests.cli.configured import SECRET, TOML, WRONG, Run
from tests.cli.doctor_results import PASSWORD, Doctor


@pytest.fixture
def clean_env(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AUTOGLM_THROTTLE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AUTOGLM_THROTTLE_GPU", "none")


@pytest.fixture
def doctor(
    clean_env: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    redis_prefix: str,
    tmp_path: Path,
) -> Doctor:
    file = tmp_path / "patient.toml"
    file.write_text("redis_read_s = 20\n")
    # A busy machine is no distant server.
    patient = {"REDIS_DEADLINE_S": "10", "CONFIG_FILE": str(file)}
    monkeypatch.setattr(doctor_redis, "TOTAL_TIMEOUT_S", 60.0)

    def run(**environ: str) -> tuple[int, list[dict[str, Any]]]:
        for name, value in ({"REDIS_PREFIX": redis_prefix} | patient | environ).items():
            monkeypatch.setenv("AUTOGLM_THROTTLE_" + name, value)
        status = main(["doctor", "--format", "json"])
        out, err = capsys.readouterr()
        assert PASSWORD not in out + err
        assert err == ""
        document = json.loads(out)
        assert document["ok"] is (status == 0)
        return status, [
            finding for finding in document["findings"] if finding["part"] not in {"gpu", "limit"}
        ]

    return run


@pytest.fixture
def configured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No variables of the machine, in a folder with files of settings."""
    for name in list(os.environ):
        if name.upper().startswith("AUTOGLM_THROTTLE_") or name == "WEB_CONCURRENCY":
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "throttle.toml").write_text(TOML)
    (tmp_path / "wrong.toml").write_text(WRONG)
    (tmp_path / "adaptive.toml").write_text('latency_budget = "50%"\n' + TOML)
    (tmp_path / "shared.toml").write_text("redis_in_flight = 4\nfleet_lease_s = '2s'\nrefused_cache = 0\n")
    (tmp_path / "quotas.toml").write_text('[resource_policy]\ncompute_priority = "high"\n')
    (tmp_path / "slow.toml").write_text('redis_read_s = "20ms"\n')


@pytest.fixture
def run(configured: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*argv: str, stdin: str = "", **environ: str) -> tuple[int, str]:
        for name, value in environ.items():
            monkeypatch.setenv("AUTOGLM_THROTTLE_" + name, value)
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        status = main(argv)
        out, err = capsys.readouterr()
        assert SECRET not in out + err
        return status, out + err

    return call
