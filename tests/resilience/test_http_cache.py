"""Cached responses of a dependency, and the requests for which they are used."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.resilience.http.cache import HttpCache
from autoglm_throttle.resilience.http.caching_rules import CachedResponse, CacheRequest

URL = "http://vectors.test/near"


def request(method: str = "GET", url: str = URL, key: object = None, **headers: str) -> CacheRequest:
    return CacheRequest(method, url, tuple(headers.items()), key)


def cache(entries: int = 8, body_bytes: int = 100) -> HttpCache:
    return HttpCache(entries, body_bytes)


def body(found: CachedResponse | None) -> bytes | None:
    return None if found is None else found.answer.body


def test_cached_response_replaces_while_usable() -> None:
    kept = cache()
    kept.put(request(), 200, (), b"one", 0.0)
    assert body(kept.get(request(), 60.0, 60.0)) == b"one"
    assert kept.get(request(), 60.5, 60.0) is None


def test_response_too_old_for_one_caller_is_kept_for_another() -> None:
    kept = cache()
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
    kept = cache()
    kept.put(request(), 200, (), b"one", 0.0)
    assert kept.get(other, 0.0, 60.0) is None


def test_cached_get_serves_head() -> None:
    kept = cache()
    kept.put(request(accept="a"), 200, (("vary", "accept"),), b"one", 0.0)
    found = kept.get(request("HEAD", accept="a"), 60.0, 60.0)
    assert found is not None
    assert dict(found.answer.headers)["content-length"] == "3"
    assert kept.get(request("HEAD", accept="b"), 0.0, 60.0) is None
    assert kept.get(request("HEAD", accept="a"), 60.5, 60.0) is None
    assert kept.get(request("POST", accept="a"), 0.0, 60.0) is None


def test_cached_head_comes_first_and_never_serves_get() -> None:
    kept = cache()
    kept.put(request("HEAD"), 200, (("a", "head"),), b"", 0.0)
    assert kept.get(request(), 0.0, 60.0) is None
    kept.put(request(), 200, (("a", "get"),), b"one", 50.0)
    for now, whose in ((60.0, "head"), (60.5, "get")):
        found = kept.get(request("HEAD"), now, 60.0)
        assert found is not None
        assert dict(found.answer.headers)["a"] == whose


def test_cached_bytes_are_bounded() -> None:
    """Bodies, fields, URLs: the least recently used is evicted first; one above the limit is the only one."""
    urls = [URL + str(number) for number in range(3)]
    kept = HttpCache(8, 1000, max_stored_bytes=2 * (100 + len(urls[0]) + len("content-length100")))
    for url in urls[:2]:
        kept.put(request(url=url), 200, (), b"x" * 100, 0.0)
    assert len(kept) == 2
    kept.get(request(url=urls[0]), 0.0, 60.0)
    kept.put(request(url=urls[2]), 200, (), b"x" * 100, 0.0)
    assert [kept.get(request(url=url), 0.0, 60.0) is not None for url in urls] == [True, False, True]
    kept.put(request(url=urls[2]), 200, (("a", "b"),), b"x" * 100, 0.0)
    assert [kept.get(request(url=url), 0.0, 60.0) is not None for url in urls] == [False, False, True]
    kept.put(request(url=urls[1]), 200, (), b"x" * 1000, 0.0)
    assert [kept.get(request(url=url), 0.0, 60.0) is not None for url in urls] == [False, True, False]


def test_marks_of_variants_have_a_weight_too() -> None:
    kept = HttpCache(8, 1000, max_stored_bytes=500)
    for number in range(8):
        kept.put(request(url=URL + "x" * 200 + str(number)), 200, (("vary", "accept"),), b"", 0.0)
    assert len(kept) == 2


def test_cache_holds_64_mib_per_feature_by_default() -> None:
    kept = HttpCache(1024, 1 << 20)
    body = bytes(1 << 20)
    for number in range(70):
        kept.put(request(url=URL + str(number)), 200, (), body, 0.0)
    assert len(kept) == 63


def test_the_users_key_keeps_head_and_get_apart() -> None:
    kept = cache()
    kept.put(request("HEAD", key="mine"), 200, (), b"", 0.0)
    assert kept.get(request("GET", key="mine"), 0.0, 60.0) is None


def test_uncacheable_response_is_not_cached() -> None:
    kept = cache(body_bytes=3)
    kept.put(request(), 200, (("cache-control", "no-store"),), b"one", 0.0)
    kept.put(request(), 500, (), b"one", 0.0)
    kept.put(request(), 200, (), b"four", 0.0)
    assert len(kept) == 0
    kept.put(request(), 200, (), b"one", 0.0)
    assert len(kept) == 1


def test_the_younger_answer_stays_whichever_comes_later() -> None:
    kept = cache()
    kept.put(request(), 200, (), b"second", 10.0)
    kept.put(request(), 200, (), b"first, and slow", 5.0)
    assert body(kept.get(request(), 10.0, 60.0)) == b"second"
    kept.put(request(), 200, (("age", "30"),), b"old from a cache on the way", 11.0)
    assert body(kept.get(request(), 11.0, 60.0)) == b"second"
    kept.put(request(), 200, (), b"third", 12.0)
    assert body(kept.get(request(), 12.0, 60.0)) == b"third"


def test_the_oldest_goes_first() -> None:
    kept = cache(entries=2)
    for number in range(3):
        kept.put(request(url=f"{URL}/{number}"), 200, (), b"%d" % number, 0.0)
    assert [body(kept.get(request(url=f"{URL}/{number}"), 0.0, 60.0)) for number in range(3)] == [
        None,
        b"1",
        b"2",
    ]


def test_variants_are_cached_separately() -> None:
    kept = cache()
    vary = (("vary", "accept-language"),)
    german, french = request(**{"Accept-Language": "de"}), request(**{"accept-language": "fr"})
    kept.put(german, 200, vary, b"gut", 0.0)
    kept.put(french, 200, vary, b"bon", 0.0)
    assert body(kept.get(german, 0.0, 60.0)) == b"gut"
    assert body(kept.get(french, 0.0, 60.0)) == b"bon"
    assert kept.get(request(), 0.0, 60.0) is None
    assert len(kept) == 3


def test_changed_vary_field_invalidates_old_responses() -> None:
    kept = cache()
    requested = request(accept="a", range="b")
    kept.put(requested, 200, (("vary", "accept"),), b"by accept", 0.0)
    kept.put(requested, 200, (("vary", "range"),), b"by range", 1.0)
    assert body(kept.get(requested, 1.0, 60.0)) == b"by range"
    kept.put(requested, 200, (), b"by nothing", 2.0)
    assert body(kept.get(request(), 2.0, 60.0)) == b"by nothing"
    other = request(accept="other")
    kept.put(other, 200, (("vary", "accept"),), b"again", 3.0)
    assert kept.get(requested, 3.0, 60.0) is None


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
    kept = cache()
    kept.put(request("GET"), 200, (("vary", "accept"),), b"one", 0.0)
    kept.put(request("HEAD"), 200, (), b"", 0.0)
    kept.put(request(url=URL + "/other"), 200, (), b"other", 0.0)
    kept.invalidate(request(method, authorization="x"), status, 1.0)
    assert (kept.get(request("GET"), 1.0, 60.0) is None) is gone
    assert (kept.get(request("HEAD"), 1.0, 60.0) is None) is gone
    assert body(kept.get(request(url=URL + "/other"), 1.0, 60.0)) == b"other"


def test_variants_that_were_outdated_stay_so() -> None:
    kept = cache()
    vary = (("vary", "accept"),)
    kept.put(request(accept="a"), 200, vary, b"before", 0.0)
    kept.invalidate(request("POST"), 200, 1.0)
    kept.put(request(accept="b"), 200, vary, b"after", 2.0)
    assert kept.get(request(accept="a"), 2.0, 60.0) is None
    assert body(kept.get(request(accept="b"), 2.0, 60.0)) == b"after"


def test_its_repr_shows_how_full_it_is() -> None:
    kept = cache()
    kept.put(request(), 200, (), b"one", 0.0)
    kept.get(request(), 7.0, 60.0)
    assert repr(kept) == "<HttpCache <StaleCache 1/8, oldest 7 s>>"


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
    kept = cache(entries=4)
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
