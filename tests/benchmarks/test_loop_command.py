"""The benchmark as a command: its record, and equal bytes for equal seeds."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import closed_loop, harness
from benchmarks.loop import robust, study
from benchmarks.loop.scenarios import SCENARIOS

pytestmark = pytest.mark.slow

FEW = ("--scenarios", "steady_0.5x,oom_tight_3x", "--seeds", "1", "--policies", "none,codel")


def command(monkeypatch: pytest.MonkeyPatch, *argv: str) -> int:
    monkeypatch.setattr(sys, "argv", ["closed_loop", *argv])
    return closed_loop.main()


def test_second_run_finds_the_kept_figures(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    assert command(monkeypatch, *FEW, "--write") == 0
    kept = json.loads((tmp_path / "closed_loop.json").read_text())
    assert kept["sha256"] == closed_loop.digest(kept["figures"])
    assert set(kept["figures"]["medians"]["steady_0.5x"]) == {"oracle", "none", "codel"}
    assert {path.name for path in tmp_path.glob("*.svg")} == {
        "closed_loop_calm.svg",
        "closed_loop_memory.svg",
    }

    assert command(monkeypatch, *FEW, "--check") == 0
    assert "the figures are those that were kept" in capsys.readouterr().out
    assert command(monkeypatch, "--scenarios", "steady_0.5x", *FEW[2:], "--check") == 1
    assert "other figures than those kept" in capsys.readouterr().out


def test_random_services_are_kept_with_their_distribution(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    argv = ("--robust", "2", "--first", "173")
    assert command(monkeypatch, *argv, "--write") == 0
    kept = json.loads((tmp_path / "robust.json").read_text())
    figures = kept["figures"]
    assert kept["sha256"] == closed_loop.digest(figures)
    assert (figures["first"], figures["services"]) == (173, 2)
    assert "largest batch" in figures["drawn"]
    assert "judged on the numbers from 100 on" in figures["judged"]
    assert set(figures["doors"]) == {"gradient", "concurrency", "adaptive"}
    assert set(figures["doors"]["concurrency"]["worst"]) == {"robust_173", "robust_174"}
    assert figures["doors"]["concurrency"]["within"] in {1, 2}
    assert (
        f"concurrency: {figures['doors']['concurrency']['within']} of 2 services" in capsys.readouterr().out
    )

    assert command(monkeypatch, *argv, "--check") == 0
    assert command(monkeypatch, "--robust", "1", "--first", "174", "--check") == 1


def test_first_service_was_not_used_to_develop_the_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["closed_loop", "--robust", "1"])
    assert closed_loop.arguments().first == robust.EVALUATED_FROM == 100


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--scenarios", "step_3x"), "step_3x is not one of steady_0.5x"),
        (("--policies", "concurrency,sluice"), "sluice is not one of oracle"),
        (("--set", "min_share"), "min_share is not a name, = and a number"),
    ],
)
def test_unknown_names_are_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], message: str
) -> None:
    with pytest.raises(SystemExit):
        command(monkeypatch, *argv)
    assert message in capsys.readouterr().err


def test_settings_reach_the_throttle() -> None:
    scenario = SCENARIOS["oom_tight_3x"]
    limiters = (("plain", "concurrency", ()), ("low share", "concurrency", (("min_share", 0.2),)))
    figures = study.work(study.Task(scenario, 1, limiters)).figures
    assert set(figures) == {"oracle", "plain", "low share"}
    assert (figures["low share"].low or 0.0) > (figures["plain"].low or 0.0)
