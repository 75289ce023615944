"""One JSON object per line, whatever stands in it."""

import io
import json
import logging
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.trace import NonRecordingSpan, SpanContext, use_span

from autoglm_throttle import Demand, Priority
from autoglm_throttle.observe import JsonFormatter
from autoglm_throttle.observe.logs import TEXT_AT_MOST
from autoglm_throttle.testing import throttle_for_tests

RECORD_KEYS = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime"}


def line_of(text: str = "hello", **extra: object) -> dict[str, Any]:
    logger = logging.Logger("some.where")
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    logger.addHandler(handler)
    logger.warning(text, extra=extra)
    (line,) = stream.getvalue().splitlines()
    assert line.isascii()
    found = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert isinstance(found, dict)
    return found


def test_trace_ids_are_those_of_the_active_span() -> None:
    assert "trace_id" not in line_of()
    context = SpanContext(0xABC, 0x12, is_remote=False)
    with use_span(NonRecordingSpan(context)):
        line = line_of(span_id="own")
    assert (line["trace_id"], line["span_id"]) == (f"{0xABC:032x}", "own")


def test_stack_is_printed_where_the_record_has_one() -> None:
    logger, stream = logging.Logger("some.where"), io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    logger.addHandler(handler)
    logger.warning("here", stack_info=True)
    assert json.loads(stream.getvalue())["stack"].startswith("Stack (most recent call last):")


def test_has_what_every_record_has_and_what_came_in_extra() -> None:
    line = line_of(event="request_rejected", count=3, share=0.5, on=True, nothing=None)
    assert list(line) == ["time", "level", "logger", "message", "event", "count", "share", "on", "nothing"]
    assert (line["level"], line["logger"], line["message"]) == ("warning", "some.where", "hello")
    assert (line["event"], line["count"], line["share"], line["on"]) == ("request_rejected", 3, 0.5, True)


def test_the_time_is_utc_in_milliseconds() -> None:
    record = logging.makeLogRecord({"created": 1_700_000_000.25})
    assert json.loads(JsonFormatter().format(record))["time"] == "2023-11-14T22:13:20.250+00:00"


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_a_number_that_json_cannot_say_is_null(value: float) -> None:
    assert line_of(retry_after_s=value)["retry_after_s"] is None


def test_values_that_json_cannot_say_are_text() -> None:
    line = line_of(who=Priority.HIGH, parts=(1, {"a": {2.0}}), secret=b"x", big={"k": float("inf")})
    assert line["who"] == 0
    assert line["parts"] == [1, {"a": "{2.0}"}]
    assert line["secret"] == "b'x'"
    assert line["big"] == {"k": None}


def test_exception_is_in_the_same_log_line() -> None:
    try:
        int("bad\nline")
    except ValueError:
        record = logging.makeLogRecord({"msg": "failed", "exc_info": sys.exc_info()})
    text = JsonFormatter().format(record)
    assert "\n" not in text
    assert "ValueError: invalid literal" in json.loads(text)["exception"]


def test_long_values_are_cut() -> None:
    assert len(line_of(text="x" * 1_000_000, other="y" * 1_000_000)["other"]) == TEXT_AT_MOST
    assert line_of("z" * TEXT_AT_MOST)["message"] == "z" * TEXT_AT_MOST
    assert line_of("z" * (TEXT_AT_MOST + 1))["message"].endswith("z…")


@given(
    st.text(max_size=50),
    st.dictionaries(
        st.text(min_size=1).filter(lambda key: key not in RECORD_KEYS | {"taskName"}),
        st.text() | st.integers() | st.floats() | st.none() | st.lists(st.text()),
        max_size=5,
    ),
)
def test_no_value_can_forge_a_log_line(text: str, extra: dict[str, Any]) -> None:
    line = line_of(text.replace("%", ""), **extra)
    assert line["logger"] == "some.where"
    assert extra.keys() <= line.keys()


def test_log_line_keys_cannot_be_replaced() -> None:
    line = line_of(level="forged", logger="forged", time="forged")
    assert line["level"] == "warning"
    assert "forged" not in line.values()


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger("autoglm_throttle")
    logger.addHandler(handler)
    before = logger.level
    logger.setLevel(logging.INFO)
    yield stream
    logger.removeHandler(handler)
    logger.setLevel(before)


def test_throttle_events_can_be_parsed(stream: io.StringIO) -> None:
    throttle = throttle_for_tests(rate_low_rps="1/s")
    throttle.gpu.utilization_pct = 92.0
    throttle.tick(3)
    throttle.try_admit(Demand(Priority.LOW, cost=50.0))
    written = [json.loads(line) for line in stream.getvalue().splitlines()]
    lines = [line for line in written if line["event"] != "config"]
    assert [line["event"] for line in lines] == ["telemetry_changed", "tier_changed", "request_rejected"]
    assert (lines[1]["factor"], lines[1]["factor_before"], lines[1]["cause"]) == (0.4, 1.0, "tier")
    assert lines[1]["gpu_utilization_ratio"] == 0.92
    assert (lines[2]["decision"], lines[2]["reason"], lines[2]["retry_after_s"]) == (
        "limited",
        "too_large",
        None,
    )
