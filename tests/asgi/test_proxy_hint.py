"""One private address with nearly all requests is an unconfigured proxy."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from autoglm_throttle.asgi.callers import RequestClassifier
from autoglm_throttle.asgi.identity_source import REQUESTS
from autoglm_throttle.asgi.routes import RouteTable
from autoglm_throttle.settings import Settings

FORWARDED = [(b"x-forwarded-for", b"8.8.8.8")]


def scope(peer: object, headers: Any = FORWARDED) -> dict[str, Any]:
    return {"type": "http", "headers": headers, "client": peer}


def callers(hints: list[str], **settings: Any) -> RequestClassifier:
    return RequestClassifier(Settings(**settings), RouteTable(), record_oddity=hints.append)


def reported_after(*peers: tuple[str, int]) -> list[int]:
    """Return the numbers of the requests at which a proxy was reported."""
    hints: list[str] = []
    tested = callers(hints)
    reported, number = [], 0
    for peer, times in peers:
        for _ in range(times):
            number += 1
            tested.demand(scope((peer, 5)))
            reported += [number] * len(hints)
            hints.clear()
    return reported


@pytest.mark.parametrize(
    "peer", ["10.0.0.1", "192.168.1.7", "172.17.0.1", "127.0.0.1", "fd00::1", "::1", "::ffff:10.0.0.1", ""]
)
def test_one_private_address_with_nearly_all_requests(peer: str) -> None:
    numbers = reported_after(("8.8.8.8", 50), ("8.8.4.4", 50), (peer, 900), (peer, 5000))
    assert numbers == [REQUESTS], "once, at the end"


@pytest.mark.parametrize(
    "peers",
    [
        [("8.8.8.8", 2000)],
        [("2606:4700::1", 2000)],
        [("testclient", 2000)],
        [("10.0.0.1", 899), ("8.8.8.8", 2000)],
        [("10.0.0.1", 500), ("10.0.0.2", 2000)],
        [("10.0.0.1", 999)],
    ],
)
def test_all_else_is_no_proxy(peers: list[tuple[str, int]]) -> None:
    assert not reported_after(*peers)


# FIELD section 3
@pytest.mark.parametrize(
    ("headers", "hinted"),
    [
        ([], []),
        ([(b"host", b"localhost")], []),
        ([(b"forwarded", b"for=8.8.8.8")], ["behind_proxy"]),
        ([(b"x-real-ip", b"8.8.8.8")], ["behind_proxy"]),
        ([(b"via", b"1.1 nginx")], ["behind_proxy"]),
    ],
)
def test_proxy_is_reported_with_a_forwarding_field_only(headers: Any, hinted: list[str]) -> None:
    hints: list[str] = []
    tested = callers(hints)
    for _ in range(REQUESTS + 1):
        tested.demand(scope(("127.0.0.1", 5), headers))
    assert hints == hinted


def test_nothing_is_kept_once_it_is_done() -> None:
    tested = callers([])
    for number in range(REQUESTS):
        assert tested._first_peers is not None
        tested.demand(scope((f"10.0.{number >> 8}.{number & 255}", 5)))
    assert tested._first_peers is None


def test_proxy_warning_names_the_setting(caplog: pytest.LogCaptureFixture) -> None:
    hints: list[str] = []
    tested = callers(hints)
    with caplog.at_level(logging.WARNING, "autoglm_throttle"):
        for _ in range(REQUESTS * 3):
            tested.demand(scope(("10.1.2.3", 5)))
    (record,) = caplog.records
    assert "the service is behind a proxy" in record.getMessage()
    assert "AUTOGLM_THROTTLE_TRUSTED_PROXIES" in record.getMessage()
    assert "10.1.2.3" not in record.getMessage()
    assert hints == ["behind_proxy"]
    assert tested._first_peers is None, "after that it costs nothing"


@pytest.mark.parametrize(
    ("peer", "settings"),
    [
        (("10.1.2.3", 5), {"trusted_proxies": "10.0.0.0/8"}),
        (("10.1.2.3", 5), {"trusted_proxies": "unix"}),
        (("8.8.8.8", 5), {}),
    ],
)
def test_no_warning_where_none_is_due(
    peer: object, settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    hints: list[str] = []
    tested = callers(hints, **settings)
    for _ in range(REQUESTS + 1):
        tested.demand(scope(peer))
    assert not caplog.records
    assert not hints


@pytest.mark.parametrize("peer", [None, (), (None, 1), (7, 1), "x", ([], 1)])
def test_a_malformed_peer_breaks_nothing(peer: object) -> None:
    tested = callers([])
    for _ in range(REQUESTS + 1):
        assert tested.demand(scope(peer)).user
