"""Parsing of reason and Retry-After of rejections, malformed ones included."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.traffic.request_log import REASON_CHARS, parse_reason, parse_retry_after


@pytest.mark.parametrize(
    ("stated", "wait_s"),
    [
        (None, None),
        (b"0", 0.0),
        (b"12", 12.0),
        (b"999999999", 999_999_999.0),
        (b"9999999999", None),
        (b"", None),
        (b"-1", None),
        (b"1.5", None),
        (b"Wed, 21 Oct 2026 07:28:00 GMT", None),
    ],
)
def test_a_wait_is_a_plain_number_of_seconds(stated: bytes | None, wait_s: float | None) -> None:
    assert parse_retry_after(stated) == wait_s


@given(st.text(max_size=200))
def test_a_reason_is_read_and_cut(stated: str) -> None:
    assert parse_reason(json.dumps({"reason": stated}).encode()) == stated[:REASON_CHARS]


@given(st.binary(max_size=200))
def test_any_bytes_are_a_body(body: bytes) -> None:
    assert isinstance(parse_reason(body), str)


@pytest.mark.parametrize("body", [b"[1]", b"{}", b'{"reason": 1}', b"[" * 200_000, b'"reason"'])
def test_response_without_a_reason_has_none(body: bytes) -> None:
    assert parse_reason(body) == ""
