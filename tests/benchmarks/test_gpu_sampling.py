"""The benchmark of sampling: its counting, its bars, and one short run of the real thing."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import gpu_sampling, harness, request_latency
from tests.fake_nvml.build import COMPILER

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("load")]

FIGURES = ("p50_ms", "p99_ms", "p999_ms")


def measurements(*values: float) -> list[dict[str, float]]:
    return [dict.fromkeys(FIGURES, value) for value in values]


def found(again: tuple[float, float], calm: tuple[float, float | None], hang: float) -> dict[str, Any]:
    """A record with these additions to p99, and how far off they may be."""
    rows = {"again": again, "calm": calm, "hang": (hang, 0.1)}
    return {
        "rows": {
            name: {"adds": {"p99_ms": {"median": median, "give": median_error}}}
            for name, (median, median_error) in rows.items()
        }
    }


@given(st.lists(st.floats(0.0, 1e3), min_size=1), st.floats(0.0, 1.0))
def test_percentile_has_its_share_of_values_at_or_below(values: list[float], share: float) -> None:
    ordered = sorted(values)
    value = request_latency.percentile(ordered, share)
    assert value in ordered
    assert sum(one <= value for one in ordered) >= share * len(ordered) - 1e-9
    assert sum(one < value for one in ordered) <= share * len(ordered) + 1e-9


def test_cost_of_a_row_is_reported_per_round() -> None:
    added = request_latency.adds(measurements(1.5, 9.0, 3.5, 4.5, 5.5), measurements(1.0, 2.0, 3.0, 4.0, 5.0))
    assert added["p99_ms"] == {"median": 0.5, "give": 0.0}
    assert request_latency.adds(measurements(1.0), ()) == {}


def test_error_of_a_median_follows_from_its_quartiles() -> None:
    assert request_latency.median_error([0.0, 1.0, 2.0, 3.0, 4.0]) == pytest.approx(1.57 * 2.0 / math.sqrt(5))
    assert request_latency.median_error([0.0, 1.0, 2.0, 3.0]) is None


@pytest.mark.parametrize(
    ("record", "verdicts"),
    [
        (found((0.0, 0.1), (0.1, 0.2), 4.9), ["met", "met"]),
        (found((0.0, 0.1), (0.3, 0.2), 5.1), ["MISSED", "MISSED"]),
        (found((0.2, 0.1), (0.3, 0.2), 0.0), ["not judged, noisy machine", "met"]),
        (found((0.0, 0.1), (0.0, None), 0.0), ["MISSED", "met"]),
    ],
)
def test_slower_row_misses_its_bar_where_the_control_is_calm(
    record: dict[str, Any], verdicts: list[str]
) -> None:
    assert [bar.verdict for bar in request_latency.bars(record)] == verdicts


def test_the_order_of_the_rows_rotates() -> None:
    requested: list[str] = []

    class Stub:
        def __init__(self, name: str) -> None:
            self._name = name
            self.client = self

        def measure_for(self, seconds: float) -> dict[str, float]:
            requested.append(self._name)
            return {"p50_ms": seconds}

    services: Any = {name: Stub(name) for name in "abc"}
    seen = request_latency.rounds(services, request_latency.Scale(rounds=3, turn_s=0.5))
    assert "".join(requested) == "abcbcacab"
    assert seen["b"] == [{"p50_ms": 0.5}] * 3


@pytest.mark.server
@pytest.mark.skipif(COMPILER is None, reason="no C compiler (cc) to build the fake NVIDIA library with")
def test_short_run_prints_and_keeps_everything(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    argv = ("--rounds", "5", "--turns", "1", "--turn-s", "0.1", "--write")
    monkeypatch.setattr(sys, "argv", ["gpu_sampling", *argv])
    gpu_sampling.main()
    kept = json.loads((tmp_path / "gpu_sampling.json").read_text())
    parts = kept["without_file"]["cpu_least_ms"], kept["observe"]["cpu_least_ms"]
    assert 0.0 < kept["own_cpu_least_ms"] < kept["sample"]["cpu_least_ms"] < kept["sample"]["wall_most_ms"]
    assert all(0.0 < part < kept["sample"]["cpu_ms"] for part in parts)
    assert len(kept["bars"]) == 3
    requests = kept["requests"]
    assert set(requests["rows"]) == set(request_latency.ROWS)
    assert all(row["requests"] > 10 for row in requests["rows"].values())
    ends = requests["ends"]
    assert [ends[name]["sources"] for name in ends] == [[], [], ["reading"], ["reading"], ["hanging"]]
    assert [ends[name]["judged"] for name in ends] == [0, 0, 8, 8, 8]
    assert "±" in capsys.readouterr().out
