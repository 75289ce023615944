"""Which answers are kept and how long each is good for: RFC 9111 and RFC 5861, row by row."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.resilience.http.answer import HttpAnswer
from autoglm_throttle.resilience.http.cache import (
    CachedResponse,
    CacheRequest,
    cached_response,
    lifetime_s,
    mark_degraded,
    stale_allowance_s,
    storable,
    varies_by,
)
from autoglm_throttle.types import FallbackKind

URL = "http://vectors.test/near?q=1"
DATE = ("date", "Sun, 06 Nov 1994 08:49:37 GMT")
MINUTE_LATER = "Sun, 06 Nov 1994 08:50:37 GMT"


def request(method: str = "GET", key: object = None, **headers: str) -> CacheRequest:
    return CacheRequest(
        method, URL, tuple((name.replace("_", "-"), value) for name, value in headers.items()), key
    )


def control(text: str) -> tuple[tuple[str, str], ...]:
    return (("Cache-Control", text),)


@pytest.mark.parametrize(
    ("requested", "keepable"),
    [
        (request(), True),
        (request("HEAD"), False),
        (request("POST"), False),
        (request("OPTIONS"), False),
        (request(Authorization="Bearer x"), False),
        (request(cookie="a=b"), False),
        (request(X_Api_Key="x"), False),
        (request(X_Nobody_Knows="x"), False),
        (request(accept="a", X_Forwarded_For="192.0.2.1", X_Forwarded_Host="a.test"), True),
        (request(key="mine", Authorization="Bearer x", cookie="a=b", X_Api_Key="x"), True),
        (request("POST", key="mine"), False),
        (request(content_length="2"), False),
        (request(content_length="0"), True),
        (request(transfer_encoding="chunked"), False),
        (request(key="mine", content_length="2"), True),
        (request(cache_control="no-store"), False),
        (request(cache_control="no-cache"), False),
        (request(key="mine", cache_control="no-cache"), False),
        (request(cache_control="max-age=0"), True),
    ],
)
def test_which_requests_have_an_answer_to_keep(requested: CacheRequest, keepable: bool) -> None:
    assert requested.is_cacheable is keepable
    assert storable(requested, 200, ()) is keepable


@pytest.mark.parametrize(
    ("status", "headers", "may"),
    [
        (200, (), True),
        (200, control("public, max-age=60"), True),
        (200, control("no-store"), False),
        (200, control("max-age=60, Private"), False),
        (200, control('private="x-user"'), False),
        (200, control("no-cache"), False),
        (200, control('no-cache="x-user"'), False),
        (200, control("must-revalidate"), True),
        (200, (("Vary", "*"),), False),
        (200, (("Vary", "accept, *"),), False),
        (200, (("Vary", "accept"),), True),
        (200, (("bad name", "x"),), False),
        (201, (), False),
        (203, (), False),
        (206, (), False),
        (304, (), False),
        (404, (), False),
        (500, (), False),
    ],
)
def test_cacheable_responses(status: int, headers: tuple[tuple[str, str], ...], may: bool) -> None:
    assert storable(request(), status, headers) is may


@pytest.mark.parametrize(
    ("headers", "lifetime"),
    [
        ((), 0),
        (control("max-age=60"), 60),
        (control("max-age=60, s-maxage=5"), 5),
        (control("max-age=soon"), 0),
        (control("max-age"), 0),
        ((DATE, ("expires", MINUTE_LATER)), 60),
        ((DATE, ("expires", MINUTE_LATER), *control("max-age=5")), 5),
        ((DATE, ("expires", "0")), 0),
        ((DATE, ("expires", "Sun, 06 Nov 1994 08:00:00 GMT")), 0),
        ((("expires", MINUTE_LATER),), 0),
    ],
)
def test_the_lifetime_of_an_answer(headers: tuple[tuple[str, str], ...], lifetime: int) -> None:
    assert lifetime_s(headers) == lifetime


@pytest.mark.parametrize(
    ("text", "beyond"),
    [
        ("", None),
        ("max-age=60", None),
        ("stale-if-error=600", 600),
        ("stale-if-error=soon", 0),
        ("stale-if-error", 0),
        ("must-revalidate", 0),
        ("proxy-revalidate", 0),
        ("must-revalidate, stale-if-error=600", 0),
        ("proxy-revalidate, stale-if-error=600", 0),
        ("s-maxage=5", 0),
        ("s-maxage=5, stale-if-error=600", 600),
    ],
)
def test_how_long_an_answer_lets_itself_be_used_beyond_that(text: str, beyond: int | None) -> None:
    assert stale_allowance_s(control(text)) == beyond


@pytest.mark.parametrize(
    ("text", "last_s"),
    [
        ("", 30),
        ("max-age=60", 90),
        ("max-age=60, stale-if-error=5", 65),
        ("max-age=60, stale-if-error=500", 560),
        ("max-age=60, must-revalidate", 60),
        ("max-age=60, s-maxage=20", 20),
    ],
)
def test_the_last_instant_of_an_answer(text: str, last_s: int) -> None:
    entry = cached_response(request(), control(text), b"", 1000.0)
    assert entry.is_usable(1000.0 + last_s, max_stale_s=30.0)
    assert not entry.is_usable(1000.0 + last_s + 0.25, max_stale_s=30.0)


def test_the_age_upstream_counts_against_the_limit() -> None:
    entry = cached_response(request(), (("age", "40"), *control("max-age=60")), b"", 0.0)
    assert entry.is_usable(20.0, 0.0)
    assert not entry.is_usable(20.25, 0.0)


def test_connection_and_single_use_fields_are_not_cached() -> None:
    headers = (
        ("Connection", "close, X-Hop"),
        ("X-Hop", "1"),
        ("Transfer-Encoding", "chunked"),
        ("Age", "3"),
        ("Warning", "110"),
        ("X-Degraded", "stale"),
        ("Content-Encoding", "gzip"),
        ("ETag", '"a"'),
    )
    assert cached_response(request(), headers, b"12345", 0.0).answer == HttpAnswer(
        200, [("Content-Encoding", "gzip"), ("ETag", '"a"'), ("content-length", "5")], b"12345"
    )


def test_served_response_carries_age_and_cause() -> None:
    entry = cached_response(request(), (("age", "7"), ("a", "b")), b"x", 100.0)
    assert mark_degraded(entry.with_age(105.9), FallbackKind.STALE, "failures") == HttpAnswer(
        200,
        [("a", "b"), ("content-length", "1"), ("age", "12"), ("x-degraded", "stale; cause=failures")],
        b"x",
    )


def test_other_fallback_names_itself() -> None:
    assert mark_degraded(HttpAnswer(204), FallbackKind.STATIC, "load").headers == (
        ("x-degraded", "static; cause=load"),
    )


@pytest.mark.parametrize(
    ("headers", "names"),
    [
        ((), ()),
        ((("vary", ""),), ()),
        ((("Vary", "Accept-Language, Accept"),), ("accept", "accept-language")),
        ((("Vary", "accept"), ("vary", "ACCEPT, x")), ("accept", "x")),
        ((("vary", "*"),), None),
    ],
)
def test_vary_fields_of_a_response(
    headers: tuple[tuple[str, str], ...], names: tuple[str, ...] | None
) -> None:
    assert varies_by(headers) == names


def test_response_fits_requests_with_the_same_vary_fields() -> None:
    stored = cached_response(request(Accept="a"), (("vary", "accept, x"),), b"", 0.0)
    assert stored.fits(request(accept=" a", other="b"))
    others = (request(), request(accept=""), request(accept="b"), request(accept="a", x=""))
    assert not any(stored.fits(other) for other in others)


def test_user_key_replaces_method_and_url() -> None:
    assert request(key="mine").base_key == CacheRequest("GET", "http://other.test/", (), "mine").base_key
    assert request(key=URL).base_key != request().base_key
    assert request(key=(URL, ())).base_key != request().base_key


def test_forwarded_host_separates_requests() -> None:
    assert request(X_Forwarded_Host="evil.test").base_key != request().base_key
    assert (
        request(X_Forwarded_Host="a.test").base_key == request(x_forwarded_host="a.test", accept="b").base_key
    )


lists = st.lists(
    st.sampled_from(
        ["max-age=9", "s-maxage=3", "stale-if-error=5", "must-revalidate", "proxy-revalidate", "public"]
    )
).map(", ".join)
gaps = st.integers(0, 80).map(lambda n: n / 4)


@given(lists, st.integers(0, 20), st.lists(gaps, min_size=1), st.integers(0, 20))
def test_the_age_is_honest_and_never_falls(
    text: str, aged: int, steps: list[float], max_stale_s: int
) -> None:
    """Whole seconds of upstream's age and of every second since the request; never past the limit again."""
    entry = cached_response(request(), (("age", str(aged)), *control(text)), b"", 50.0)
    now, before, was_usable = 50.0, -1, True
    for step in steps:
        now += step
        given_headers = dict(entry.with_age(now).headers)
        age = int(given_headers["age"])
        assert age <= aged + (now - 50.0) < age + 1
        assert age >= before
        usable = entry.is_usable(now, max_stale_s)
        assert was_usable or not usable
        assert not usable or age <= 9 + max(5, max_stale_s)
        assert not (usable and "revalidate" in text) or age <= 9
        before, was_usable = age, usable


def test_clock_stepping_back_rejuvenates_nothing() -> None:
    assert CachedResponse(HttpAnswer(), (), 100.0, 7, 0, None).age_s(40.0) == 7
