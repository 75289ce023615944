"""The page of any run can be rendered and parsed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.traffic.plan import Arrivals, LoadLevel, LoadShape, PriorityMix, make_plan
from autoglm_throttle.traffic.report import Objectives, RunInfo, make
from autoglm_throttle.traffic.request_log import RequestLog, RequestResult
from autoglm_throttle.traffic.request_source import RequestSource
from autoglm_throttle.traffic.results import Result, RunCost
from autoglm_throttle.types import Priority
from tests.traffic.page.drawn_page import drawn

LEVELS = st.builds(
    LoadLevel, st.sampled_from([0.5, 3.0, 40.0]), st.sampled_from([0.4, 1.0, 2.5]), st.text(max_size=5)
)
TIMES = st.floats(0.0, 1e4, allow_subnormal=False)
LOOKS = st.lists(
    st.fixed_dictionaries(
        {"t_s": TIMES},
        optional={"factor_ratio": st.floats(0.0, 10.0), "rss_bytes": st.floats(0.0, 1e13), "waiting": TIMES},
    ),
    max_size=4,
)


def played(shape: LoadShape, data: st.DataObject) -> Result:
    """Random endings for all requests of a shape."""
    made = make_plan(
        shape, Arrivals.POISSON, PriorityMix(mix={Priority.HIGH: 30.0, Priority.LOW: 70.0}), seed=1
    )
    sheet = RequestLog(len(made))
    endings = data.draw(st.lists(st.sampled_from([None, *RequestResult]), min_size=1, max_size=12))
    took_s = data.draw(st.lists(TIMES, min_size=1, max_size=5))
    for index in range(len(sheet)):
        ending = endings[index % len(endings)]
        if ending is None:
            sheet.skip(index)
            continue
        sheet.lag_s[index] = took_s[0] / 1e3
        sheet.service_s[index] = took_s[index % len(took_s)]
        sheet.close(index, ending, took_s[index % len(took_s)])
        if ending.rejected:
            sheet.record_rejection(index, "queue:<slow>", None)
    looks = tuple(data.draw(LOOKS))
    return Result(
        RequestSource(made), sheet, RunCost(elapsed_s=shape.duration_s), None in endings, watched=looks
    )


@given(st.lists(LEVELS, min_size=1, max_size=4), st.data())
def test_page_of_any_run_is_well_formed_with_finite_numbers(
    levels: list[LoadLevel], data: st.DataObject
) -> None:
    facts = RunInfo(title="any", shape="any", objectives=Objectives.parse("p99.mid<1s,error<=0%"))
    page = drawn(make(played(LoadShape(levels), data), facts))
    paths = [one.get("d") or "" for one in page.iter("path")]
    assert not any(word in path for path in paths for word in ("NaN", "Infinity", "e"))
    for path in paths:
        places = [
            float(word)
            for word in path.replace("h0", "").replace("Z", "").replace("M", " ").replace("L", " ").split()
        ]
        assert all(-0.2 <= place <= 1000.2 for place in places)


def test_the_rate_sent_is_that_of_the_time_of_sending() -> None:
    made = make_plan(LoadShape((LoadLevel(10.0, 10.0),)), Arrivals.UNIFORM, PriorityMix())
    sheet = RequestLog(len(made))
    for index in range(len(made)):
        if index < 20:
            sheet.close(index, RequestResult.OK, 0.001)
        else:
            sheet.skip(index)
    result = Result(RequestSource(made), sheet, RunCost(elapsed_s=3.0, stopped_s=2.0), aborted=True)
    page = drawn(make(result, RunInfo(title="stopped", shape="fixed")))
    assert "10/s on average" in [one.text for one in page.iter("dd")]
