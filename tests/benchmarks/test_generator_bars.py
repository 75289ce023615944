"""The benchmark of the generator: its bars, its table, and one short run of ours against the real server."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from typing import Any

import pytest

from benchmarks import generator
from benchmarks.generators import peers

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("load")]

ANSWERS, SECONDS = 1000, 2.0


def figures(rps: float, per_core_rps: float, **more: Any) -> dict[str, Any]:
    return {"answers": ANSWERS, "elapsed_s": ANSWERS / rps, "cpu_s": ANSWERS / per_core_rps, **more}


def seen(**changes: Any) -> dict[str, list[dict[str, Any]]]:
    """A run that just holds every bar."""
    return {
        "ours": [figures(10_000.0, 10_000.0, failed=0, lag_p99_s=0.05)],
        "locust": [figures(1.0, 2000.0)],
        "aiohttp": [figures(1.0, 3333.0)],
        "wrk": [figures(20_000.0, 1e6)],
        "paced": [figures(5000.0, 20_000.0, failed=0, lag_p99_s=0.002)],
        "idle": [{"lag_p99_s": 0.0001}],
    } | changes


def test_a_run_that_holds_every_bar() -> None:
    bars = generator.bars(seen(), 0.6)
    assert len(bars) == 7
    assert [bar.verdict for bar in bars] == ["met"] * 7


@pytest.mark.parametrize(
    ("change", "missed"),
    [
        ({"locust": [figures(1.0, 2001.0)]}, "over Locust"),
        ({"aiohttp": [figures(1.0, 3400.0)]}, "over aiohttp"),
        ({"wrk": [figures(20_100.0, 1.0)]}, "over that of wrk"),
        ({"paced": [figures(5000.0, 19_000.0, failed=0, lag_p99_s=0.001)]}, "share of a core"),
        ({"paced": [figures(5000.0, 30_000.0, failed=0, lag_p99_s=0.003)]}, "lag at"),
        ({"paced": [figures(5000.0, 30_000.0, failed=1, lag_p99_s=0.001)]}, "without an answer"),
    ],
)
def test_every_bar_can_be_missed(change: dict[str, Any], missed: str) -> None:
    (bar,) = (bar for bar in generator.bars(seen(**change), 0.5) if not bar.met)
    assert missed in bar.text
    assert bar.verdict == "MISSED"


def test_lag_equal_to_that_of_an_idle_loop_is_ignored() -> None:
    slow = seen(paced=[figures(5000.0, 30_000.0, failed=0, lag_p99_s=0.003)], idle=[{"lag_p99_s": 0.0015}])
    (bar,) = (bar for bar in generator.bars(slow, 0.5) if not bar.met)
    assert "noisy" in bar.verdict
    assert [bar.met for bar in generator.bars(seen(), 0.7)].count(False) == 1


def test_a_ratio_is_the_median_of_the_rounds() -> None:
    rounds = [figures(rate, rate) for rate in (1000.0, 9000.0, 5000.0)]
    figures_found = {"ours": rounds, "locust": [figures(1000.0, 500.0)] * 3}
    assert generator.ratio(figures_found, "locust", per_core=False) == 5.0
    assert generator.ratio(figures_found, "locust", per_core=True) == 10.0


def test_missing_package_is_named_and_has_no_bar() -> None:
    peers_by_name = generator.rows(None) | {"locust": peers.Peer("Locust FastHttpUser", None)}
    there = {name: each for name, each in seen().items() if name != "locust"}
    lines = generator.table(peers_by_name, there)
    assert ["Locust" in line for line in lines if "not installed" in line] == [True]
    assert len(generator.bars(there, 0.5)) == 6
    kept = generator.record(peers_by_name, there, generator.bars(there, 0.5))
    assert "Locust FastHttpUser" in kept["not_installed"]
    assert kept["rates"]["ours"] == {"rps": 10_000.0, "per_core_rps": 10_000.0}
    assert kept["ours_over_it_per_core"]["aiohttp"] == pytest.approx(10_000 / 3333)
    assert json.dumps(kept)


@pytest.mark.parametrize("program", [peers.AIOHTTP, peers.LOCUST])
def test_the_programs_of_the_peers_are_python(program: str) -> None:
    compile(program, "peer", "exec")


def test_other_output_of_a_program_is_ignored() -> None:
    arguments_given = [sys.executable, "-c", "print('[noise'); print('{\"answers\": 3}'); print('bye')"]
    assert peers.last_line(arguments_given, 1.0) == {"answers": 3}
    with pytest.raises(subprocess.CalledProcessError):
        peers.last_line([sys.executable, "-c", "raise SystemExit(1)"], 1.0)


@pytest.mark.server
@pytest.mark.parametrize("kind", ["ceiling", "paced"])
def test_a_short_run_of_ours(kind: str) -> None:
    run = peers.ours(kind).run
    assert run is not None
    with generator.answerer() as port:
        figures_found = run(port, 0.2)
    assert figures_found["failed"] == 0
    assert figures_found["answers"] == {"ceiling": 4000, "paced": 1000}[kind]
    assert min(generator.rates(figures_found)) > 0.0
    assert not math.isnan(figures_found["lag_p99_s"])
    assert json.dumps(figures_found)


def test_a_loop_that_sends_nothing_lags_a_little() -> None:
    assert generator.idle(0, 0.05)["lag_p99_s"] > 0.0
    assert generator.histogram_us() > 0.0
