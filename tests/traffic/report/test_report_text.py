"""Text of a report, of a comparison and of the progress."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from autoglm_throttle.traffic.report import (
    Document,
    Objectives,
    ProgressLine,
    RunInfo,
    compare,
    comparison,
    lines,
    make,
)
from autoglm_throttle.traffic.report.text_report import duration, printable, quantity, rate, share
from autoglm_throttle.traffic.request_log import RequestResult
from autoglm_throttle.traffic.request_source import PlannedRequest
from autoglm_throttle.traffic.results import Result
from autoglm_throttle.types import Priority
from tests.traffic.report.sample_runs import REQUESTS, RUN_INFO, Sent, made, runs

OBJECTIVES = Objectives.parse("p99<500ms,error<0.5%,rps>=1/s")


def document(
    sent: list[Sent],
    facts: RunInfo = RUN_INFO,
    ends_s: tuple[float, ...] = (10.0,),
    names: tuple[str, ...] = (),
) -> Document:
    return make(made(sent, ends_s=ends_s, names=names or None), facts)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0.0, "0 us"),
        (0.000850, "850 us"),
        (0.0015, "1.50 ms"),
        (0.0205, "20.5 ms"),
        (0.205, "205 ms"),
        (1.2, "1.20 s"),
        (30.0, "30.0 s"),
        (120.0, "120 s"),
    ],
)
def test_durations_have_three_digits(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text
    assert quantity(seconds, "s") == text


@pytest.mark.parametrize(
    ("ratio", "text"), [(None, "-"), (0.0, "0 %"), (1.0, "100 %"), (0.0035, "0.35 %"), (0.99, "99.00 %")]
)
def test_shares_are_percent(ratio: float | None, text: str) -> None:
    assert share(ratio) == text
    assert quantity(ratio, "ratio") == text


def test_rates_are_per_second() -> None:
    assert (rate(None), rate(4969.2), quantity(5.53, "rps")) == ("-", "4969/s", "5.53/s")


def test_text_from_outside_steers_no_terminal() -> None:
    assert printable("a\x1b[2Jb\nc\u202ed") == "a?[2Jb?c?d"
    hostile = document([Sent(ending=RequestResult.LIMITED, reason="\x1b[2J")])
    assert all(line.isprintable() for line in lines(hostile))
    titled = document([Sent()], replace(RUN_INFO, title="\x1b]0;x"))
    assert all(line.isprintable() for line in (*lines(titled), *compare(titled, titled)))


def test_the_verdict_comes_first_then_the_objectives() -> None:
    sent = [Sent(at_s=at_s, response_s=0.02) for at_s in range(9)] + [
        Sent(at_s=9.5, ending=RequestResult.TIMEOUT)
    ]
    told = lines(document(sent, replace(RUN_INFO, objectives=OBJECTIVES)))
    assert told[:5] == [
        "a run",
        "failed: error<0.5%, rps>=1/s",
        "  holds   p99<500ms   20.0 ms",
        "  failed  error<0.5%  10.00 %",
        "  failed  rps>=1/s    0.90/s",
    ]


def test_first_caveat_is_the_verdict_and_others_have_lines() -> None:
    told = lines(document([Sent()], replace(RUN_INFO, caveats=("the first", "the second"))))
    assert told[1:3] == ["not valid: the first", "caveat: the second"]
    assert sum("the first" in line for line in told) == 1


def test_a_run_of_one_segment_and_priority_is_one_row() -> None:
    told = lines(document([Sent(response_s=0.02, service_s=0.01)]))
    heading = next(place for place, line in enumerate(told) if line.startswith("segment"))
    assert told[heading - 1] == "by hand, uniform arrivals, open loop, seed 0, 1 request in 10 s"
    assert told[heading + 1].split()[:4] == ["all", "mid", "1", "0.10/s"]
    assert told[heading + 2] == ""
    assert told[heading + 3 :] == [
        "goodput: served within high 500 ms, mid 1.00 s, low 2.00 s",
        "statuses: 200 1",
        "service time (from the write): p50 10.0 ms, p99 10.0 ms",
        "generator: lag p99 0 us, - of a core, 0 connections, 0 sent again",
    ]


def test_known_first_byte_is_printed() -> None:
    told = lines(document([Sent(first_byte_s=0.02), Sent(first_byte_s=0.04)], replace(RUN_INFO, limits_s={})))
    assert "goodput: everything served" in told
    assert "first byte (from the intended start): p50 20.1 ms, p99 40.0 ms" in told


def test_segments_priorities_and_requests_have_rows_of_their_own() -> None:
    sent = [
        Sent(priority=Priority.HIGH, kind=0),
        Sent(at_s=1.0, segment=1, kind=1),
        Sent(at_s=1.0, segment=1, priority=Priority.LOW, kind=1),
    ]
    facts = replace(RUN_INFO, mix={Priority.HIGH: 40.0, Priority.LOW: 60.0})
    told = lines(make(made(sent, ends_s=(1.0, 2.0), names=("calm", "peak"), requests=REQUESTS), facts))
    start = next(place for place, line in enumerate(told) if line.startswith("segment"))
    assert told[start - 1].endswith("3 requests in 2 s, high 40 %, low 60 %")
    rows = [(line[:16].strip(), line[16:26].strip()) for line in told[start + 1 : start + 10]]
    assert rows == [
        ("calm", "high"),
        ("peak", "all"),
        ("", "mid"),
        ("", "low"),
        ("all", "all"),
        ("", "high"),
        ("", "mid"),
        ("", "low"),
        ("POST /v1/predict", "all"),
    ]


def test_columns_stand_under_their_headings() -> None:
    told = lines(document([Sent(priority=priority) for priority in Priority]))
    start = next(place for place, line in enumerate(told) if line.startswith("segment"))
    assert len({len(line) for line in told[start : start + 5]}) == 1


def test_failed_requests_are_counted_by_cause() -> None:
    sent = [
        Sent(ending=RequestResult.LIMITED, reason="rate"),
        Sent(ending=RequestResult.SHED, reason=""),
        Sent(ending=RequestResult.TIMEOUT),
        Sent(ending=RequestResult.CONNECTION),
        Sent(ending=None),
    ]
    told = lines(make(made(sent, effort={"cpu_share": 0.5}), RUN_INFO))
    assert told[-5:] == [
        "statuses: 429 1, 503 1",
        "rejected for: no reason given 1, rate 1",
        "errors: connection 1, timeout 1",
        "left out because the run was stopped: 1",
        "generator: lag p99 0 us, 50.00 % of a core, 0 connections, 0 sent again",
    ]


@given(runs)
def test_every_run_can_be_printed(result: Result) -> None:
    told = make(result, replace(RUN_INFO, objectives=OBJECTIVES))
    assert lines(told)[0] == "a run"
    assert not any("not the same" in remark for remark in comparison(told, told)["caveats"])
    assert {row["ratio"] for row in comparison(told, told)["rows"]} <= {1.0, None}


def test_two_reports_side_by_side() -> None:
    a = document([Sent(response_s=0.25), Sent(at_s=1.0, response_s=0.25)])
    b = document(
        [Sent(response_s=0.5), Sent(at_s=1.0, ending=RequestResult.TIMEOUT)],
        replace(RUN_INFO, title="another"),
    )
    found = {
        (row["segment"], row["priority"], row["metric"]): (row["a"], row["b"], row["ratio"])
        for row in comparison(a, b)["rows"]
    }
    assert found["all", "all", "p99"] == (0.25, 0.5, 2.0)
    assert found["all", "mid", "done"] == (1.0, 0.5, 0.5)
    assert found["all", "all", "errors"] == (0.0, 0.5, None)
    assert found["all", "high", "p99"] == (None, None, None)
    told = compare(a, b)
    assert told[:3] == ["A: a run", "B: another", ""]
    rows = [line.split("  ") for line in told]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    assert ["all", "all", "p99", "250 ms", "500 ms", "2.00"] in cells
    assert ["all", "all", "errors", "0 %", "50.00 %", "-"] in cells
    assert not any(" high " in line for line in told)


def test_segments_are_compared_when_the_shapes_are_alike() -> None:
    def shaped(*names: str) -> Document:
        return document([Sent(), Sent(at_s=1.0, segment=1)], ends_s=(1.0, 2.0), names=names)

    alike = comparison(shaped("calm", "peak"), shaped("calm", "peak"))
    assert {row["segment"] for row in alike["rows"]} == {"all", "1 (calm)", "2 (peak)"}
    apart = comparison(shaped("calm", "peak"), shaped("calm", "calm"))
    assert {row["segment"] for row in apart["rows"]} == {"all"}


def test_differences_in_setup_are_printed_first() -> None:
    a = document([Sent()])
    b = make(
        made([Sent()], requests=[PlannedRequest(name="else")], aborted=True),
        replace(RUN_INFO, seed=1, caveats=("the machine was busy",), limits_s={Priority.LOW: 1.0}),
    )
    assert comparison(a, b)["caveats"] == [
        "not the same seed: 0 and 1",
        "not the same requests: ['POST /v1/predict'] and ['else']",
        "not the same limits: {'high': 0.5, 'mid': 1.0, 'low': 2.0} and {'low': 1.0}",
        "B is not valid: the machine was busy",
        "B was stopped before its end",
    ]
    assert compare(a, b)[2] == "note: not the same seed: 0 and 1"


def test_a_terminal_gets_one_line_rewritten_each_second() -> None:
    progress = ProgressLine(100, 60.0, terminal=True, width=200)
    progress.record(0, RequestResult.OK, 0.02)
    progress.record(1, RequestResult.LIMITED, 0.001)
    progress.record(2, RequestResult.SHED, 0.001)
    progress.record(3, RequestResult.TIMEOUT, 30.0)
    progress.record(4, RequestResult.SERVER_ERROR, 0.02)
    assert progress.line(0.99, 10, 6) == ""
    assert progress.line(1.0, 10, 6) == (
        "\r1/60 s  sent 10/100  done 4  in flight 6  p50 20.0 ms  p99 20.0 ms  429 1  503 1  errors 2\x1b[K"
    )
    assert progress.line(1.5, 10, 6) == ""
    later = progress.line(2.0, 20, 0)
    assert "done 4" in later
    assert "p50 -" in later  # of the last second only
    assert progress.line(60.0, 100, 1).startswith("\r60/60 s  sent 100")
    assert progress.line(61.0, 100, 1).startswith("\r61 s, all sent  sent 100")
    assert progress.close() == "\r\x1b[K"


def test_progress_line_fits_the_terminal() -> None:
    progress = ProgressLine(100, 60.0, terminal=True, width=41)
    assert progress.line(1.0, 10, 6) == "\r1/60 s  sent 10/100  done 0  in flight 6\x1b[K"


def test_a_log_gets_a_line_each_ten_seconds() -> None:
    progress = ProgressLine(0, 60.0, terminal=False)
    assert progress.line(9.0, 10, 6) == ""
    assert progress.line(10.0, 10, 6).startswith("10/60 s  sent 10  done 0")
    assert progress.line(10.5, 10, 6) == ""
    late = progress.line(35.0, 10, 6)
    assert late.endswith("\n")
    assert progress.line(39.0, 10, 6) == ""
    assert progress.line(40.0, 10, 6) != ""
    assert progress.close() == ""
