"""The benchmark of a replayed trace: its arithmetic, and a small run of the whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoglm_throttle.traffic.request_log import RequestLog, RequestResult
from autoglm_throttle.traffic.trace import load_azure_llm
from benchmarks import replay

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("load")]


def test_the_made_up_trace_is_of_the_public_form(tmp_path: Path) -> None:
    trace = load_azure_llm(replay.made_up(tmp_path / "t.csv", 1))
    assert trace.malformed == 0
    assert 4.5 < len(trace.items) / trace.duration_s < 6.5
    assert all(2 <= item.context_tokens <= 14_050 for item in trace.items)
    assert all(7 <= item.generated_tokens <= 1_000 for item in trace.items)


def test_decisions_are_counted_with_their_reasons() -> None:
    request_log = RequestLog(4)
    request_log.close(0, RequestResult.OK, 0.1)
    for index in (1, 2):
        request_log.close(index, RequestResult.LIMITED, 0.1)
        request_log.record_rejection(index, "user", 1.0)
    request_log.skip(3)
    assert replay.decisions(request_log) == {"limited user": 2, "ok": 1}


def test_lags_are_exact() -> None:
    request_log = RequestLog(201)
    for index in range(200):
        request_log.lag_s[index] = (index + 1) / 1024.0
    assert replay.lags(request_log) == (199 / 1024.0, 200 / 1024.0)


@pytest.mark.server
@pytest.mark.untraced
def test_small_run_counts_everything_and_is_reproducible(tmp_path: Path) -> None:
    path = replay.made_up(tmp_path / "t.csv", 1)
    rows, bars = replay.measure(path, 60.0, 0, 40.0)
    assert rows["http"]["planned"] == rows["http"]["accounted"] > 100
    assert sum(rows["http"]["decisions"].values()) == rows["http"]["planned"]
    assert rows["control"]["decisions"] == {"ok": rows["control"]["planned"]}
    assert bars[0].met
    assert bars[2].met
