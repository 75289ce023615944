"""The exit status, and when a run is not to be believed: one table."""

from __future__ import annotations

from typing import Any

import pytest

from autoglm_throttle.traffic.histogram import Histogram
from autoglm_throttle.traffic.report.schema import GeneratorPart, Judged
from autoglm_throttle.traffic.report.times import times
from autoglm_throttle.traffic.report.verdict import doubts, verdict

HOLDS: Judged = {"term": "error<1%", "value": 0.0, "unit": "ratio", "holds": True}
FAILS: Judged = {"term": "p99<1s", "value": None, "unit": "s", "holds": False}


@pytest.mark.parametrize(
    ("judged", "doubted", "aborted", "status", "text"),
    [
        ([], [], False, 0, "done; no objectives were stated"),
        ([HOLDS], [], False, 0, "the objective holds"),
        ([HOLDS, HOLDS], [], False, 0, "all objectives hold"),
        ([HOLDS, FAILS], [], False, 1, "failed: p99<1s"),
        ([HOLDS], ["too slow"], False, 3, "not valid: too slow"),
        ([FAILS], ["too slow", "too late"], False, 3, "not valid: too slow"),
        ([HOLDS], [], True, 130, "interrupted"),
        ([FAILS], ["too slow"], True, 130, "interrupted"),
    ],
)
def test_the_exit_status(
    judged: list[Judged], doubted: list[str], aborted: bool, status: int, text: str
) -> None:
    told = verdict(judged, doubted, aborted=aborted)
    assert told["status"] == status
    assert told["text"].startswith(text)
    assert told["objectives"] == judged
    assert (told["doubts"], told["valid"], told["aborted"]) == (doubted, not doubted, aborted)


def generator(lag_s: float | None = 0.001, **changed: Any) -> GeneratorPart:
    lag = Histogram()
    if lag_s is not None:
        lag.record(lag_s)
    part: GeneratorPart = {
        "lag": times(lag),
        "cpu_share": 0.2,
        "overrun_s": 0.0,
        "resent": 0,
        "connections": 1,
        "processes": 1,
    }
    return {**part, **changed}  # type: ignore[typeddict-item]


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (generator(), None),
        (generator(lag_s=None), None),
        (generator(lag_s=0.010), None),
        (generator(lag_s=0.0101), "lag p99 10.1 ms, allowed 10 ms"),
        (generator(overrun_s=0.2), None),
        (generator(overrun_s=0.21), "ran over by 0.21 s of 20 s"),
        (generator(cpu_share=None), None),
        (generator(cpu_share=0.95), None),
        (generator(cpu_share=0.96), "used 96% of a core"),
    ],
)
def test_a_run_is_doubted_by_what_the_generator_needed(part: GeneratorPart, said: str | None) -> None:
    found = doubts(part, 20.0)
    assert len(found) == (said is not None)
    for doubt in found:
        assert said is not None
        assert said in doubt
        assert "use more processes" in doubt


def test_every_doubt_is_told() -> None:
    assert doubts(generator(overrun_s=0.010), 0.08) == [], "as late as any launch may be"
    assert doubts(generator(overrun_s=0.011), 0.08) != []
    assert len(doubts(generator(lag_s=1.0, overrun_s=5.0, cpu_share=1.0), 20.0)) == 3
