"""The page of a report, read as XML after its script ran."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from copy import deepcopy
from functools import cache
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.traffic.report.page import render
from autoglm_throttle.traffic.report.schema import Document
from tests.traffic.page.drawn_page import drawn, parts
from tests.traffic.page.sample_document import document, tally, times

MADE_UP = document()


RESULT_NAMES = {
    "ok": "served",
    "degraded": "served by a fallback",
    "limited": "limited (429)",
    "shed": "shed (503)",
    "dropped": "dropped by the generator",
}


@cache
def made_up_page() -> ElementTree.Element:
    return drawn(MADE_UP)


def texts(page: ElementTree.Element, path: str) -> list[str]:
    return ["".join(element.itertext()) for element in page.iterfind(path)]


def table(page: ElementTree.Element, caption: str) -> list[list[str]]:
    """The rows of the table of that caption."""
    found = next(one for one in page.iter("table") if "".join(one[0].itertext()).startswith(caption))
    return [["".join(cell.itertext()) for cell in row] for row in found.iter("tr")]


def changed(**parts: object) -> Document:
    """The made-up report with other parts, given by name with ``__`` between levels."""
    report = deepcopy(MADE_UP)
    for path, value in parts.items():
        *way, last = path.split("__")
        place: dict[str, Any] = report
        for step in way:
            place = place[step]
        place[last] = value
    return report


def test_verdict_and_failed_objectives_come_first() -> None:
    page = made_up_page()
    first = page.find("body/main/section")
    assert first is not None
    assert first.attrib["class"] == "verdict bad"
    assert texts(first, "p") == ["Failedp99.low@5x<500ms"]
    assert table(page, "Objectives")[1:] == [
        ["p99.low@5x<500ms", "1 s", "FAILED"],
        ["error<0.5%", "0 %", "holds"],
        ["goodput.high>0.99", "100 %", "holds"],
    ]
    figures = texts(page, "body/main/dl[@class='figures']/div")
    assert figures[0] == "Sent19,293322/s on average"
    assert figures[3] == "Rejected53.1 %10,242 with Retry-After"


def test_sentences_stand_below_the_verdict() -> None:
    page = drawn(MADE_UP, ["It rained < always.", "Then not."])
    assert texts(page, "body/main/p[@class='sentence']") == ["It rained < always.", "Then not."]


REPLAYED = {
    "requests": 400,
    "decisions": {
        "admitted": {"recorded": 390, "replayed": 380},
        "shed": {"recorded": 10, "replayed": 20},
    },
    "statuses": {"200": {"recorded": 390, "replayed": 380}},
    "served": {"p50_s": {"recorded": 0.02, "replayed": None}},
    "changed": {"requests": 14, "ratio": 0.035},
    "differ": {"requests": 10, "ratio": 0.025},
    "seconds": [
        {
            "second": 7,
            "requests": 40,
            "differ": 10,
            "recorded": {"admitted 200": 40},
            "replayed": {"admitted 200": 30, "shed 503": 10},
        }
    ],
}


def test_replay_is_compared_with_its_recording() -> None:
    page = drawn(changed(replay=REPLAYED))
    assert texts(page, "body/main/p[@class='sentence']") == [
        "2.5 % of 400 requests had a different outcome, counted by second; 14 one by one."
    ]
    assert table(page, "Both sides") == [
        ["", "recorded", "replayed"],
        ["admitted", "390", "380"],
        ["shed", "10", "20"],
        ["200", "390", "380"],
        ["p50 of the served", "20 ms", "–"],
    ]
    worst = ["7 s", "40", "10", "40 admitted 200", "30 admitted 200, 10 shed 503"]
    assert table(page, "The most different seconds")[1:] == [worst]
    alike = drawn(changed(replay=REPLAYED | {"seconds": []}))
    assert "The most different seconds" not in texts(alike, ".//caption")


@pytest.mark.parametrize(
    ("status", "text", "caveats", "look", "told"),
    [
        (0, "all objectives hold", [], "good", ["Passedall objectives hold"]),
        (3, "not valid: late", ["late", "no core"], "caution", ["Not validlate", "no core"]),
        (130, "interrupted: that is all", [], "caution", ["Interruptedthat is all"]),
    ],
)
def test_each_exit_status_has_its_css_class(
    status: int, text: str, caveats: list[str], look: str, told: list[str]
) -> None:
    page = drawn(changed(verdict__status=status, verdict__text=text, verdict__caveats=caveats))
    section = page.find("body/main/section")
    assert section is not None
    assert section.attrib["class"] == f"verdict {look}"
    assert texts(section, "p") == told


def look_of(page: ElementTree.Element) -> str:
    section = page.find("body/main/section")
    assert section is not None
    return section.attrib["class"]


def test_failed_run_without_objectives_looks_bad() -> None:
    text = "failed: 0 of 5 requests succeeded (5 x 404): check the URL and the method"
    page = drawn(changed(verdict__status=1, verdict__text=text, verdict__objectives=[]))
    assert look_of(page) == "verdict bad"
    assert texts(page, "body/main/section/p") == [f"Failed{text.removeprefix('failed: ')}"]


def test_without_objectives_a_run_is_measured_and_nothing_else() -> None:
    page = drawn(changed(verdict__status=0, verdict__text="done", verdict__objectives=[]))
    assert texts(page, "body/main/section/p") == ["Measureddone"]
    assert look_of(page) == "verdict neutral", "without objectives nothing can be good"
    assert "objective" not in "".join(texts(page, "body/main/section"))


def test_nothing_is_loaded_and_only_the_own_script_runs() -> None:
    page = made_up_page()
    policies = [meta.get("content", "") for meta in page.iterfind("head/meta") if meta.get("http-equiv")]
    _, _, script = parts(render(MADE_UP))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policies == [f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"]
    names = {element.tag for element in page.iter()}
    assert names.isdisjoint({"img", "link", "iframe", "object", "embed", "a", "image", "use"})
    assert not any(key in element.attrib for element in page.iter() for key in ("src", "href", "onload"))
    assert "url(" not in render(MADE_UP)
    assert "@import" not in render(MADE_UP)
    assert not {"fetch", "XMLHttpRequest", "WebSocket", "import", "eval"} & set(re.findall(r"\w+", script))


def test_report_inside_the_page_can_be_read_back() -> None:
    hostile = changed(title="</script><!--<script>", load__shape="\u2028\ud800")
    page = render(hostile)
    markup, report, _ = parts(page)
    assert "<" not in report
    assert json.loads(report) == {**hostile, "sentences": []}
    assert "&lt;/script&gt;&lt;!--&lt;script&gt;</title>" in markup
    assert texts(drawn(hostile), "body/main/header/h1") == ["</script><!--<script>"]


def test_page_without_scripts_says_how_to_read_the_report() -> None:
    markup, _, _ = parts(render(MADE_UP))
    assert "<main><noscript>A script of this page draws the report" in markup


def test_number_that_json_cannot_hold_is_an_error() -> None:
    with pytest.raises(ValueError, match="JSON"):
        render(changed(replay={"differ": math.nan}))


def test_every_plot_has_a_name_a_sentence_and_its_numbers() -> None:
    figures = list(made_up_page().iter("figure"))
    assert texts(made_up_page(), ".//figure/figcaption/h3") == [
        "Requests by outcome",
        *("Priority high", "Priority mid", "Priority low"),
        *("Latency", "Latency by priority", "How many waited longer"),
        *("Throttle and GPU", "Requests in the service", "GPU power"),
        *("In flight", "Lag of the generator"),
    ]
    for figure in figures:
        drawing = figure.find("svg")
        assert drawing is not None
        title, summary = texts(figure, "figcaption/*")
        assert drawing.attrib["role"] == "img"
        assert drawing.attrib["aria-label"] == f"{title}. {summary}"
        assert len(list(figure.iterfind("details/div/table/tbody/tr"))) >= 3


def test_the_plot_of_requests_adds_up_to_what_was_offered() -> None:
    rows = table(made_up_page(), "Requests by outcome")
    assert rows[0] == [
        "time",
        "offered",
        *(RESULT_NAMES[name] for name in ("ok", "degraded", "limited", "shed")),
    ]
    assert rows[-20] == ["40 s", "850/s", "216/s", "4.0/s", "410/s", "220/s"]
    for cells in rows[1:]:
        offered, *parts = (float(cell.removesuffix("/s").replace(",", "")) for cell in cells[1:])
        assert offered == sum(parts)


def test_segment_table_has_sums_in_bold() -> None:
    page = made_up_page()
    rows = table(page, "By segment and priority")
    assert rows[0][:4] == ["segment", "sent", "served", "in time"]
    assert [row[0] for row in rows[17:21]] == ["5x, 37 s to 50 s", "high", "mid", "low"]
    assert rows[18][1:4] == ["1,105", "100 %", "100 %"]
    assert [row[0] for row in rows[-4:]] == ["all", "high", "mid", "low"]
    bold = [row[0].text for row in page.iter("tr") if row.get("class") == "strong" and row[0].text]
    assert len(bold) == 1 + 6 + 1


def test_reasons_and_statuses_are_counted() -> None:
    page = made_up_page()
    assert table(page, "Why requests were rejected") == [
        ["reason", "mid", "low", "all"],
        ["rate:low", "0", "6,578", "6,578"],
        ["queue:slow", "3,039", "625", "3,664"],
    ]
    assert table(page, "Statuses of the answers")[1:] == [
        ["200", "9,051"],
        ["429", "6,578"],
        ["503", "3,664"],
    ]


def test_requests_without_a_response_are_listed_by_result() -> None:
    report = changed(totals__classes__timeout=3, totals__classes__dropped=4)
    report["priorities"]["mid"]["reasons"] = {}
    report["priorities"]["low"]["reasons"] = {"": 7}
    report["totals"]["reasons"] = {"": 7}
    page = drawn(report)
    assert table(page, "Statuses of the answers")[-2:] == [["none: timeout", "3"], ["none: dropped", "4"]]
    assert table(page, "Why requests were rejected") == [["reason", "low", "all"], ["not given", "7", "7"]]


def test_reasons_are_omitted_without_rejections() -> None:
    report = changed()
    for part in report["priorities"].values():
        part["reasons"] = {}
    assert "Why requests were rejected" not in texts(drawn(report), ".//caption")


def test_single_kind_and_segment_have_no_table_and_mark() -> None:
    report = changed()
    report["requests"] = report["requests"][:1]
    report["segments"] = report["segments"][:1]
    page = drawn(report)
    assert "Kinds of requests" not in texts(page, ".//caption")
    assert list(page.iter("line"))
    assert not [one for one in page.iter("line") if one.get("class") == "band"]


def test_service_plots_need_monitoring() -> None:
    titles = texts(drawn(changed(watched=[])), ".//figure/figcaption/h3")
    assert "Throttle and GPU" not in titles
    assert len(titles) == 9


def test_missing_samples_are_gaps() -> None:
    looks = [{"t_s": 0.0, "cpu_share": 0.5}, {"t_s": 1.0}, {"t_s": 62.0, "cpu_share": 0.75, "rss_bytes": 3e9}]
    page = drawn(changed(watched=looks))
    assert table(page, "CPU of the service")[1:] == [["0.0 s", "50 %"], ["1.0 s", "–"], ["62.0 s", "75 %"]]
    assert table(page, "Memory of the service")[-1] == ["62.0 s", "2.79 GiB"]
    summary = texts(page, ".//figure/figcaption/p")
    assert "Of one core 50 % to 75 %." in summary


def test_segment_labels_are_omitted_where_they_do_not_fit() -> None:
    report = changed()
    for part, name in zip(report["segments"], ("x" * 200, "y" * 15, "z" * 7, "2x", "5x", "end"), strict=True):
        part["name"] = name
    page = drawn(report)
    looks = {one.text: one.get("class") for one in page.iter("text") if one.text}
    assert "x" * 200 not in looks
    assert (looks["y" * 15], looks["z" * 7], looks["2x"]) == ("mark vast", "mark roomy", "mark")


def test_long_run_is_drawn_in_longer_steps() -> None:
    report = changed()
    seconds = report["seconds"]
    for part in (seconds, *seconds["priorities"].values()):
        for name, column in part.items():
            if isinstance(column, list):
                part[name] = column * 10
    page = drawn(report)
    assert texts(page, "body/main/p[@class='note']")[0].startswith("Each step is 3 s")
    assert len(table(page, "Latency, by second")) == 201


def test_a_run_in_which_nothing_was_sent_has_no_plots() -> None:
    report = changed(totals=tally((0, 0, 0, 0), 1.0), load__duration_s=0.0, load__loop="closed")
    page = drawn(report)
    assert not list(page.iter("figure"))
    assert "Sent0– on average" in texts(page, ".//dl/div")
    assert any("users waited" in text for text in texts(page, ".//dl/div"))


def test_empty_priority_is_omitted_and_unsent_one_is_noted() -> None:
    report = changed(priorities__mid=tally((0, 0, 0, 0), 1.0))
    report["priorities"]["low"]["unsent"] = report["priorities"]["low"]["planned"]
    page = drawn(report)
    titles = texts(page, ".//figure/figcaption/h3")
    assert "Priority mid" not in titles
    assert "– of 0 requests were served." in texts(page, ".//figure/figcaption/p")


def test_summary_of_a_run_without_rejections() -> None:
    report = changed(seconds__limited=[0] * 60, seconds__shed=[0] * 60)
    summaries = texts(made_up_page(), ".//figure/figcaption/p")
    assert summaries[0] == (
        "At most 850/s were offered; in the worst second 630 were rejected, and none failed."
    )
    calm = texts(drawn(report), ".//figure/figcaption/p")
    assert calm[0] == "At most 850/s were offered; none was rejected, and none failed."
    report["seconds"]["failed"] = [7] + [0] * 59
    assert texts(drawn(report), ".//figure/figcaption/p")[0].endswith("none was rejected, and 7 failed.")


def test_dropped_requests_are_stacked_and_counted_as_failed() -> None:
    page = drawn(changed(seconds__dropped=[40] + [0] * 59))
    assert texts(page, ".//figure/figcaption/p")[0].endswith(", and 40 failed.")
    rows = table(page, "Requests by outcome")
    assert (rows[0][-1], rows[1][-1]) == (RESULT_NAMES["dropped"], "40/s")


def test_run_without_served_requests_is_noted() -> None:
    report = changed()
    nothing: list[float | None] = [None] * 60
    seconds = report["seconds"]
    seconds["p50_s"] = seconds["p95_s"] = seconds["p99_s"] = nothing
    for name in report["priorities"]:
        report["priorities"][name]["response"] = times(0.1, 0)
        seconds["priorities"][name]["p95_s"] = nothing
    summaries = texts(drawn(report), ".//figure/figcaption/p")
    assert "Nothing was served." in summaries
    assert "The share of the served that took longer. Beyond their limit: none." in summaries


def test_a_priority_without_a_limit_is_never_late() -> None:
    report = changed(load__limits_s={"high": 0.5})
    assert any("limit: high 3.8" in one for one in texts(drawn(report), ".//figure/figcaption/p"))


SMALL = changed(totals__planned=0, segments=deepcopy(MADE_UP["segments"][:1]))
"""Without plots."""


@given(st.text(min_size=1))
def test_no_name_in_a_report_becomes_markup(name: str) -> None:
    report = SMALL
    report["title"] = report["load"]["shape"] = report["about"]["command"] = name
    report["segments"][0]["name"] = report["requests"][0]["label"] = name
    report["totals"]["reasons"] = {name: 1}
    page = drawn(report)
    assert {element.tag for element in page.iter()} == {
        *("html", "head", "meta", "title", "style", "body", "main", "header", "h1", "h2", "p", "section"),
        *("strong", "div", "table", "caption", "thead", "tbody", "tr", "th", "td", "dl", "dt", "dd"),
    }


def test_monitoring_without_a_gpu_has_no_gpu_plot() -> None:
    looks = [{"t_s": float(second), "factor_ratio": 1.0, "rss_bytes": 8e7} for second in range(3)]
    page = drawn(changed(watched=looks))
    titles = texts(page, ".//figure/figcaption/h3")
    assert "Throttle" in titles
    assert "Throttle and GPU" not in titles
    assert "Factor on the rates 100 %." in texts(page, ".//figure/figcaption/p")


def test_a_closed_loop_is_marked_at_the_top() -> None:
    assert texts(made_up_page(), "body/main/header/p")[0].endswith("; open loop")
    (said,) = texts(drawn(changed(load__loop="closed")), "body/main/header/p")
    assert said.endswith("; closed loop: users wait for their answers")


def test_names_of_run_details_are_unique() -> None:
    page = drawn(changed(about={"loop": "uvloop"}))
    names = texts(page, ".//dl[@class='details']/div/dt")
    assert len(names) == len(set(names))
    assert {"Loop", "Event loop"} <= set(names)
    assert " connections, " in "".join(texts(page, ".//dl[@class='details']/div/dd"))


def test_request_kinds_list_their_first_byte() -> None:
    part = MADE_UP["requests"][0]
    heads = table(drawn(changed(requests=[part, part])), "Kinds of requests")[0]
    assert heads[-1] == "first byte p99"


def test_one_error_is_one_request() -> None:
    classes = {name: int(name == "timeout") for name in MADE_UP["totals"]["classes"]}
    page = drawn(changed(totals__classes=classes))
    assert "1 request" in texts(page, ".//dl[@class='figures']/div/dd")
