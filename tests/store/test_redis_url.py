"""One URL for each topology, and errors that name the correct form."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.settings.groups.store import (
    RedisAddress,
    parse_redis_url,
)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("redis://cache", RedisAddress("single", tls=False, hosts=(("cache", 6379),))),
        (" redis://cache:6380/3 ", RedisAddress("single", tls=False, hosts=(("cache", 6380),), db=3)),
        ("redis://[::1]:7000", RedisAddress("single", tls=False, hosts=(("::1", 7000),))),
        ("redis://[::1]", RedisAddress("single", tls=False, hosts=(("::1", 6379),))),
        (
            "rediss://user:p%40ss%2F@cache/0?ssl_ca_certs=/etc/ca.pem&ssl_check_hostname=False&ssl_cert_reqs=none",
            RedisAddress(
                "single",
                tls=True,
                hosts=(("cache", 6379),),
                login=("user", "p@ss/"),
                options=(
                    ("ssl_ca_certs", "/etc/ca.pem"),
                    ("ssl_check_hostname", False),
                    ("ssl_cert_reqs", "none"),
                ),
            ),
        ),
        (
            "unix://:secret@/run/redis%20one.sock?db=2",
            RedisAddress(
                "single",
                tls=False,
                hosts=(),
                path="/run/redis one.sock",
                login=(None, "secret"),
                db=2,
            ),
        ),
        (
            "redis+sentinel://a,b:26380/my%2Dmaster/4?sentinel_username=s&sentinel_password=t",
            RedisAddress(
                "sentinel",
                tls=False,
                hosts=(("a", 26379), ("b", 26380)),
                service="my-master",
                db=4,
                sentinel_login=("s", "t"),
            ),
        ),
        (
            "rediss+cluster://u:p@a,b:7001/",
            RedisAddress("cluster", tls=True, hosts=(("a", 6379), ("b", 7001)), login=("u", "p")),
        ),
    ],
)
def test_forms(text: str, parts: RedisAddress) -> None:
    assert parse_redis_url(text) == parts


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "none of these schemes"),
        ("cache:6379", "none of these schemes"),
        ("s3cret://cache", "none of these schemes"),
        ("redis:", "none of these schemes"),
        ("redis://", "a host is missing"),
        ("redis://:6379", "empty host"),
        ("redis://a,b", "several hosts need redis+sentinel:// or redis+cluster://"),
        ("redis://a:0", "a port is 1 to 65535"),
        ("redis://a:65536", "invalid port number"),
        ("redis://a:x", "invalid port number"),
        ("redis://a::1", "invalid port number"),
        ("redis://::1", "empty host"),
        ("redis://[::1]7", "invalid IPv6 address"),
        ("redis://[::1", "invalid IPv6 address"),
        ("redis+sentinel://a,[::1/x", "invalid IPv6 address"),
        ("redis+sentinel://[a]],[b/x", "invalid IPv6 address"),
        ("redis+cluster://[::1,::2]", "empty host"),
        ("redis://a/x", "its path is no number of a database"),
        ("redis://a/-1", "its path is no number of a database"),
        ("redis://a/0/1", "too many parts"),
        ("redis://:p#w@a", "%23"),
        ("redis://:p/w@a", "%2F"),
        ("redis://:1/w?x@a", "%3F"),
        ("redis://a?db=1", "an option is not known after this scheme, no option is allowed"),
        ("redis://a?ssl_ca_certs=x", "an option is not known"),
        ("rediss://a?ssl_ca_certs=x&ssl_ca_certs=y", "an option is given twice"),
        ("rediss://a?ssl_ca_certs=", "?ssl_ca_certs= is empty"),
        ("rediss://a?ssl_cert_reqs=never", "?ssl_cert_reqs= is required, optional, none"),
        ("rediss://a?ssl_check_hostname=perhaps", "?ssl_check_hostname= is true or false"),
        ("rediss://a?socket_timeout=1", "allowed are: ssl_ca_certs"),
        ("unix://host/run/redis.sock", "after unix:// comes a path"),
        ("unix:///", "after unix:// comes a path"),
        ("redis+sentinel://a", "the name under which the sentinels know the primary is missing"),
        ("redis+sentinel:///name", "a host is missing"),
        ("redis+cluster://a/1", "a cluster has only database 0"),
    ],
)
def test_url_errors_name_problem_and_correct_form(text: str, what: str) -> None:
    with pytest.raises(ValueError, match=re.escape(what)) as fault:
        parse_redis_url(text)
    assert "s3cret" not in str(fault.value)


AWKWARD = st.text("/?#@:[]%,1", max_size=3)
PLAIN = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=20)


@given(
    scheme=st.sampled_from(["redis", "rediss", "redis+cluster", "redis+sentinel"]),
    before=AWKWARD,
    after=AWKWARD,
    rest=st.text(max_size=9),
)
def test_passwords_are_in_no_text(scheme: str, before: str, after: str, rest: str) -> None:
    try:
        url = parse_redis_url(
            f"{scheme}://user:{before}s3cret{after}@host{rest}/name?sentinel_password=s3cret"
        )
        shown = f"{url} {url!r}"
    except ValueError as fault:
        shown = str(fault)
    assert "s3cret" not in shown
