"""Entries and the lines that keep them."""

from __future__ import annotations

import json
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.record.recorded_request import MAX_LINE_BYTES, RecordedRequest
from autoglm_throttle.traffic.request_source import PlannedRequest

TOKENS = st.text(string.ascii_lowercase + string.digits + "-_!~", min_size=1, max_size=12)
VALUES = st.text("".join(map(chr, range(0x20, 0x7F))) + "\t", max_size=40)
TARGETS = st.text("".join(map(chr, range(0x21, 0x7F))), min_size=1, max_size=60)

ENTRIES = st.builds(
    RecordedRequest,
    t_s=st.floats(0, 1e6).map(lambda t: round(t, 6)),
    id=st.integers(0, 10**9),
    method=st.sampled_from(["GET", "POST", "M-SEARCH"]),
    target=TARGETS,
    headers=st.lists(st.tuples(TOKENS, VALUES), max_size=5).map(tuple),
    body_len=st.integers(0, 2**40),
    body_sha256=st.sampled_from(["", "0" * 64, "af" * 32]),
    body=st.none() | st.binary(max_size=50),
    client=st.sampled_from(["", "0123456789abcdef"]),
    priority=st.sampled_from(["", "high", "mid", "low"]),
    decision=st.sampled_from(["", "admitted", "limited", "rejected", "degraded", "exempt"]),
    reason=st.sampled_from(["", "gpu", 'a"b\\']),
    status=st.integers(0, 999),
    ms=st.floats(0, 1e7).map(lambda t: round(t, 3)),
    ttfb_ms=st.none() | st.floats(0, 1e7).map(lambda t: round(t, 3)),
)


@given(ENTRIES)
def test_entry_line_round_trip(entry: RecordedRequest) -> None:
    line = entry.to_line()
    assert "\n" not in line
    assert line.isascii()
    assert json.loads(line)["v"] == 1
    assert RecordedRequest.from_line(line) == entry
    assert RecordedRequest.from_line(line.encode()) == entry


@given(ENTRIES)
def test_an_entry_can_be_sent_as_it_is(entry: RecordedRequest) -> None:
    PlannedRequest(method=entry.method, target=entry.target, headers=entry.headers)


def changed(**parts: Any) -> str:
    found = json.loads(RecordedRequest(t_s=1.0, id=1, method="GET", target="/a").to_line())
    return json.dumps(found | parts)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "[]",
        "5",
        "{",
        '{"v":1}',
        changed(v=2),
        changed(v="1"),
        changed(t=-1),
        changed(t="1"),
        changed(t=True),
        changed(t=1e9),
        changed(t=None),
        changed(t=10**400),
        changed(id=1.5),
        changed(id=-1),
        changed(method="GET /"),
        changed(method=""),
        changed(method=5),
        changed(target="/a b"),
        changed(target="/a\r\nx: y"),
        changed(target="/\u00e9"),
        changed(target=""),
        changed(headers=[["a b", "c"]]),
        changed(headers=[["a", "b\nc"]]),
        changed(headers=[["a", "b\u00e9"]]),
        changed(headers=[["a"]]),
        changed(headers=[["a", 5]]),
        changed(headers=5),
        changed(headers=[5]),
        changed(body_len=-1),
        changed(body_sha256="AB"),
        changed(body_b64="?"),
        changed(body_b64=5),
        changed(client="a\nb"),
        changed(reason="x" * 201),
        changed(status=1000),
        changed(status=-1),
        changed(ms=-0.1),
        changed(ttfb_ms=1e400),
        changed().replace("1.0", "NaN"),
        changed().replace("1.0", "1" * 5000),
        '{"a":' * 100_000,
        "[" * 100_000,
        changed(reason="x" * MAX_LINE_BYTES),
        b"\xff\xfe{}",
    ],
)
def test_invalid_entry_line_is_rejected(line: str | bytes) -> None:
    with pytest.raises(TrafficError) as caught:
        RecordedRequest.from_line(line)
    assert len(str(caught.value)) < 100


def test_names_of_headers_are_lower_case_once_read() -> None:
    assert RecordedRequest.from_line(changed(headers=[["Accept", "*/*"]])).headers == (("accept", "*/*"),)
    with pytest.raises(TrafficError):
        RecordedRequest(t_s=0, id=0, method="GET", target="/", headers=(("Accept", "*/*"),))


@given(st.text(max_size=200) | st.binary(max_size=200))
def test_nothing_but_the_named_error_is_raised(line: str | bytes) -> None:
    with pytest.raises(TrafficError):
        RecordedRequest.from_line(line)
