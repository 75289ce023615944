"""The part of the page on benchmarks about shared limits is made from the record."""

from typing import Any

import pytest

from benchmarks.shared.bars import TUNED
from benchmarks.shared.part import PEERS, SHOWN, peers_part, redis_part
from benchmarks.shared.rows import TITLES

pytestmark = pytest.mark.slow

MACHINE = {
    "date": "2026-01-02",
    "processor": "a processor",
    "cores": 2,
    "python": "3.11.7",
    "versions": {"autoglm-throttle": "0.1.0", "limits": "5.8.0"},
}


def row(per_s: float, errors: dict[str, int] | None = None) -> dict[str, Any]:
    figures = {"p99_ms": 7.04, "round_trips": 0.0312, "connections": 2, "server_us": 4.26}
    return {"per_s": per_s, "errors": errors or {}, **figures}


def record() -> dict[str, Any]:
    rows = {name: row(1000.0) for name in SHOWN}
    wait = {"p50_ms": 0.94, "p99_ms": 8.06}
    slow = {"p50_ms": 115.0, "p99_ms": 424.0}
    return {
        **MACHINE,
        "server": "valkey-9.1.2",
        "rounds": 5,
        "decisions": {
            "1": {"rows": rows},
            "64": {"rows": {**rows, "store": row(123_456.0)}},
            "512": {"rows": {**rows, "moving": row(9000.0, {"MaxConnectionsError": 7})}},
        },
        "open_loop": {
            "control": {"p50_ms": 0.5, "p99_ms": 1.5},
            "throttle": wait,
            TUNED[0]: slow,
            TUNED[1]: {**slow, "p99_ms": 999.0},
        },
        "exactness": {
            "worst_window": {
                "store": 1.0,
                "store-compact": 0.99,
                "moving-raised": 1.0,
                "counter": 1.91,
                "fixed-raised": 1.99,
            }
        },
        "memory": {
            "store": 1150.4,
            "store-compact": 203.0,
            "store-compact-million": 251.0,
            "moving": 2216.0,
        },
        "attack": {"with": {"asked_of_refused": 0.0114}, "speedup": 9.06},
        "failure": {"frozen": {"first_ms": 51.2, "after_third_ms": 0.17, "recovery_s": 1.04}},
    }


def test_a_row_for_each_and_a_sentence_for_each_other_figure() -> None:
    lines = redis_part(record()).splitlines()
    assert lines[0].startswith("| decisions/s, one process | 1 task | 64 tasks | 512 tasks | p99 at 512 |")
    assert lines[2] == "| ours, the store alone | 1,000 | 123,456 | 1,000 | 7.0 ms | 0.03 | 2 | 4.3 µs |"
    assert lines[4].startswith("| limits moving, installed | 1,000 | 1,000 | 9,000! |")
    text = "\n".join(lines)
    assert "within 0.9 ms, 99 % within 8.1 ms; by `limits` within 115.0 and 424.0 ms" in text
    assert "1.00, compact 0.99; `limits` moving 1.00, sliding counter 1.91, fixed 1.99." in text
    assert "100: 1,150 bytes, `limits` moving 2,216; at 10,000: 203, at 1,000,000: 251." in text
    assert "receives 1.1 % of those; the deny cache makes 9.1 times the decisions possible." in text
    assert "takes 51 ms, each after the third at most 0.17 ms; checks resume 1.0 s after" in text
    assert "valkey-9.1.2, medians of 5 rounds" in lines[-1]
    assert "2026-01-02, a processor, 2 cores" in lines[-1]


def test_the_rows_that_are_shown_are_rows_of_the_benchmark() -> None:
    assert set(SHOWN) <= TITLES.keys()


@pytest.mark.parametrize("share", [0.5, 0.91])
def test_whole_requests_on_redis_are_compared(share: float) -> None:
    one = {"rps": 4321.0, "ours_over_it": 3.25, "errors": {}}
    rows = dict.fromkeys(PEERS, one) | {"slowapi": {**one, "errors": {"TimeoutError": 1200}}}
    peers = {**MACHINE, "redis": {"server": "redis-7.2.1", "tasks": 64, "rows": rows}}
    kept = dict.fromkeys(("fastapi_redis", "fastapi_redislimits", "asgi_redis", "asgi_redislimits"), share)
    lines = peers_part(peers, {**MACHINE, "capacity_kept": kept}).splitlines()
    assert lines[2] == "| autoglm_throttle | 4,321 | 3.2 | 0 |"
    assert lines[6] == "| slowapi | 4,321 | 3.2 | 1,200 |"
    assert f"FastAPI app {share:.0%}".replace("%", " %") in lines[8]
    assert "redis-7.2.1" in lines[9]
