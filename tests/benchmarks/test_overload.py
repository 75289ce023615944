"""The benchmark of overload: its counting, its rows, and one short run of the real thing."""

from __future__ import annotations

import asyncio
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.traffic.plan import LoadPlan
from autoglm_throttle.traffic.request_log import RequestLog, RequestResult
from autoglm_throttle.traffic.request_source import RequestSource
from autoglm_throttle.traffic.results import Result, RunCost
from autoglm_throttle.types import Priority
from benchmarks import overload, overloaded
from benchmarks.asgi_rows import App
from benchmarks.goodput import GoodputObserver
from tests.traffic.asgi_driver import ask

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("load")]

OFFSETS = [0.5, 1.0, 1.5, 2.0, 2.5, 3.0]
PLAN = LoadPlan(
    offsets=array("d", OFFSETS),
    priorities=bytes([0, 0, 1, 1, 2, 2]),
    segments=array("H", [0] * 6),
    clients=array("I", [0] * 6),
    kinds=array("I", [0] * 6),
    names=("all",),
    ends_s=(4.0,),
)


def observed() -> GoodputObserver:
    return GoodputObserver(PLAN, slo_s=1.0, begin_s=1.0, end_s=3.0)


def test_completion_counts_at_its_time_and_request_at_planned_time() -> None:
    counts = observed()
    counts.note(0, RequestResult.OK, 0.6)
    assert counts.completed_rps(Priority.HIGH) == 0.5
    assert counts.offered_rps() == 0.0
    counts.note(4, RequestResult.OK, 0.7)
    assert counts.completed_rps() == 0.5
    assert counts.offered_rps(Priority.LOW) == 0.5
    assert counts.classes[Priority.LOW].in_time == 1
    counts.note(5, RequestResult.OK, 0.0)
    assert counts.offered_rps() == 0.5


def test_late_response_has_a_latency_and_is_no_completion() -> None:
    counts = observed()
    counts.note(1, RequestResult.OK, 1.001)
    assert counts.completed_rps() == 0.0
    high = counts.classes[Priority.HIGH]
    assert (high.planned, high.in_time, high.response.count) == (1, 0, 1)


@pytest.mark.parametrize("result_kind", RequestResult)
def test_only_rejections_count_as_rejected(result_kind: RequestResult) -> None:
    counts = observed()
    counts.note(2, result_kind, 0.004)
    rejections = {"limited", "shed", "client_error", "server_error"}
    assert counts.classes[Priority.MID].rejected == (result_kind.label in rejections)
    assert counts.rejection.count == (result_kind.label in rejections)
    assert counts.classes[Priority.MID].in_time == result_kind.served


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.sampled_from(list(RequestResult)), st.floats(0.0, 5.0)),
        unique_by=lambda noted: noted[0],
    )
)
def test_completions_and_plans_do_not_exceed_served_and_sent(
    noted: list[tuple[int, RequestResult, float]],
) -> None:
    counts = observed()
    for index, result_kind, response_s in noted:
        counts.note(index, result_kind, response_s)
    inside = [index for index, _, _ in noted if 1.0 <= OFFSETS[index] < 3.0]
    served = sum(result_kind.served for _, result_kind, _ in noted)
    assert counts.offered_rps() * counts.length_s == len(inside)
    assert counts.completed_rps() * counts.length_s <= served
    for one in counts.classes.values():
        assert one.in_time + one.rejected <= one.planned


def done(served: int) -> overload.Run:
    counts = observed()
    for index in (1, 2, 3, 4):
        counts.note(index, RequestResult.OK if index <= served else RequestResult.SHED, 0.25)
    request_log = RequestLog(len(PLAN))
    for index in (4, 5):
        request_log.close(index, RequestResult.SHED, 0.25)
        request_log.record_rejection(index, "queue:slow", None)
    result = Result(RequestSource(PLAN), request_log, RunCost(elapsed_s=3.0))
    return overload.Run(counts, result, 0.25, 0.125)


def test_goodput_is_relative_to_capacity_or_smaller_load() -> None:
    assert overload.figures(done(2), 1.0, instant=False)["goodput"] == 1.0
    assert overload.figures(done(1), 1.0, instant=False)["goodput"] == 0.5
    assert overload.figures(done(2), 50.0, instant=False)["goodput"] == 0.5
    assert overload.figures(done(2), 1.0, instant=True)["goodput"] == 0.5


def test_the_figures_of_a_run() -> None:
    found = overload.figures(done(2), 1.0, instant=False)
    assert found["in_time"] == {"high": 1.0, "mid": 0.5, "low": 0.0}
    assert found["refused"] == 0.5
    assert found["high_p99_s"] == found["refusal_p99_s"] == 0.25
    assert found["reasons"] == {"queue:slow": 2}
    assert (found["server_cpu"], found["client_cpu"]) == (0.25, 0.125)


def test_rounds_are_brought_together_by_medians() -> None:
    rounds: list[dict[str, Any]] = [
        {"goodput": share, "in_time": {"high": share}, "high_p99_s": p99, "reasons": {}}
        for share, p99 in ((0.1, None), (0.9, 0.4), (0.3, 0.2))
    ]
    assert overload.middle(rounds) == {
        "goodput": 0.3,
        "in_time": {"high": 0.3},
        "high_p99_s": pytest.approx(0.3),
    }
    assert overload.middle(rounds[:1])["high_p99_s"] is None


def test_table_has_every_row_and_load_and_marks_late_clients() -> None:
    scale = overload.Scale()
    figures = overload.middle([overload.figures(done(2), 1.0, instant=False)])
    rows = [{"row": row, "load": load, **figures} for row, load in scale.cases()]
    rows[1]["lag_p99_s"] = 0.5
    lines = overload.table(
        {"rows": rows, "capacity_rps": 99.0, "scale": {"capacity_rps": 100.0, "slo_s": 2.0}}
    )
    assert sum("1.000    1.000    0.500    0.000" in line for line in lines) == len(scale.cases())
    assert [line.split(",")[0] for line in lines if line.startswith("load ")] == [
        *("load 1x", "load 2x", "load 5x", "load 10x")
    ]
    assert [line.split("  ")[0] for line in lines if "!" in line] == ["autoglm_throttle, adaptive!"]
    assert "99.0 requests/s" in "\n".join(lines)


INSTALLED = [name for name in overloaded.ROWS if name != "ratelimit"]
"""asgi-ratelimit belongs to the benchmarks alone."""


@pytest.mark.parametrize("row", INSTALLED)
async def test_every_row_serves_and_reports_its_cpu(row: str) -> None:
    app = overloaded.build(overloaded.ServiceOptions(row=row, capacity_rps=2_000.0, slo_s=2.0))
    assert (await ask(app, "POST", "/v1/predict", b"{}")).status == 200
    assert (await ask(app, "GET", overloaded.CPU_PATH)).json["cpu_s"] > 0.0


async def burst(app: App, count: int) -> list[int]:
    answers = await asyncio.gather(*(ask(app, "POST", "/v1/predict", b"{}") for _ in range(count)))
    return [answer.status for answer in answers]


async def test_the_limits_set_by_hand_are_the_right_ones() -> None:
    inside = overloaded.INSIDE
    app = overloaded.build(overloaded.ServiceOptions(row="full", capacity_rps=2_000.0, slo_s=2.0))
    assert (await burst(app, inside + 5)).count(503) == 5
    assert await burst(app, inside) == [200] * inside
    app = overloaded.build(overloaded.ServiceOptions(row="semaphore", capacity_rps=2_000.0, slo_s=2.0))
    assert await burst(app, inside + 5) == [200] * (inside + 5)
    app = overloaded.build(overloaded.ServiceOptions(row="limits", capacity_rps=20.0, slo_s=2.0))
    assert 20 <= (await burst(app, 70)).count(200) <= 40


def test_quick_figures_are_not_kept(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        overload.main(["--quick", "--write"])
    assert "no figures to keep" in capsys.readouterr().err


@pytest.mark.server
def test_short_real_run() -> None:
    scale = overload.Scale(capacity_rps=200.0, slo_s=1.0, warm_s=0.5, window_s=1.0)
    unprotected, control = (overload.run(row, 5.0, scale, seed=1) for row in ("none", "control"))
    for run in (unprotected, control):
        assert run.result.balanced
        assert 0.0 < run.server_cpu < 1.5
        assert run.observed.offered_rps() == pytest.approx(1000.0, rel=0.2)
    capacity = overload.capacity_rps(scale)
    assert 0.0 < capacity <= 1.2 * 200.0
    assert 0.0 < overload.figures(control, capacity, instant=True)["goodput"] <= 1.2
    assert 0.0 <= overload.figures(unprotected, capacity, instant=False)["goodput"] < 0.9
