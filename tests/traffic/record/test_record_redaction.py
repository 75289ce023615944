"""Redaction of recorded requests."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.record import Redaction
from autoglm_throttle.traffic.record import redaction as redactions
from autoglm_throttle.traffic.request_source import PlannedRequest


@pytest.mark.parametrize(
    ("target", "kept"),
    [
        ("/v1/predict", "/v1/predict"),
        ("/", "/"),
        ("", "/"),
        ("/a?b=c", "/a?*=*"),
        ("/a?b", "/a?*"),
        ("/a?b=c&d&page=2&&=x", "/a?*=*&*&page=2&&*=*"),
        ("/a?page=1;2", "/a?page=1&*"),
        ("/a?%70age=1", "/a?%70age=1"),
        ("/a?page=1#b", "/a?page=1"),
        ("/a?page=\u00e9 b", "/a?page=%C3%A9%20b"),
        ("https://user:pw@host:1/a?b=c", "/a?*=*"),
        ("https://user:pw@host:1/users/1#d", "/users/*"),
        ("https://user:pw@host", "/"),
        ("//user:pw@host/a", "/a"),
        ("//a/b", "//a/b"),
        ("HTTP:\\\\user:pw@host/a", "/a"),
        ("/a/http://user:pw@host/b", "/a/http://host/b"),
        ("/@a/b@c", "/@a/b@c"),
        ("user:pw@host:443", "*"),
        ("host.example:443", "host.example:443"),
        ("*", "*"),
        ("pw", "*"),
        ("/a#pw", "/a"),
        ("/a%23b", "/a%23b"),
        ("/a;jsessionid=pw/b;c", "/a;*/b;*"),
        ("/users;v=1/pw", "/users;*/*"),
        ("/a;b=\u00e9/\u00e9", "/a;*/%C3%A9"),
        ("/\u00e9", "/%C3%A9"),
        ("/a%2Fb", "/a%2Fb"),
        ("/users", "/users"),
        ("/users/1", "/users/*"),
        ("/users/1/", "/users/*/"),
        ("/users/1/orders/a%20b", "/users/*/orders/a%20b"),
        ("/users%2F1/orders", "/users/*"),
        ("/Users/1", "/Users/*"),
        ("/api/users/1", "/api/users/1"),
        ("/reset", "/reset"),
        ("/reset/1", "/reset/*"),
        ("/reset/1/2/", "/reset/*"),
        ("/a/b/c", "/a/*/c"),
        ("/a/b/d", "/a/b/d"),
    ],
)
def test_targets(target: str, kept: str) -> None:
    redaction = Redaction(keep_query=["page"], mask_paths=["/users/{id}", "/reset/*", "/a/{x}/c"])
    assert redaction.target_of(target) == kept
    assert redaction.target_of(kept) == kept


@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize(
    ("path", "root", "kept"),
    [
        ("http://me:pw@host/users/1", "", "/users/*"),
        ("/apihttp://me:pw@host/users/1", "/api", "/api/users/*"),
        ("/users/1#pw", "", "/users/*"),
        ("/a#pw", "", "/a"),
        ("/a;pw", "", "/a;*"),
    ],
)
def test_servers_pass_targets_unchanged(path: str, root: str, kept: str, raw: bool) -> None:
    redaction = Redaction(mask_paths=["/users/{id}"])
    assert redaction.target(path, path.encode() if raw else b"", b"", root) == kept


def test_a_pattern_may_begin_behind_the_root_of_the_app() -> None:
    redaction = Redaction(mask_paths=["/users/{id}"])
    assert redaction.target("/api/users/1", b"/api/users/1", root_path="/api") == "/api/users/*"
    assert redaction.target("/users/users/1", b"", root_path="/users") == "/users/*/*"


@given(st.text(max_size=40), st.binary(max_size=40), st.binary(max_size=40))
def test_recorded_targets_can_be_sent_again(path: str, raw: bytes, query: bytes) -> None:
    redaction = Redaction(keep_query=["a"], mask_paths=["/{x}/b", "/c/*"])
    kept = redaction.target("/" + path, raw and b"/" + raw, query)
    PlannedRequest(target=kept)
    PlannedRequest(target=redaction.target(path, raw))


@given(st.lists(st.tuples(st.sampled_from([b"accept", b"Accept", b"x-a"]), st.binary(max_size=20))))
def test_fields_that_are_kept_can_be_sent_again(headers: list[tuple[bytes, bytes]]) -> None:
    kept = Redaction().fields(headers)
    assert [name for name, _ in kept] == ["accept"] * sum(name != b"x-a" for name, _ in headers)
    PlannedRequest(headers=tuple(kept))


def test_only_a_known_priority_is_kept() -> None:
    redaction = Redaction(priority_header="X-Class")
    fields = [(b"x-class", b"high"), (b"X-Class", b"3"), (b"x-class", b"whatever"), (b"x-priority", b"high")]
    assert redaction.fields(fields) == [("x-class", "high"), ("x-class", "3"), ("x-class", "*")]


@pytest.mark.parametrize(
    "name",
    [
        *(
            "Authorization",
            "proxy-authorization",
            "COOKIE",
            "set-cookie",
            "x-api-key",
            " x-real-ip ",
            "x-key",
        ),
        *("API-Key", "x-goog-api-key", "x-auth-token", "x-amz-security-token", "cookie2", "true-client-ip"),
        *(
            "cf-connecting-ip",
            "x-client-ip",
            "x-original-forwarded-for",
            "x-auth",
            "x-session-id",
            "x-apikey",
        ),
    ],
)
def test_identity_headers_cannot_be_allowed(name: str) -> None:
    with pytest.raises(TrafficError, match="never"):
        Redaction(allow_headers=["x-model", name], identity_headers=["X-Key"])


def test_the_priority_may_have_any_name() -> None:
    redaction = Redaction(priority_header="x-token-class")
    fields = [(b"x-token-class", b"high"), (b"x-token-class", b"pw")]
    assert redaction.fields(fields) == [("x-token-class", "high"), ("x-token-class", "*")]


def test_a_field_can_be_left_out_later() -> None:
    redaction = Redaction(allow_headers=["x-user", "x-model"])
    fields = [(b"x-user", b"me"), (b"x-model", b"a")]
    assert len(redaction.fields(fields)) == 2
    redaction.disallow(" X-User")
    redaction.disallow("")
    assert redaction.fields(fields) == [("x-model", "a")]
    assert redaction.describe()["headers"][-2:] == ["x-priority", "x-model"]


@pytest.mark.parametrize("name", ["", "a b", "a:b", "\u00e9"])
def test_a_header_has_a_name(name: str) -> None:
    with pytest.raises(TrafficError, match="no header name"):
        Redaction(allow_headers=[name])


@pytest.mark.parametrize("pattern", ["", "/", "/users", "users/{id}", "/*/a", "/a b/{id}", "/a*/{b}"])
def test_a_pattern_masks_something(pattern: str) -> None:
    with pytest.raises(TrafficError, match="masks nothing"):
        Redaction(mask_paths=[pattern])


def test_cache_of_masked_paths_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redactions, "CACHE_ENTRIES", 3)
    redaction = Redaction()
    for n in range(10):
        fields = [(b"accept", b"%d" % n), (b"x-%d" % n, b"a"), (b"Accept", b"x" * 1000), (b"y" * 1000, b"a")]
        assert redaction.fields(fields) == [("accept", str(n)), ("accept", "x" * 1000)]
    assert len(redaction.cache) <= 3
    assert all(len(pairs) <= 3 for pairs in redaction.cache.values() if pairs is not None)
