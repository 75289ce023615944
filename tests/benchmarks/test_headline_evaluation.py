"""The judgement of the headline experiment: made-up rounds in, verdicts, bars, table and picture out."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks.headline_rows import cases, evaluation
from benchmarks.headline_rows.cases import CASES, CONTROL, FASTAPI, HOLD_CASES, RAW_OURS, SHORT, Case, Scale
from benchmarks.headline_rows.chart import COLOURS, draw_chart
from benchmarks.headline_rows.table import table
from benchmarks.shared.bars import NOISY

pytestmark = pytest.mark.slow

RATES = {"high": 0.1, "mid": 0.3, "low": 0.6}


def counts(planned: int, *, rejected: int = 0, errors: int = 0) -> dict[str, int]:
    served = planned - rejected - errors
    return {"planned": planned, "served": served, "limited": 0, "shed": rejected, "errors": errors}


def level(name: str, p99_s: float | None = 0.05, rejected: int = 0, errors: int = 0) -> dict[str, Any]:
    planned = 3 * int(name.removesuffix("/s"))
    whole = counts(planned, rejected=rejected, errors=errors)
    return {
        **whole,
        **dict.fromkeys(("mean_s", "p50_s", "p95_s"), 0.02),
        "p99_s": p99_s,
        "done_ratio": 1.0 - errors / planned,
        "error_ratio": errors / planned,
        "served_rps": whole["served"] / 3.0,
        "goodput_rps": whole["served"] / 3.0,
        "priorities": {priority: counts(round(share * planned)) for priority, share in RATES.items()},
    }


def nominal(name: str) -> dict[str, Any]:
    made = level(name)
    for priority, rate_rps in cases.RATES_RPS.items():
        planned = made["priorities"][priority]["planned"]
        made["priorities"][priority] = counts(planned, rejected=max(0, round(planned - 3 * rate_rps)))
    return made


def row(case: Case) -> dict[str, Any]:
    make = nominal if case.variant == "nominal" else level
    levels = {name: make(name) for name in SHORT.names}
    if case.key in {"pressure/bare", "pressure/fastapi"}:
        levels["5000/s"] = level("5000/s", p99_s=2.0)
    return {"levels": levels, "server_cpu": 0.5}


def rounds(count: int = 3) -> list[dict[str, Any]]:
    return [{case.key: row(case) for case in CASES} for _ in range(count)]


def slow(one: dict[str, Any], key: str, name: str = "5000/s") -> None:
    one[key]["levels"][name]["p99_s"] = 0.9


def missed(found: Sequence[dict[str, Any]]) -> list[str]:
    return [bar.text for bar in evaluation.bars(found) if not bar.met]


def test_good_rounds_pass_and_meet_every_bar() -> None:
    found = evaluation.rows(rounds(), SHORT)
    assert evaluation.status(found) == 0
    assert missed(found) == []
    alone = {"pressure/bare", "pressure/fastapi"}
    assert {row["outcome"] for row in found if row["case"] not in alone} == {"pass"}
    assert len(found) == 4 * len(CASES)


def test_a_row_that_fails_where_the_control_passes_fails() -> None:
    seen = rounds()
    for one in seen[:2]:
        slow(one, "headroom/redis")
    found = evaluation.rows(seen, SHORT)
    assert evaluation.status(found) == 1
    assert missed(found) == ["headroom at 5000/s, autoglm_throttle, users on Redis: p99 ms"]


def test_one_bad_round_of_three_is_forgiven() -> None:
    seen = rounds()
    slow(seen[1], "pressure/throttle")
    assert evaluation.status(evaluation.rows(seen, SHORT)) == 0


def test_failing_control_gives_no_verdict_and_no_miss() -> None:
    seen = rounds()
    for one in seen[:2]:
        slow(one, "control")
    for one in seen:
        slow(one, "headroom/throttle")
    found = evaluation.rows(seen, SHORT)
    assert evaluation.status(found) == 3
    verdicts = {bar.text: bar.verdict for bar in evaluation.bars(found) if not bar.met}
    assert verdicts == {"headroom at 5000/s, autoglm_throttle, in memory: p99 ms": NOISY}


def test_rows_of_an_app_count_if_their_own_control_passes() -> None:
    seen = rounds()
    for one in seen:
        for key in ("headroom/fastapi", "headroom/slowapi", "headroom/fastapi-throttle"):
            slow(one, key)
    found = evaluation.rows(seen, SHORT)
    outcomes = {row["case"]: row["outcome"] for row in found if row["level"] == "5000/s"}
    assert {outcomes[f"headroom/{row}"] for row in FASTAPI} == {"inconclusive"}
    assert {outcomes[f"{variant}/{row}"] for variant in ("headroom", "pressure") for row in RAW_OURS} == {
        "pass"
    }
    assert evaluation.status(found) == 0


@pytest.mark.parametrize(
    ("key", "rejected", "outcome"),
    [
        ("headroom/slowapi", 450, "pass"),
        ("headroom/slowapi", 451, "fail"),
        ("pressure/slowapi", 3449, "pass"),
        ("pressure/slowapi", 3451, "fail"),
        ("nominal/throttle", 12_000, "pass"),
    ],
)
def test_a_row_that_rejects_more_than_the_load_asks_for_fails(key: str, rejected: int, outcome: str) -> None:
    """Of 15,000 requests a fifth is above the capacity under pressure, and 3 % more are allowed."""
    seen = rounds()
    for one in seen:
        one[key]["levels"]["5000/s"] = level("5000/s", rejected=rejected)
    found = {(row["case"], row["level"]): row for row in evaluation.rows(seen, SHORT)}
    assert found[key, "5000/s"]["outcome"] == outcome


def test_figures_are_those_of_the_rounds_that_count() -> None:
    seen = rounds()
    slow(seen[0], "control")
    slow(seen[0], "headroom/throttle")
    seen[1]["headroom/throttle"]["levels"]["5000/s"]["p99_s"] = 0.1
    by = {(row["case"], row["level"]): row for row in evaluation.rows(seen, SHORT)}
    assert by["headroom/throttle", "5000/s"]["p99_s"] == pytest.approx(0.075)
    assert by["headroom/throttle", "5000/s"]["counted"] == 2
    assert by["headroom/throttle", "3000/s"]["counted"] == 3


def test_a_peer_that_fails_is_shown_and_changes_no_verdict() -> None:
    seen = rounds()
    for one in seen:
        slow(one, "headroom/slowapi")
    found = evaluation.rows(seen, SHORT)
    assert evaluation.status(found) == 0
    assert missed(found) == []


@pytest.mark.parametrize(
    ("key", "planted", "text"),
    [
        ("headroom/throttle", level("5000/s", rejected=1), "in memory: refused"),
        ("headroom/throttle", level("5000/s", errors=1), "in memory: errors"),
        ("headroom/throttle", level("5000/s", p99_s=None), "in memory: p99 ms"),
        ("pressure/redis", level("5000/s", rejected=4000), "on Redis: served/s"),
        ("pressure/bare", level("5000/s"), "collapses: p99 in ms"),
        ("nominal/throttle", level("5000/s"), "in memory: low refused, off by"),
    ],
)
def test_missing_figure_misses_its_bar(key: str, planted: dict[str, Any], text: str) -> None:
    seen = rounds()
    for one in seen:
        one[key]["levels"]["5000/s"] = copy.deepcopy(planted)
    assert any(line.endswith(text) for line in missed(evaluation.rows(seen, SHORT)))


def test_only_high_must_never_be_rejected_under_pressure() -> None:
    seen = rounds()
    for one in seen:
        under_pressure = one["pressure/throttle"]["levels"]["5000/s"] = level("5000/s", rejected=3000)
        under_pressure["priorities"]["low"] = counts(9000, rejected=3000)
    assert missed(evaluation.rows(seen, SHORT)) == []
    for one in seen:
        one["pressure/throttle"]["levels"]["5000/s"]["priorities"]["high"] = counts(1500, rejected=1)
    assert missed(evaluation.rows(seen, SHORT)) == [
        "pressure at 5000/s, autoglm_throttle, in memory: high refused"
    ]


def test_rejections_at_fixed_rates_are_known_beforehand() -> None:
    expected = {"1000/s": (0, 0, 1500), "3000/s": (0, 1200, 5100), "5000/s": (0, 3000, 8700)}
    for name, rejected in expected.items():
        made = nominal(name)["priorities"]
        assert tuple(made[priority]["shed"] for priority in RATES) == rejected


def test_ten_thousand_a_second_is_a_bonus() -> None:
    scale = Scale((5000.0, 10_000.0), 3.0, 3.0, 1)
    one = {case.key: row(case) for case in CASES}
    for figures in one.values():
        figures["levels"] = {"5000/s": figures["levels"]["5000/s"], "10000/s": level("10000/s", p99_s=9.0)}
    found = evaluation.rows([one], scale)
    assert evaluation.status(found) == 0
    assert not any("10000" in line for line in table(found))
    one["control"]["levels"]["10000/s"]["p99_s"] = 0.1
    assert any(line.startswith("10000 requests/s") for line in table(evaluation.rows([one], scale)))


def test_table_has_every_row_and_level_and_the_published_figures() -> None:
    lines = table(evaluation.rows(rounds(), SHORT))
    assert [line.split()[0] for line in lines if "requests/s" in line and "mean" in line] == [
        *("100", "1000", "3000", "5000")
    ]
    assert [line.split()[1:4] for line in lines if line.startswith("published")] == [
        ["42", "0.0%", "0"],
        ["118", "0.3%", "12"],
        ["205", "4.7%", "89"],
    ]
    assert sum(line.endswith(("  pass", "  fail")) for line in lines) == 4 * len(CASES)


def test_picture_is_one_svg_with_a_line_per_row_and_plant() -> None:
    drawn = draw_chart(evaluation.rows(rounds(), SHORT))
    root = ElementTree.fromstring(drawn)
    lines = [part for part in root.iter() if part.tag.endswith("polyline")]
    assert len(lines) == 2 * 2 * len(COLOURS)
    assert all("nan" not in line.attrib["points"] for line in lines)
    assert "<script" not in drawn


def test_a_level_without_any_answer_is_drawn_as_a_gap() -> None:
    seen = rounds(1)
    seen[0]["pressure/bare"]["levels"]["5000/s"] = level("5000/s", p99_s=None)
    assert ElementTree.fromstring(draw_chart(evaluation.rows(seen, SHORT))) is not None


def test_every_round_has_its_control_and_no_row_twice() -> None:
    for chosen in (CASES, HOLD_CASES):
        assert chosen[0] == CONTROL
        assert len({case.key for case in chosen}) == len(chosen)
    assert cases.FULL.cases == cases.SHORT.cases == CASES
    assert cases.hold(60.0, 3).names[-1] == "5000/s"


def test_peers_that_are_not_installed_have_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "find_spec", lambda module: None if module == "slowapi" else object())
    left = {case.row for case in SHORT.possible().cases}
    assert left == {case.row for case in CASES} - {"slowapi"}
