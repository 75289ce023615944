"""Tables of figures are made only from the stored records."""

import json
from pathlib import Path

import pytest

from benchmarks import figures, instructions_part, tokens
from benchmarks.loop.limiters.registry import NAMES
from benchmarks.loop.scenarios import SCENARIOS

MACHINE = {
    "date": "2026-01-02",
    "processor": "a processor",
    "cores": 2,
    "python": "3.11.7",
    "versions": {
        "autoglm-throttle": "0.1.0",
        "asgi-ratelimit": "0.10.0",
        "limits": "5.8.0",
        "slowapi": "0.1.10",
    },
}
COSTS = {name: {"us": 5.0 + number, "ours_over_it": 0.5} for number, name in enumerate(figures.PEERS)}
PEERS = {**MACHINE, "added_us": COSTS, "refused_us": COSTS, "memory_mb": {"autoglm_throttle": 22.34}}
SERVE = {
    **MACHINE,
    "date": "2026-01-03",
    "capacity_kept": {"fastapi_ours": 0.912, "asgi_ours": 0.8, "asgi_limits": 0.7},
}


def test_a_row_for_each_library_and_the_machine_below() -> None:
    lines = figures.peers_table(PEERS, SERVE).splitlines()
    assert lines[2] == "| autoglm-throttle 0.1.0 | 5.0 µs | 5.0 µs | 22 MB | 91 % | 80 % |"
    assert lines[4] == (
        "| limits 5.8.0, fixed window | 7.0 µs (ours: 0.50 of it) | 7.0 µs (ours: 0.50 of it) "
        "| - | - | 70 % |"
    )
    assert (
        lines[6] == "| slowapi 0.1.10 | 9.0 µs (ours: 0.50 of it) | 9.0 µs (ours: 0.50 of it) | - | - | - |"
    )
    assert "2026-01-02, a processor, 2 cores, Python 3.11.7" in lines[8]
    assert "2026-01-03" in lines[9]


def test_cost_of_tokens_is_told_beside_that_without_them() -> None:
    rows = ("event, bare", "event, no limit in tokens", "event, limit in tokens", "event with usage, bare")
    more = ("event with usage, limit in tokens", "user window", "user window, tokens reserved and settled")
    names = (*rows, *more, "request", "request, CONCURRENCY_PER_USER")
    kept = {
        **MACHINE,
        "rounds": 9,
        "micros": {name: float(number**2) for number, name in enumerate(names)},
        "instructions": {"user window": 1000.0, "user window, tokens reserved and settled": 5000.0},
        "redis": {
            "user window": {"calls, 64 tasks": 0.02},
            "and tokens, slots": {"calls, 64 tasks": 0.04, "awaited, 64 tasks": 1},
        },
    }
    cells = [line.split(" | ")[1].removesuffix(" |") for line in tokens.tokens_part(kept).splitlines()[2:9]]
    assert cells[:3] == ["4.0 µs", "1.0 µs", "7.0 µs"]
    assert cells[3:5] == ["11.0 µs, 4,000 instructions", "15.0 µs"]
    assert cells[5:] == ["1, as without tokens", "0.040; without tokens 0.020"]
    assert "instructions" not in tokens.tokens_part({**kept, "instructions": {}})


def test_instructions_are_compared_with_the_peer_of_equal_fields() -> None:
    states = {"steady": 40.0, "refused": 60.0, "100,000 in turn": 40.0}
    whole = {
        "bare": {"steady, 50 callers": 10.0},
        **dict.fromkeys(("address", "identify", "header"), states | {"100,000 at random": 50.0}),
        "asgi-ratelimit": {"steady": 35.0, "refused": 80.0},
        "asgi-ratelimit with fields": {"steady": 60.0, "refused": 90.0},
    }
    timed = {"added_us": 6.4, "100,000 in turn": 1.2, "100,000 at random": 1.3, "memory_mb": 28.4}
    seconds = dict.fromkeys(("address", "identify", "header"), timed)
    kept = {**MACHINE, "instructions": whole, "seconds": seconds}
    lines = instructions_part.instructions_part(kept).splitlines()
    assert lines[3] == "| `identify=` | 30 instructions | 0.60 | 0.75 | 1.33 | 1.30 | 28 MB |"
    assert lines[5] == "| asgi-ratelimit | 25 instructions | 0.50 | 1.00 | - | - | - |"
    text = instructions_part.cost_part(kept)
    assert "With `identify=` a request costs 6 µs more, by key 6 µs;" in text
    assert "That is 0.60, 0.60 and 0.60 times the instructions of asgi-ratelimit" in text


def test_demo_figures_list_the_overload_phases() -> None:
    rows = ["phase priority", "calm high 9 9 0", "2x high 200 90 0", "2x low 9 9 0", "5x high 320 60 20"]
    kept = "\n".join(["a machine", "", *rows, "all 9 9", "", "rate: what it means", "", "What happened.", ""])
    assert figures.high_shares(kept) == {"2x": 45.0, "5x": 20.0}
    told = figures.demo_part(kept)
    assert "```text\nphase priority\n2x high 200 90 0\n2x low 9 9 0\n5x high 320 60 20\n```" in told
    assert "> What happened.\n" in told
    assert "within their user limits: 45 % at 2x and 20 % at 5x." in told
    assert "a machine.)" in told


def test_gateway_figures_stand_beside_the_bare_proxy() -> None:
    bare = {"requests/s": 90.4, "us/request": 5400.0, "events/s": 6000.0, "us/event": 60.2}
    ours = {"requests/s": 260.0, "us/request": 1860.0, "events/s": 6300.0, "us/event": 70.0}
    medians = {f"bare {name}": value for name, value in bare.items()}
    medians |= {f"gateway {name}": value for name, value in ours.items()}
    scale = {"rounds": 5, "connections": 32, "streams": 8, "events": 1000, "longest_left_ms": 11.4}
    lines = figures.gateway_part({**MACHINE, **scale, "medians": medians}).splitlines()
    assert lines[2] == "| bare proxy of httpx and Starlette | 90 | 5.4 ms | 6000 | 60 µs |"
    assert lines[3] == "| gateway | 260 | 1.9 ms | 6300 | 70 µs |"
    assert lines[5].endswith("the upstream sees it within 11 ms.")


def figures_of(goodput: float, high: float) -> dict[str, float | None]:
    return {"goodput": goodput, "high": high, "high_p99_s": 0.512, "high_p99_over": 1.64}


def test_closed_loop_has_a_column_for_each_limiter() -> None:
    scenarios = {scenario for _, scenario, _ in figures.DEMAND_ROWS}
    medians = {
        name: {"oracle": figures_of(1, 1), "tiers": figures_of(0.4, 0.1), "adaptive": figures_of(0.9, 0.99)}
        for name in scenarios
    }
    medians["step_10x"]["adaptive"] = figures_of(0.8, 0.97)
    del medians["step_5x"]["tiers"]
    kept = {**MACHINE, "figures": {"seeds": 5, "medians": medians}}
    lines = figures.closed_loop_part(kept).splitlines()
    assert lines[0] == "|  | **adaptive** | tiers |"
    rows = {cells[0]: cells[1:] for cells in (row.strip("| ").split(" | ") for row in lines[2:11])}
    assert rows["ten times"] == ["0.80", "0.40"]
    assert rows["ten times, high priority alone"] == ["0.97", "0.10"]
    assert rows["five times"] == ["0.90", "-"]
    assert rows["16 scenarios, geometric mean"] == ["0.88", "0.40"]
    assert rows["16 scenarios, the worst"] == ["0.80", "0.40"]
    assert rows["16 scenarios, the worst for high"] == ["0.97", "0.10"]
    assert "0.51 s at 2x, 1.6 times the oracle's and 0.51 s at 5x" in lines[12]
    assert "medians of 5 seeds: 2026-01-02" in lines[13]


def test_the_rows_of_the_closed_loop_are_scenarios_of_it() -> None:
    assert {scenario for _, scenario, _ in figures.DEMAND_ROWS} <= SCENARIOS.keys()
    assert figures.LIMITERS.keys() == set(NAMES) - {"oracle"}


def case(row: str, load: float, goodput: float, lag_p99_s: float | None = 0.001) -> dict[str, object]:
    times = {"high_p99_s": 0.5, "refusal_p99_s": 1.25, "lag_p99_s": lag_p99_s}
    return {"row": row, "load": load, "goodput": goodput, "in_time": {"high": 0.99}, **times}


def test_overload_rows_mark_late_clients() -> None:
    rows = [case("adaptive", 1.0, 1.0), case("adaptive", 5.0, 0.98), case("none", 5.0, 0.2, 0.02)]
    rows += [{**case("full", 5.0, 0.9), "refusal_p99_s": None}, case("control", 1.0, 0.999, None)]
    kept = {**MACHINE, "scale": {"loads": [1.0, 5.0], "slo_s": 2.0}, "rows": rows, "rounds": 3}
    lines = figures.overload_part({**kept, "capacity_rps": 97.6}).splitlines()
    assert lines[0] == "|  | 1x | 5x | high priority at 5x | its p99 at 5x | p99 of rejections at 5x |"
    assert lines[2] == "| no middleware | - | 0.20! | 0.99 | 500 ms | 1.2 s |"
    assert lines[3] == "| autoglm_throttle, adaptive | 1.00 | 0.98 | 0.99 | 500 ms | 1.2 s |"
    assert lines[4] == "| concurrency limit 32 | - | 0.90 | 0.99 | 500 ms | - |"
    assert lines[5] == "| instant GPU, no middleware | 1.00 | - | - | - | - |"
    assert "this GPU's capacity, 98 requests/s. !: the load generator" in lines[7]
    assert "medians of 3 rounds: 2026-01-02" in lines[8]
    rows[2]["lag_p99_s"] = 0.01
    once = figures.overload_part({**kept, "capacity_rps": 97.6, "rounds": 1})
    assert "!" not in once
    assert "`benchmarks/overload.py`, one round: " in once


def test_parts_are_made_of_the_records_that_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    monkeypatch.setattr(figures, "MADE", {"closed_loop": str, "overload": str})
    (tmp_path / "peers.json").write_text(json.dumps(PEERS))
    (tmp_path / "serve.json").write_text(json.dumps(SERVE))
    (tmp_path / "closed_loop.json").write_text("{}")
    assert [name for name, _ in figures.parts()] == ["figures", "demo", "closed-loop"]


def test_a_part_is_filled_between_its_marks_alone() -> None:
    text = "a\n<!-- one: made -->\nold\n<!-- /one -->\nb\n<!-- two: made -->\n<!-- /two -->\n"
    filled = figures.fill(text, "one", "new\\1")
    assert filled == text.replace("old\n", "\nnew\\1\n\n")
    assert figures.fill(filled, "one", "new\\1") == filled


@pytest.mark.parametrize("text", ["", "<!-- one: x -->\n<!-- /one -->\n" * 2])
def test_a_part_must_be_there_once(text: str) -> None:
    with pytest.raises(ValueError, match="parts are named one"):
        figures.fill(text, "one", "new")
