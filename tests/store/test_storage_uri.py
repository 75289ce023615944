"""Supported storage URIs, and the errors of the others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.settings.storage_uri import KNOWN, parse_storage_uri

GOOD = {
    "async+memory://": ("memory", None),
    "async+memcached://localhost:11211": ("memcached", "async-memcached"),
    "async+memcached://user:pa:ss@one:11211, two:65535": ("memcached", "async-memcached"),
    "async+mongodb://localhost": ("mongodb", "async-mongodb"),
    "async+mongodb://user:p@localhost": ("mongodb", "async-mongodb"),
    "async+mongodb://user:p@one:27017,two:27018/db?tls=true": ("mongodb", "async-mongodb"),
    "async+mongodb+srv://cluster.example.org/?retryWrites=true": ("mongodb+srv", "async-mongodb"),
    "async+dynamo://table": ("dynamo", None),
}

BAD = {
    "": "not a URI, for example async+memcached://HOST:PORT",
    "localhost:11211": "not a URI",
    "://localhost": "not a URI",
    "redis://localhost": "write redis://HOST:PORT into REDIS_URL",
    "async+redis://localhost:6379": "into REDIS_URL",
    "async+redis+sentinel://localhost:26379": "into REDIS_URL",
    "async+rediss://localhost:6379": "into REDIS_URL",
    "async+valkey://localhost:6379": "into REDIS_URL",
    "valkey+cluster://localhost:6379": "into REDIS_URL",
    "memcached://localhost:11211": "would block the event loop: write async+memcached://",
    "mongodb+srv://localhost": "write async+mongodb+srv://",
    "memcache://localhost:11211": "write async+memcached://",
    "postgres://localhost": "no such storage, for example",
    "async+memcache://localhost:11211": "did you mean async+memcached://",
    "async+mongo://localhost": "did you mean async+mongodb://",
    "async+memcached://": "a host is missing",
    "async+memcached://localhost": "each host needs its port",
    "async+memcached://one:11211,two": "each host needs its port",
    "async+memcached://one:11211,": "a host is missing",
    "async+memcached://one:0": "port is not 1 to 65535",
    "async+memcached://one:65536": "port is not 1 to 65535",
    "async+memcached://one:²": "port is not 1 to 65535",
    "async+mongodb://:27017": "a host is missing",
    "async+mongodb:///db": "a host is missing",
    "async+mongodb+srv://": "a host is missing",
}


@pytest.mark.parametrize("text", GOOD)
def test_supported_storage_uris(text: str) -> None:
    uri = parse_storage_uri(text)
    assert (uri.kind, uri.extra) == GOOD[text]
    assert uri.text == text


@pytest.mark.parametrize("text", BAD)
def test_unsupported_storage_uris(text: str) -> None:
    with pytest.raises(ValueError, match=r"\S") as refused:
        parse_storage_uri(text)
    assert BAD[text] in str(refused.value)


@given(
    scheme=st.sampled_from([*(f"async+{known}" for known in KNOWN), "memcached", "async+redis", "async+own"]),
    tail=st.sampled_from(["host", "host:11211", "", ":70000", "host:x"]),
)
def test_no_password_is_ever_shown(scheme: str, tail: str) -> None:
    try:
        said = repr(parse_storage_uri(f"{scheme}://user:hush@{tail}"))
    except ValueError as refused:
        said = str(refused)
    assert "hush" not in said


def test_memcached_takes_more_than_thirty_days_for_a_date() -> None:
    memcached = parse_storage_uri("async+memcached://localhost:11211")
    memcached.check_window(15 * 86_400)
    with pytest.raises(ValueError, match="up to 15 days"):
        memcached.check_window(15 * 86_400 + 1)
    parse_storage_uri("async+memory://").check_window(366 * 86_400)
