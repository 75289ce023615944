"""The benchmark of instructions: its arithmetic, its bars, its driver, and the ratio to a peer."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import harness, instructions, instructions_driver
from benchmarks.callgrind import NO_VALGRIND, ROOT
from benchmarks.instructions_driver import ATTACHMENTS, LOADS, REQUESTS
from benchmarks.instructions_peers import FIELDS

pytestmark = pytest.mark.slow

PEER = "asgi-ratelimit"
FEW = "steady, 50 callers"
WHOLE: instructions.Figures = {
    "bare": {FEW: 10_000},
    "address": {
        "steady": 50_000,
        "refused": 50_000,
        "100,000 in turn": 60_000,
        "100,000 at random": 52_000,
    },
    PEER: {"steady": 40_000, "refused": 100_000},
    PEER + FIELDS: {"steady": 60_000},
}
TIMED = {"added_us": 10.0, "100,000 in turn": 1.7, "100,000 at random": 1.5, "memory_mb": 46.0}


def test_counts_are_those_between_the_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = [1, 30 * REQUESTS, 2, 40 * REQUESTS]
    monkeypatch.setattr(instructions, "profiles", lambda *args, **kwargs: counts)
    assert instructions.count(ROOT, "address", ["fresh", "full"]) == {"fresh": 30, "steady": 40}
    with pytest.raises(RuntimeError, match="address: 4 profiles, 8 expected"):
        instructions.count(ROOT, "address", ["fresh", "full", "many"])


def test_bare_app_is_subtracted_from_admitted_requests() -> None:
    assert instructions.added(WHOLE, "address", "steady") == 40_000
    assert instructions.added(WHOLE, "address", "refused") == 50_000


def test_bars_are_those_of_the_rows_that_were_measured() -> None:
    found = {"instructions": WHOLE, "seconds": {"address": TIMED}}
    bars = {bar.text: (bar.value, bar.verdict) for bar in instructions.bars(found)}
    assert bars == {
        "address, steady: instructions added": (40_000, "met"),
        "address, steady: over asgi-ratelimit with fields": (0.8, "met"),
        "address, refused: over asgi-ratelimit": (0.5, "met"),
        "address, 100,000 in turn: instructions over 1,000 callers": (1.25, "MISSED"),
        "address, 100,000 at random: instructions over 1,000 callers": (1.05, "met"),
        "address, 100,000 in turn: time over 1,000 callers": (1.7, "MISSED"),
        "address, 100,000 at random: time over 1,000 callers": (1.5, "met"),
        "address: MB of 100,000 callers": (46.0, "MISSED"),
    }
    fewer = {"instructions": {"bare": {FEW: 1.0}, "none": {"fresh": 2.0}}, "seconds": {}}
    assert not list(instructions.bars(fewer))


def test_table_shows_the_ratio_to_the_other_commit() -> None:
    now: instructions.Figures = {"bare": {FEW: 10}, "none": {"fresh": 120, "steady": 210}}
    before: instructions.Figures = {"bare": {FEW: 10}, "none": {"fresh": 110, "steady": 210}}
    lines = instructions.table(now, before).splitlines()
    assert lines[1].split() == ["none,", "fresh", "110", "100", "1.100"]
    assert instructions.table(now, None).splitlines()[2].split() == ["none,", "steady", "200"]


def test_run_without_valgrind_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(sys, "argv", ["instructions"])
    assert instructions.main() == 1
    assert "valgrind is not installed" in capsys.readouterr().err


@pytest.mark.parametrize("app", [*ATTACHMENTS, *instructions.PEER_ROWS])
def test_driver_gets_the_status_of_each_load(app: str, tmp_path: Path) -> None:
    """A status other than the one of the load ends the driver with an error."""
    loads = [load for load in instructions.FEWER_LOADS.get(app, LOADS) if load not in {"full", "many"}]
    done = subprocess.run(
        [sys.executable, "-P", str(instructions.DRIVER), app, *loads],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_many_callers_are_timed_beside_few(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"MANY": 400, "CALLERS": 20, "BLOCK": 40, "ROUNDS": 2}.items():
        monkeypatch.setattr(instructions_driver, name, value)
    figures = instructions_driver.seconds("header")
    assert figures.keys() == TIMED.keys()
    assert min(figures["memory_mb"], figures["100,000 in turn"]) > 0.0


@pytest.mark.skipif(shutil.which("valgrind") is None, reason=NO_VALGRIND)
def test_instructions_over_a_peer_do_not_grow() -> None:
    """The record is of another machine, so both are counted here; they differ by Python and its packages."""
    kept = json.loads((harness.RESULTS / "instructions.json").read_text())["instructions"]
    peer = PEER + FIELDS
    now = {app: instructions.count(ROOT, app, ["few"]) for app in ("bare", "address", "identify", peer)}
    for app in ("address", "identify"):
        ratio, was = (
            instructions.added(each, app, FEW) / instructions.added(each, peer, FEW) for each in (now, kept)
        )
        assert ratio <= 1.05 * was, app
