"""``doctor`` reports whether the objective of the concurrency limit is set."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from autoglm_throttle.cli import main

Findings = Callable[..., list[tuple[str, str, str, float | None]]]


@pytest.fixture
def findings(
    clean_env: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Findings:
    def run(**environ: str) -> list[tuple[str, str, str, float | None]]:
        for name, value in environ.items():
            monkeypatch.setenv("AUTOGLM_THROTTLE_" + name, value)
        assert main(["doctor", "--format", "json"]) == 0
        document = json.loads(capsys.readouterr().out)
        return [
            (finding["item"], finding["level"], finding["message"] + finding["hint"], finding["value"])
            for finding in document["findings"]
            if finding["part"] == "limit"
        ]

    return run


@pytest.mark.parametrize("policy", ["adaptive", "concurrency"])
def test_learned_objective_is_a_warning_with_a_remedy(findings: Findings, policy: str) -> None:
    ((item, level, text, value),) = findings(POLICY=policy)
    assert (item, level, value) == ("objective", "warn", None)
    assert "learns its objective" in text
    assert "set SLO_S" in text


def test_set_objective_is_reported(findings: Findings) -> None:
    ((item, level, text, value),) = findings(SLO_S="750ms")
    assert (item, level, value) == ("objective", "ok", 0.75)
    assert "within 0.75 s" in text


@pytest.mark.parametrize("policy", ["tiers", "fixed"])
def test_objective_is_left_out_where_nothing_aims_at_it(findings: Findings, policy: str) -> None:
    assert findings(POLICY=policy) == []
