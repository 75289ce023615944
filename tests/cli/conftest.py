from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from autoglm_throttle.cli import doctor_redis, main
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
