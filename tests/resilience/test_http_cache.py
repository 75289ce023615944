"""Cached responses of a dependency, and the requests for which they are used."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.events import RateLimitedLogger
from autoglm_throttle.resilience.http.answer import Pairs
from autoglm_throttle.resilience.http.cache import CachedResponse, CacheRequest, ResponseCache
from autoglm_throttle.settings.groups.breaker import DegradationSettings

URL = "http://vectors.test/near"


def request(method: str = "GET", url: str = URL, key: object = None, **headers: str) -> CacheRequest:
    return CacheRequest(method, url, tuple(headers.items()), key)


class Kept:
    """A cache of responses at the times that a test sets."""

    def __init__(self, entries: int = 8, body_bytes: int = 100) -> None:
        self.now, self.max_stale_s = 0.0, 60.0
        self.settings = DegradationSettings(cache_entries=entries, cache_body_bytes=body_bytes)
        log = RateLimitedLogger("dep", lambda: self.now)
        self.cache = ResponseCache(None, self.settings, 60.0, lambda: self.now, log)

    def put(self, request: CacheRequest, status: int, headers: Pairs, body: bytes, now: float) -> None:
        self.now = now
        policy = self.cache.policy(request, status, headers, now)
        if policy is not None:
            policy.put(body)

    def get(self, request: CacheRequest, now: float, max_stale_s: float = 60.0) -> CachedResponse | None:
        self.now = now
        found = self.cache.find(request)
        return found if found is None or found.is_usable(now, max_stale_s) else None


def body(found: CachedResponse | None) -> bytes | None:
    return None if found is None else found.answer.body


def test_cached_response_replaces_while_usable() -> None:
    kept = Kept()
    kept.put(request(), 200, (), b"one", 0.0)
    assert body(kept.get(request(), 60.0, 60.0)) == b"one"
    assert kept.get(request(), 60.5, 60.0) is None


def test_response_too_old_for_one_caller_is_kept_for_another() -> None:
    kept = Kept()
    kept.put(request(), 200, (), b"one", 0.0)
    assert kept.get(request(), 10.0, 5.0) is None
    assert body(kept.get(request(), 10.0, 60.0)) == b"one"


@pytest.mark.parametrize(
    "other",
    [
        request(url=URL + "?q=2"),
        request(key="mine"),
        request(cookie="a=b"),
        request(authorization="x"),
        request(**{"x-api-key": "x"}),
        request(**{"x-forwarded-host": "other.test"}),
        request("POST"),
    ],
)
def test_cached_response_replaces_that_request_alone(other: CacheRequest) -> None:
    kept = Kept()
    kept.put(request(), 200, (), b"one", 0.0)
    assert kept.get(other, 0.0, 60.0) is None


def test_head_neither_fills_nor_uses_the_cache() -> None:
    kept = Kept()
    kept.put(request("HEAD"), 200, (), b"", 0.0)
    assert kept.get(request(), 0.0, 60.0) is None
    kept.put(request(), 200, (), b"one", 0.0)
    assert kept.get(request("HEAD"), 0.0, 60.0) is None


def test_uncacheable_response_is_not_cached() -> None:
    kept = Kept(body_bytes=3)
    kept.put(request(), 200, (("cache-control", "no-store"),), b"one", 0.0)
    kept.put(request(), 500, (), b"one", 0.0)
    kept.put(request(), 200, (), b"four", 0.0)
    assert kept.get(request(), 0.0) is None
    kept.put(request(), 200, (), b"one", 0.0)
    assert body(kept.get(request(), 0.0)) == b"one"


def test_the_younger_answer_stays_whichever_comes_later() -> None:
    kept = Kept()
    kept.put(request(), 200, (), b"second", 10.0)
    kept.put(request(), 200, (), b"first, and slow", 5.0)
    assert body(kept.get(request(), 10.0, 60.0)) == b"second"
    kept.put(request(), 200, (("age", "30"),), b"old from a cache on the way", 11.0)
    assert body(kept.get(request(), 11.0, 60.0)) == b"second"
    kept.put(request(), 200, (), b"third", 12.0)
    assert body(kept.get(request(), 12.0, 60.0)) == b"third"


def test_the_oldest_goes_first() -> None:
    kept = Kept(entries=2)
    for number in range(3):
        kept.put(request(url=f"{URL}/{number}"), 200, (), b"%d" % number, 0.0)
    assert [body(kept.get(request(url=f"{URL}/{number}"), 0.0, 60.0)) for number in range(3)] == [
        None,
        b"1",
        b"2",
    ]


def test_response_that_varies_answers_only_equal_fields() -> None:
    kept = Kept()
    vary = (("vary", "accept-language"),)
    german, french = request(**{"Accept-Language": "de"}), request(**{"accept-language": "fr"})
    kept.put(german, 200, vary, b"gut", 0.0)
    assert body(kept.get(german, 0.0, 60.0)) == b"gut"
    assert kept.get(french, 0.0, 60.0) is None
    assert kept.get(request(), 0.0, 60.0) is None
    kept.put(french, 200, vary, b"bon", 0.0)
    assert body(kept.get(french, 0.0, 60.0)) == b"bon"
    assert kept.get(german, 0.0, 60.0) is None


def test_changed_vary_field_invalidates_old_responses() -> None:
    kept = Kept()
    requested = request(accept="a", range="b")
    kept.put(requested, 200, (("vary", "accept"),), b"by accept", 0.0)
    kept.put(requested, 200, (("vary", "range"),), b"by range", 1.0)
    assert body(kept.get(requested, 1.0, 60.0)) == b"by range"
    kept.put(requested, 200, (), b"by nothing", 2.0)
    assert body(kept.get(request(), 2.0, 60.0)) == b"by nothing"


@pytest.mark.parametrize(
    ("method", "status", "gone"),
    [
        ("POST", 200, True),
        ("DELETE", 204, True),
        ("PUT", 303, True),
        ("POST", 400, False),
        ("POST", 500, False),
        ("OPTIONS", 200, False),
        ("GET", 200, False),
        ("GET", 304, False),
        ("GET", 404, True),
        ("GET", 410, True),
        ("GET", 503, False),
    ],
)
def test_invalidating_response_clears_the_cache(method: str, status: int, gone: bool) -> None:
    kept = Kept()
    kept.put(request("GET"), 200, (("vary", "accept"),), b"one", 0.0)
    kept.put(request(url=URL + "/other"), 200, (), b"other", 0.0)
    kept.put(request(method, authorization="x"), status, (), b"", 1.0)
    assert (kept.get(request("GET"), 1.0, 60.0) is None) is gone
    assert body(kept.get(request(url=URL + "/other"), 1.0, 60.0)) == b"other"


answers = st.tuples(
    st.sampled_from(["", "a", "b"]),
    st.sampled_from(["", "accept", "range", "accept, range"]),
    st.integers(0, 9),
    st.integers(0, 9),
)


@given(st.lists(answers, max_size=12), st.sampled_from(["", "a", "b"]))
def test_served_response_belongs_to_the_same_request(
    came: list[tuple[str, str, int, int]], accept: str
) -> None:
    """Found or not: whatever is given fits by the fields it varies by, and is as old as it says."""
    kept = Kept(entries=4)
    notified: dict[bytes, tuple[str, str, float]] = {}
    now = 0.0
    for number, (sent, vary, gap, aged) in enumerate(came):
        now += gap
        answer = b"%d" % number
        notified[answer] = (sent, vary, now - aged)
        kept.put(request(accept=sent), 200, (("vary", vary), ("age", str(aged))), answer, now)
        found = kept.get(request(accept=accept), now, 20.0)
        if found is not None:
            requested, varied, born = notified[found.answer.body]
            assert requested == accept or "accept" not in varied
            assert found.age_s(now) == now - born <= 20.0
