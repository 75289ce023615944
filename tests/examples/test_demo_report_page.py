"""The page that remains of a demonstration."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.request_log import RequestLog, RequestResult
from autoglm_throttle.traffic.results import Result, RunCost
from autoglm_throttle.types import Policy
from examples.demo import report_page, scenario
from examples.demo.command import check_writable
from tests.traffic.page.drawn_page import shown
from tests.traffic.test_trace import synthetic, written

STATE = {
    "factor": 0.4,
    "measure": "GPU",
    "utilization_pct": 97.0,
    "power_w": 512.0,
    "concurrency": {"in_flight": 32, "waiting": {"high": 0, "mid": 3, "low": 9}},
}


def played(of: scenario.Scenario, ending: RequestResult = RequestResult.OK) -> Result:
    """A result in which every request ended alike."""
    sheet = RequestLog(len(of.plan))
    for index in range(len(sheet)):
        sheet.lag_s[index] = 0.001
        sheet.service_s[index] = 0.02
        sheet.close(index, ending, 0.02)
    looks = tuple(report_page.page_sample(STATE, 0.5 * turn) for turn in range(4))
    return Result(of.load, sheet, RunCost(elapsed_s=of.length_s), watched=looks)


def texts(page: str, path: str) -> list[str]:
    return ["".join(element.itertext()) for element in shown(page).iterfind(path)]


def test_throttle_state_becomes_a_sample() -> None:
    assert report_page.page_sample(STATE, 1.5) == {
        "t_s": 1.5,
        "factor_ratio": 0.4,
        "gpu_utilization_ratio": 0.97,
        "gpu_power_w": 512.0,
        "inflight": 32.0,
        "waiting": 12.0,
    }
    unknown = STATE | dict.fromkeys(("utilization_pct", "power_w", "concurrency"))
    assert report_page.page_sample(unknown, 1.5) == {"t_s": 1.5, "factor_ratio": 0.4}


def test_unwritable_report_path_is_reported_before_the_run(tmp_path: Path) -> None:
    check_writable(tmp_path / "new.html")
    (tmp_path / "old.html").touch()
    check_writable(tmp_path / "old.html")
    for path in (tmp_path, tmp_path / "nowhere" / "new.html"):
        with pytest.raises(TrafficError, match=r"cannot be written: name another file with --report"):
            check_writable(path)


def test_page_shows_the_scenario_the_factor_and_the_gpu() -> None:
    short = scenario.phases(6.0)
    page = report_page.page(short, Policy.TIERS, played(short), ["All was well."], [])
    assert texts(page, "body/main/header/h1") == [f"Policy tiers: {short.title}"]
    said = texts(page, "body/main/header/p")[0]
    assert said.startswith("calm 86/s for 0.72 s, 0.86x 146/s for 0.9 s, ")
    assert said.endswith("arrivals uniform; open loop")
    assert texts(page, "body/main/section/p") == ["Passedall objectives hold"]
    assert texts(page, "body/main/p") == ["All was well."]
    titles = texts(page, ".//figure/figcaption/h3")
    assert {"Throttle and GPU", "GPU power", "Requests in the service"} < set(titles)
    assert "Factor on the rates 40 %, GPU utilization 97 %." in texts(page, ".//figure/figcaption/p")


def test_problems_come_first() -> None:
    short = scenario.phases(6.0)
    failed = report_page.page(short, Policy.FIXED, played(short, RequestResult.TIMEOUT), [], [])
    assert texts(failed, "body/main/section/p") == [
        "Faileddone>=100%, error<=0%; 0 of 1944 requests succeeded (1944 x timeout): "
        "lower the rate, or raise the timeout"
    ]
    lost = report_page.page(short, Policy.FIXED, played(short), [], ["the process of the service ended"])
    assert texts(lost, "body/main/section/p") == ["Not validthe process of the service ended"]


def test_a_trace_is_named_as_such(tmp_path: Path) -> None:
    film = scenario.traced(written(tmp_path / "made.csv", synthetic()), 30.0, None)
    result = replace(played(film), watched=())
    page = report_page.page(film, Policy.ADAPTIVE, result, [], [])
    assert texts(page, "body/main/header/p")[0].endswith("arrivals of the trace; open loop")
    assert "Throttle and GPU" not in texts(page, ".//figure/figcaption/h3")
