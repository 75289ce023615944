"""A bar is met, missed, or not judged where the control beside it was not steady."""

import math
from typing import Any

import pytest

from benchmarks.shared import table
from benchmarks.shared.bars import LAG_MS, NOISY, PARTS, TUNED, Bar, bars

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("bar", "verdict"),
    [
        (Bar("", 3.0, 3.0, at_most=False), "met"),
        (Bar("", 2.9, 3.0, at_most=False), "MISSED"),
        (Bar("", 2.9, 3.0, at_most=False, calm=False), NOISY),
        (Bar("", 3.1, 3.0, at_most=False, calm=False), "met"),
        (Bar("", 3.0, 3.0), "met"),
        (Bar("", 3.1, 3.0), "MISSED"),
        (Bar("", math.nan, 3.0), "MISSED"),
        (Bar("", math.nan, 3.0, at_most=False), "MISSED"),
    ],
)
def test_a_bar_keeps_its_bound_or_does_not(bar: Bar, verdict: str) -> None:
    assert bar.verdict == verdict
    assert bar.record()["verdict"] == verdict
    assert verdict in str(bar)


def row(
    over: float = 9.0, server_us: float = 4.0, errors: dict[str, int] | None = None, **more: Any
) -> dict[str, Any]:
    figures = {"per_s": 1e5, "p99_ms": 2.0, "spread": 1.1, "round_trips": 0.02, "connections": 2, **more}
    return {
        **figures,
        "ours_over_it": over,
        "whole_over_it": over,
        "server_us": server_us,
        "errors": errors or {},
    }


def depth(spread: float = 1.1, rows: dict[str, Any] | None = None) -> dict[str, Any]:
    usual = {"store": row(1.0), "throttle": row(1.2), "floor": row(1.2), "floor-batch": row(0.7)}
    usual |= {name: row(server_us=16.0) for name in TUNED}
    return {"rows": usual | (rows or {}), "control": {"spread": spread}}


def of_burst(unanswered: int = 0) -> dict[str, int]:
    return {"admitted": 100 - unanswered, "unanswered": unanswered}


def record(**parts: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "decisions": {name: depth() for name in ("1", "64", "512")},
        "open_loop": {
            name: {"p50_ms": 0.9, "p99_ms": 8.0, "lag_p99_ms": 1.0, "errors": {}, "answered": 9}
            for name in ("control", "store", "throttle")
        },
        "exactness": {
            "limit": 100,
            "crowd": 512,
            "cold": {name: of_burst() for name in ("store", "throttle", "moving-raised")},
            "processes": {name: of_burst() for name in ("store", "throttle")},
            "worst_window": {"store": 1.0, "store-compact": 0.99, "fixed-raised": 2.0},
        },
        "memory": {
            "store": 850.0,
            "store-compact": 203.0,
            "store-compact-million": 251.0,
            "moving": 2216.0,
        },
        "attack": {
            name: {"asked_of_refused": 0.01, "per_s": 1.0, "asked": 0.1, "round_trips": 0.1, "admitted": 0.1}
            for name in ("with", "without")
        }
        | {"speedup": 9.0},
        "cancelled": {
            "store": dict.fromkeys(("wrong", "right", "cancelled", "opened", "calm_per_s", "kept"), 0)
        },
        "failure": {
            name: {"first_ms": 51.0, "after_third_ms": 0.1, "lag_ms": 2.0, "control": 1.0, "recovery_s": 1.2}
            for name in ("frozen", "killed")
        }
        | {"failover": {"slowest_ms": 60.0, "lag_ms": 2.0, "control": 1.0, "recovery_s": 1.5}},
    }
    return found | parts


def missed(**parts: Any) -> set[str]:
    return {bar.text for bar in bars(record(**parts)) if not bar.met}


def test_a_good_run_meets_every_bar() -> None:
    assert missed() == set()
    assert {part for part in PARTS if not list(bars({part: record()[part]}))} == set()


def test_only_measured_rows_have_bars() -> None:
    assert list(bars({})) == []
    assert len(list(bars({"memory": record()["memory"]}))) == 3


def test_the_pool_to_beat_is_the_faster_one() -> None:
    slower = depth(rows={"moving-blocking": row(2.9, server_us=16.0)})
    assert missed(decisions={"64": slower, "512": depth()}) == {
        f"decisions/s at 64, {candidate} over limits' moving window" for candidate in ("store", "throttle")
    }
    cheap = depth(rows={"moving-raised": row(server_us=11.0)})
    assert {text.split(",")[0] for text in missed(decisions={"64": depth(), "512": cheap})} == {
        "Redis CPU per decision at 512"
    }


def test_errors_and_round_trips_count_on_noisy_machines() -> None:
    wrong = row(1.0, errors={"NoAnswer": 1}, connections=5, round_trips=0.2)
    found = list(bars(record(decisions={"64": depth(9.0, {"store": wrong}), "512": depth()})))
    assert {bar.text for bar in found if bar.verdict == "MISSED"} == {
        "errors at 64, store",
        "connections at 64, store",
        "round trips per decision at 64, store",
    }


def test_slowness_of_a_noisy_machine_is_inconclusive() -> None:
    slow = depth(9.0, {"floor": row(0.5), "moving-raised": row(1.0, server_us=16.0)})
    found = list(bars(record(decisions={"64": slow, "512": depth()})))
    assert {bar.verdict for bar in found} == {"met", NOISY}
    lags = {name: {**one, "p99_ms": 40.0} for name, one in record()["open_loop"].items()}
    assert {bar.verdict for bar in bars({"open_loop": lags}) if not bar.met} == {NOISY}
    lags["control"]["p99_ms"] = LAG_MS
    assert {bar.verdict for bar in bars({"open_loop": lags}) if not bar.met} == {"MISSED"}


@pytest.mark.parametrize(
    ("part", "path", "value"),
    [
        ("exactness", ("cold", "throttle", "admitted"), 101),
        ("exactness", ("processes", "store", "admitted"), 99),
        ("exactness", ("worst_window", "store-compact"), 1.01),
        ("memory", ("store",), 901.0),
        ("memory", ("store-compact",), 301.0),
        ("memory", ("store-compact-million",), 301.0),
        ("attack", ("with", "asked_of_refused"), 0.03),
        ("cancelled", ("store", "wrong"), 1),
        ("cancelled", ("store", "opened"), 3),
        ("failure", ("frozen", "first_ms"), 61.0),
        ("failure", ("killed", "after_third_ms"), 1.1),
        ("failure", ("frozen", "lag_ms"), 10.1),
        ("failure", ("killed", "recovery_s"), 1.6),
        ("failure", ("failover", "slowest_ms"), 101.0),
    ],
)
def test_each_figure_can_miss(part: str, path: tuple[str, ...], value: float) -> None:
    found = record()
    place = found[part]
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    assert len([bar for bar in bars(found) if bar.verdict == "MISSED"]) == 1


def test_unanswered_request_makes_no_wrong_count() -> None:
    found = record()
    found["exactness"]["cold"]["store"] = of_burst(3)
    assert [bar.verdict for bar in bars(found) if not bar.met] == [NOISY]
    assert "97 (3 unanswered)" in table.PARTS["exactness"](found["exactness"])


def test_every_part_has_a_table_of_its_rows() -> None:
    found = record()
    assert table.PARTS.keys() == PARTS.keys()
    texts = {part: table.PARTS[part](found[part]) for part in found}
    assert "64 tasks" in texts["decisions"]
    assert "limits moving, raised" in texts["decisions"]
    assert "850" in texts["memory"]
    assert "2.00" in texts["exactness"]
