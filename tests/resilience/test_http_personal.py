"""Which requests may be one user's own, by the fields they carry."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.resilience.http.answer import Pairs
from autoglm_throttle.resilience.http.fields import (
    NON_IDENTIFYING,
    addressing_fields,
    is_private,
)

BROWSER = (
    ("Host", "shop.test"),
    ("User-Agent", "Mozilla/5.0"),
    ("Accept", "text/html"),
    ("Accept-Language", "de"),
    ("Accept-Encoding", "gzip, br, zstd"),
    ("DNT", "1"),
    ("Sec-GPC", "1"),
    ("Connection", "keep-alive"),
    ("Referer", "https://shop.test/"),
    ("Origin", "https://shop.test"),
    ("Upgrade-Insecure-Requests", "1"),
    ("Sec-Fetch-Dest", "document"),
    ("Sec-Fetch-Mode", "navigate"),
    ("Sec-CH-UA-Platform", '"Linux"'),
    ("If-None-Match", '"a"'),
    ("If-Modified-Since", "Sun, 06 Nov 1994 08:49:37 GMT"),
    ("Priority", "u=0, i"),
    ("Pragma", "no-cache"),
    ("Cache-Control", "max-age=0"),
    ("TE", "trailers"),
)
PROXY = (
    ("X-Forwarded-For", "192.0.2.1"),
    ("X-Forwarded-Host", "shop.test"),
    ("X-Forwarded-Proto", "https"),
    ("X-Real-IP", "192.0.2.1"),
    ("X-Request-ID", "1"),
    ("traceparent", "00-1-1-01"),
    ("Via", "1.1 edge"),
)


@pytest.mark.parametrize("headers", [(), BROWSER, PROXY, (("CONTENT-TYPE", "application/json"),)])
def test_common_client_fields_identify_no_user(headers: Pairs) -> None:
    assert not is_private(headers)


@pytest.mark.parametrize(
    "name",
    [
        "Authorization",
        "Cookie",
        "Cookie2",
        "Proxy-Authorization",
        "X-Api-Key",
        "api-key",
        "apikey",
        "X-Auth-Token",
        "X-Goog-Api-Key",
        "X-Amz-Security-Token",
        "X-CSRF-Token",
        "X-User",
        "X-Tenant-ID",
        "X-Forwarded-User",
        "X-Forwarded-Email",
        "X-Forwarded-Client-Cert",
        "X-Forwarded-Access-Token",
        "Forwarded",
        "From",
        "baggage",
        "Sec-WebSocket-Key",
        "Private-Token",
        "CF-Access-Jwt-Assertion",
    ],
)
def test_identifying_fields_are_private(name: str) -> None:
    assert is_private(((name, "x"),))
    assert is_private((*BROWSER, (name, ""), *PROXY))


@given(st.text("abcxyz-", min_size=1).filter(lambda name: not NON_IDENTIFYING.fullmatch(name)))
def test_unknown_field_is_private(name: str) -> None:
    assert is_private((("accept", "a"), (name, "x")))


def test_forwarded_host_is_a_part_of_the_target() -> None:
    assert addressing_fields(BROWSER) == ()
    assert addressing_fields(PROXY) == (("x-forwarded-host", "shop.test"), ("x-forwarded-proto", "https"))
    assert addressing_fields(tuple(reversed(PROXY))) == addressing_fields(PROXY)
