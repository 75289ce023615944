"""Every target of the breakers is a bar that can be missed, and a busy machine is not judged by its speed."""

from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.breakers import table
from benchmarks.breakers.bars import PARTS, bars
from benchmarks.breakers.candidates import Ours
from benchmarks.shared.bars import NOISY
from tests.benchmarks.breaker_record import record

pytestmark = pytest.mark.slow

Change = Callable[[dict[str, Any]], object]


def evaluated(found: dict[str, Any]) -> dict[str, str]:
    return {bar.text: bar.verdict for bar in bars(found)}


def costs(form: str, name: str, **figures: float) -> Change:
    return lambda found: found["cost"][form]["rows"][name].update(figures)


def ours(part: str, **figures: float) -> Change:
    return lambda found: found[part]["rows"][Ours.name].update(figures)


def opening(row_name: str, **figures: float) -> Change:
    return lambda found: found["opening"][row_name].update(figures)


def admitted(row_name: str, **figures: int) -> Change:
    return lambda found: found["half_open"][Ours.name][row_name].update(figures)


def test_a_good_run_misses_nothing() -> None:
    assert set(evaluated(record()).values()) == {"met"}


MISSES: dict[str, Change] = {
    "closed call, decorator, over circuitbreaker's": costs("coroutine", "circuitbreaker", ours_over_it=1.01),
    "closed call, decorator, over interlock's": costs("coroutine", "interlock", ours_over_it=0.13),
    "closed call of a plain function, over circ": costs("function", "circuitbreaker", ours_over_it=1.01),
    "refusal, over circuitbreaker's": costs("refused", "circuitbreaker", ours_over_it=1.01),
    "refusal, and for how long, over circ": costs("told", "circuitbreaker", ours_over_it=1.01),
    "decorator, ns where": costs("coroutine", Ours.name, ns=702.0),
    "decorator with slow calls, ns": costs("coroutine", "slow_call_s", ns=1002.0),
    "decorator with a listener, ns": costs("coroutine", "listener", ns=1002.0),
    "async with, ns": costs("block", Ours.name, ns=1402.0),
    "refusal, and for how long, ns": costs("told", Ours.name, ns=1662.0),
    "shared and closed: us": ours("shared", us=2.1),
    "shared and closed: commands": ours("shared", commands=0.0001),
    "shared and closed: errors": ours("shared", errors=1),
    "Redis killed: a call": ours("shared", lost_over_it=1.11),
    "Redis killed: errors": ours("shared", lost_errors=0.001),
    "opening known in another process, idle": opening("idle", max_ms=50.1),
    "opening known in another process, busy": opening("busy", max_ms=50.1),
    "opening known in another process, cold": opening("cold", max_ms=50.1),
    "first calls of new processes": opening("cold", refused=19),
    "admitted at half-open in 100 rounds, tasks: most": admitted("tasks", most=2),
    "admitted at half-open in 100 rounds, tasks: fewest": admitted("tasks", least=0),
    "admitted at half-open in 100 rounds, threads: most": admitted("threads", most=2),
    "admitted at half-open in 100 rounds, threads: fewest": admitted("threads", least=0),
    "admitted at half-open in 100 rounds, processes: most": admitted("processes", most=2),
    "admitted at half-open in 100 rounds, processes: fewest": admitted("processes", least=0),
    "8 threads": lambda found: found["threads"].update({Ours.name: 0.13}),
}


@pytest.mark.parametrize("text", MISSES)
def test_each_bar_can_be_missed(text: str) -> None:
    found = record()
    MISSES[text](found)
    (missed,) = [title for title, verdict in evaluated(found).items() if verdict != "met"]
    assert missed.startswith(text)
    assert evaluated(found)[missed] == "MISSED"


def test_every_bar_is_among_them() -> None:
    assert len(evaluated(record())) == len(MISSES)


def test_bound_in_nanoseconds_scales_with_the_machine() -> None:
    found = record()
    costs("coroutine", Ours.name, ns=699.0)(found)
    assert set(evaluated(found).values()) == {"met"}
    costs("coroutine", "circuitbreaker", ns=462.0)(found)
    assert evaluated(found)["decorator, ns where circuitbreaker adds 462"] == "MISSED"


@pytest.mark.parametrize(
    ("text", "unsteady"),
    [
        ("closed call, decorator, over circ", lambda found: found["cost"]["coroutine"].update(spread=1.6)),
        ("async with, ns", lambda found: found["cost"]["coroutine"].update(spread=1.6)),
        ("async with, ns", lambda found: found["cost"]["block"].update(spread=1.6)),
        ("Redis killed: a call", lambda found: found["shared"].update(spread=1.6)),
        ("8 threads", lambda found: found["threads"].update(bare=0.15)),
    ],
)
def test_speed_bar_is_inconclusive_with_an_unsteady_control(text: str, unsteady: Change) -> None:
    found = record()
    key = next(key for key in MISSES if key.startswith(text))
    MISSES[key](found)
    unsteady(found)
    assert [verdict for title, verdict in evaluated(found).items() if title.startswith(text)] == [NOISY]


def test_parts_that_were_not_run_have_no_bars() -> None:
    assert not evaluated({"rounds": 21})


@pytest.mark.parametrize("part", PARTS)
def test_each_part_prints_a_row_for_each_case(part: str) -> None:
    lines = table.PARTS[part](record()[part]).splitlines()
    rows = sum(line.startswith(f"  {Ours.name} ") for line in lines)
    assert rows == {"cost": 5, "opening": 0}.get(part, 1)
    assert len(lines) > 3
