"""Header fields as values: the rows of the RFCs, and whatever a peer may send."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.resilience.http.fields import (
    MAX_SECONDS,
    age_s,
    body_bytes,
    date_field_s,
    directives,
    joined,
    parse_date_s,
    parse_seconds,
    retry_after_s,
)

DATE = "Sun, 06 Nov 1994 08:49:37 GMT"
DATED_S = 784111777.0


@pytest.mark.parametrize(
    ("text", "reports"),
    [
        ("", {}),
        ("max-age=60", {"max-age": "60"}),
        ("Max-Age=60, NO-STORE", {"max-age": "60", "no-store": ""}),
        ('max-age="60"', {"max-age": "60"}),
        (
            'private="set-cookie, max-age=9", max-age=5',
            {"private": "set-cookie, max-age=9", "max-age": "5"},
        ),
        (r'x="a\"b, no-store", y', {"x": r"a\"b, no-store", "y": ""}),
        ("max-age=, no-cache", {"max-age": "", "no-cache": ""}),
        ("max-age=60, max-age=5", {"max-age": "5"}),
        ("max-age=5, max-age=60", {"max-age": "5"}),
        ("max-age=9, max-age=10", {"max-age": "9"}),
        ("max-age=60, max-age=soon", {"max-age": "soon"}),
        (" ,, ;max-age=1 ; ", {"max-age": "1"}),
    ],
)
def test_directives(text: str, reports: dict[str, str]) -> None:
    assert directives([("Cache-Control", text)]) == reports


def test_directives_of_several_fields_are_one_list() -> None:
    fields = [("cache-control", "no-store"), ("other", "private"), ("CACHE-CONTROL", "max-age=1")]
    assert directives(fields) == {"no-store": "", "max-age": "1"}


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("007", 7),
        ("60", 60),
        ("2147483649", MAX_SECONDS),
        ("9" * 18, MAX_SECONDS),
        ("9" * 5000, MAX_SECONDS),
        ("", None),
        ("-1", None),
        ("1.5", None),
        ("\u0663", None),
        ("\u00b2", None),
        ("1 ", None),
    ],
)
def test_seconds(text: str, count: int | None) -> None:
    assert parse_seconds(text) == count


@pytest.mark.parametrize(
    ("values", "age"),
    [([], 0), (["7"], 7), (["7, 9"], 7), (["7", "9"], 7), (["x"], 0), (["x, 9"], 0), (["-3"], 0)],
)
def test_age_is_the_first_or_none(values: list[str], age: int) -> None:
    assert age_s([("Age", value) for value in values]) == age


@pytest.mark.parametrize(
    ("text", "wall"),
    [
        (DATE, DATED_S),
        ("Sunday, 06-Nov-94 08:49:37 GMT", DATED_S),
        ("Sun Nov  6 08:49:37 1994", DATED_S),
        ("Sun, 06 Nov 1994 08:49:37 -0000", DATED_S),
        ("0", None),
        ("-1", None),
        ("", None),
        ("Sun, 99 Nov 1994 08:49:37 GMT", None),
        ("Sun, 06 Nov 99999 08:49:37 GMT", None),
    ],
)
def test_three_formats_of_a_date(text: str, wall: float | None) -> None:
    assert parse_date_s(text) == wall
    assert date_field_s([("Expires", text)], "expires") == wall


def test_an_absent_field_is_not_an_empty_one() -> None:
    assert joined([], "vary") is None
    assert date_field_s([], "date") is None
    assert joined([("Vary", "")], "vary") == ""
    assert joined([("vary", " a"), ("x", "y"), ("Vary", "b ")], "vary") == "a, b"


@pytest.mark.parametrize(
    ("fields", "wait"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"Retry-After": " 7 "}, 7.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-7"}, None),
        ({"retry-after": DATE}, 60.0),
        ({"retry-after": DATE, "date": "Sun, 06 Nov 1994 08:49:27 GMT"}, 10.0),
        ({"retry-after": DATE, "date": "Sun, 06 Nov 1994 08:59:27 GMT"}, 0.0),
        ({"retry-after": DATE, "date": "never"}, 60.0),
    ],
)
def test_retry_after(fields: dict[str, str], wait: float | None) -> None:
    assert retry_after_s(fields.items(), DATED_S - 60) == wait


@pytest.mark.parametrize(
    ("method", "status", "fields", "count"),
    [
        ("GET", 200, {}, None),
        ("GET", 200, {"content-length": "12"}, 12),
        ("GET", 200, {"content-length": "0"}, 0),
        ("GET", 200, {"content-length": "12", "transfer-encoding": "chunked"}, None),
        ("GET", 200, {"content-length": "-1"}, None),
        ("GET", 200, {"content-length": "x"}, None),
        ("HEAD", 200, {"content-length": "12"}, 0),
        ("GET", 204, {}, 0),
        ("GET", 304, {"content-length": "12"}, 0),
    ],
)
def test_the_length_of_a_body(method: str, status: int, fields: dict[str, str], count: int | None) -> None:
    assert body_bytes(method, status, fields.items()) == count


@given(st.text() | st.from_regex(r"[A-Za-z]{3}, \d+ [A-Za-z]{3} \d+ \d+:\d+:\d+ [-+A-Z0-9]+"))
def test_nothing_that_a_peer_sends_raises(text: str) -> None:
    fields = [
        (name, text) for name in ("cache-control", "age", "expires", "date", "retry-after", "content-length")
    ]
    directives(fields)
    assert 0 <= age_s(fields) <= MAX_SECONDS
    date_field_s(fields, "expires")
    wait = retry_after_s(fields, 0.0)
    assert wait is None or wait >= 0
    assert (body_bytes("GET", 200, fields) or 0) >= 0
