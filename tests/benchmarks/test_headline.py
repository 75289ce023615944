"""The headline experiment: its rows, its plan, its options, and one short run of the real thing."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks import harness, headline
from benchmarks.asgi_rows import App, Scope
from benchmarks.headline_rows import cases, cores, run_case, served
from benchmarks.headline_rows.cases import PATH, PEERS, QUICK, RATES_RPS, ROWS, SHORT, VARIANTS, Case, Scale
from benchmarks.overloaded import CPU_PATH
from tests.store.server import RedisServer
from tests.traffic.asgi_driver import ask

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("load")]

INSTALLED = [row for row in ROWS if row not in PEERS or importlib.util.find_spec(PEERS[row])]
"""The peers belong to the benchmarks alone."""

QUIET = [row for row in INSTALLED if row != "fastapi-limiter"]
"""Its limiter starts a thread that never ends; it runs in servers of the benchmark only."""


def whole(app: App) -> App:
    """The app under a scope as complete as a server's, for a request of priority low."""
    headers = [(b"content-type", b"application/json"), (b"x-priority", b"low")]
    full = {"http_version": "1.1", "query_string": b"", "root_path": "", "scheme": "http"}

    async def outermost(scope: Scope, receive: Any, send: Any) -> None:
        await app({**full, **scope, "headers": headers, "raw_path": scope["path"].encode()}, receive, send)

    return outermost


@pytest.mark.parametrize("row", [row for row in QUIET if row != "redis"])
@pytest.mark.parametrize("variant", VARIANTS)
async def test_every_row_serves_the_same_and_reports_its_cpu(variant: str, row: str) -> None:
    app = served.build(served.ServiceOptions(variant, row))
    answer = await ask(whole(app), "POST", PATH, b"{}")
    assert answer.status == 200
    assert set(answer.json) == {"tokens", "took_s"}
    assert (await ask(app, "GET", CPU_PATH)).json["cpu_s"] > 0.0


async def test_the_rates_of_nominal_are_those_that_the_bars_expect() -> None:
    app = served.build(served.ServiceOptions("nominal", "throttle"))
    answers = await asyncio.gather(*(ask(whole(app), "POST", PATH, b"{}") for _ in range(130)))
    found = Counter(answer.status for answer in answers)
    assert found[200] == pytest.approx(RATES_RPS["low"] * cases.BURST_S, abs=20)
    assert found[429] == 130 - found[200]


def test_plan_has_the_levels_and_mix_of_the_published_run() -> None:
    made = SHORT.plan()
    assert made.names == ("100/s", "1000/s", "3000/s", "5000/s")
    assert [made.segments.count(number) for number in range(4)] == [300, 3000, 9000, 15_000]
    assert made == SHORT.plan()
    held = cases.hold(60.0, 3)
    assert held.plan().ends_s == (3.0, 6.0, 9.0, 69.0)
    assert str(held) == "100, 1000, 3000, 5000 requests/s for 3 s each, the last for 60 s"
    assert str(SHORT) == "100, 1000, 3000, 5000 requests/s for 3 s each"


def test_a_short_form_fits_into_twelve_minutes() -> None:
    starting_s = 2.0
    each_s = SHORT.plan().duration_s + starting_s
    assert SHORT.rounds * len(SHORT.cases) * each_s < 720.0


def test_options_select_the_rows_and_the_record() -> None:
    assert headline.scales(headline.arguments([])) == {"headline": SHORT}
    assert headline.scales(headline.arguments(["--hold", "60"])) == {"headline_hold": cases.hold(60.0, 3)}
    full = headline.scales(headline.arguments(["--full", "--rounds", "2"]))
    assert [scale.rounds for scale in full.values()] == [2, 1]
    assert full["headline_hold"].last_s == 600.0


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--quick", "--write"], "no figures to keep"),
        (["--rounds", "0"], "above 0"),
        (["--hold", "-1"], "above 0"),
        (["--hold", "5", "--full"], "not allowed"),
    ],
)
def test_impossible_options_are_rejected(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        headline.main(argv)
    assert message in capsys.readouterr().err


def test_a_process_runs_on_its_core_for_a_while() -> None:
    if sys.platform == "darwin":
        assert cores.cores() is None
        return
    before = os.sched_getaffinity(0)
    core = min(before)
    with cores.on(core):
        assert os.sched_getaffinity(0) == {core}
    assert os.sched_getaffinity(0) == before
    with cores.on(None):
        assert os.sched_getaffinity(0) == before


def test_kept_record_can_be_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = {"levels": {}, "server_cpu": 0.1, "reasons": {}}
    level: dict[str, Any] = dict.fromkeys(("mean_s", "p50_s", "p95_s", "p99_s"), 0.01)
    tally = {"planned": 100, "served": 100, "limited": 0, "shed": 0, "errors": 0}
    level |= {**tally, "done_ratio": 1.0, "error_ratio": 0.0, "served_rps": 100.0, "goodput_rps": 100.0}
    level["priorities"] = dict.fromkeys(("high", "mid", "low"), tally)
    made["levels"] = dict.fromkeys(("50/s", "200/s"), level)
    monkeypatch.setattr(headline, "run_case", lambda *_: made)
    monkeypatch.setattr(headline, "CHART", tmp_path / "headline.svg")
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    monkeypatch.setattr(headline, "scales", lambda _: {"headline": QUICK})
    assert headline.main(["--write"]) == 0
    kept = json.loads((tmp_path / "headline.json").read_text())
    assert [row["case"] for row in kept["rows"]] == 2 * [case.key for case in QUICK.cases]
    assert kept["published"]["5000/s"]["mean_ms"] == 205
    drawn = (tmp_path / "headline.svg").read_text()
    assert headline.main(["--draw"]) == 0
    assert (tmp_path / "headline.svg").read_text() == drawn
    assert capsys.readouterr().out.startswith("pass;")


@pytest.mark.server
@pytest.mark.parametrize("row", [row for row in ("redis", "fastapi-limiter") if row in INSTALLED])
def test_short_real_run(row: str) -> None:
    scale = Scale((50.0, 100.0), 0.4, 0.4, 1)
    with RedisServer() as redis:
        found = run_case.run_case(Case("headroom", row), scale, redis.url)
    assert set(found["levels"]) == {"50/s", "100/s"}
    for name, planned in (("50/s", 20), ("100/s", 40)):
        level = found["levels"][name]
        assert (level["planned"], level["served"], level["errors"]) == (planned, planned, 0)
        assert 0.0 < level["p50_s"] <= level["p99_s"]
    assert 0.0 < found["server_cpu"] < 1.5
