"""Target URLs: parsing, rejected values and the bytes of requests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.generator import TargetUrl
from autoglm_throttle.traffic.generator import target as target_module
from autoglm_throttle.traffic.generator.target import encoder
from autoglm_throttle.traffic.plan import Arrivals, LoadShape, PriorityMix, make_plan
from autoglm_throttle.traffic.request_source import PlannedRequest, RequestSource
from autoglm_throttle.types import Priority

HERE = TargetUrl(port=8000)


def head(target: TargetUrl, request: PlannedRequest | None = None) -> list[str]:
    return target.head(request or PlannedRequest(), Priority.LOW, "ann").decode().split("\r\n")


@pytest.mark.parametrize(
    ("url", "address", "base"),
    [
        ("http://example.test", "example.test", ""),
        ("http://example.test:8000/", "example.test:8000", ""),
        ("https://example.test/api/", "example.test", "/api"),
        ("https://example.test:80", "example.test:80", ""),
        ("HTTP://127.0.0.1:1/a/b", "127.0.0.1:1", "/a/b"),
        ("http://[::1]:8000", "[::1]:8000", ""),
    ],
)
def test_urls_are_read(url: str, address: str, base: str) -> None:
    target = TargetUrl.parse(url)
    assert (target.address, target.base) == (address, base)
    assert TargetUrl.parse(url, base="/other").base == "/other"


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("ftp://example.test", r"k6 \(https://k6.io\)"),
        ("socks5://example.test", "over TCP or TLS"),
        ("h2://example.test", r"HTTP/1\.1"),
        ("example.test:8000", "must begin with http:// or https://"),
        ("http://ann:secret@example.test", "authorization header"),
        ("http://example.test/#part", "must end with its path"),
        ("http://example.test/?a=b", "must end with its path"),
        ("http://:8000", "names no host"),
        ("http://example.test:0", r"port must be 1\.\.65535"),
        ("http://example.test:70000", "no URL"),
        ("http://[::1", "no URL"),
        ("http://example.test/a b", "printable ASCII"),
    ],
)
def test_invalid_url_is_rejected_without_its_secret(url: str, text: str) -> None:
    with pytest.raises(TrafficError, match=text) as refused:
        TargetUrl.parse(url)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "fault",
    [
        {"host": "a b"},
        {"base": "/x HTTP/1.1\r\nevil: 1"},
        {"base": "x"},
        {"scheme": "ws"},
        {"priority_header": "x:y"},
        {"identity_header": "x y"},
        {"cost_header": ""},
        {"headers": (("x y", "1"),)},
        {"headers": (("x", "1\r\nevil: 1"),)},
        {"headers": (("Content-Length", "5"),)},
        {"headers": (("transfer-encoding", "chunked"),)},
        {"port": 0},
        {"port": 65_536},
    ],
)
def test_targets_that_would_smuggle_bytes_are_rejected(fault: dict[str, Any]) -> None:
    with pytest.raises(TrafficError):
        replace(HERE, **fault)


def test_request_bytes_contain_target_and_fields() -> None:
    target = replace(HERE, base="/api", identity_header="X-Client", cost_header="x-cost")
    assert head(target, PlannedRequest(cost=2.5)) == [
        "POST /api/v1/predict HTTP/1.1",
        "host: 127.0.0.1:8000",
        "content-type: application/json",
        "x-priority: low",
        "x-client: ann",
        "x-cost: 2.5",
        "content-length: 2",
        "",
        "",
    ]


def test_optional_headers_are_omitted() -> None:
    assert not any(
        line.startswith(("x-", "content-length"))
        for line in head(HERE, PlannedRequest(method="GET", body=b"", priority=False))
    )
    assert "content-length: 0" in head(HERE, PlannedRequest(body=b""))


def test_target_fields_replace_request_fields_except_framing() -> None:
    recorded = PlannedRequest(
        headers=(
            ("accept", "a/b"),
            ("accept", "c/d"),
            ("content-length", "77"),
            ("host", "elsewhere"),
            ("transfer-encoding", "chunked"),
            ("x-priority", "high"),
            ("user-agent", "somebody"),
        )
    )
    target = replace(HERE, headers=(("User-Agent", "us"), ("Authorization", "Bearer x")))
    assert head(target, recorded)[1:-2] == [
        "host: 127.0.0.1:8000",
        "accept: a/b",
        "accept: c/d",
        "user-agent: us",
        "authorization: Bearer x",
        "x-priority: low",
        "content-length: 2",
    ]
    assert "x-priority: high" in head(HERE, replace(recorded, priority=False))


def test_target_fields_replace_generated_fields() -> None:
    stated = (
        ("X-Priority", "high"),
        ("Host", "inner.test"),
        ("x-client", "me"),
        ("cookie", "a"),
        ("cookie", "b"),
    )
    target = replace(HERE, identity_header="X-Client", cost_header="x-cost", headers=stated)
    assert head(target, PlannedRequest(headers=()))[1:-2] == [
        "x-priority: high",
        "host: inner.test",
        "x-client: me",
        "cookie: a",
        "cookie: b",
        "x-cost: 1",
        "content-length: 2",
    ]


@pytest.mark.parametrize(
    ("cost", "told"), [(1_234_567.0, "1234567"), (1.0, "1"), (0.1, "0.1"), (1234.56789, "1234.56789")]
)
def test_cost_is_sent_with_all_digits(cost: float, told: str) -> None:
    assert f"x-cost: {told}" in head(replace(HERE, cost_header="x-cost"), PlannedRequest(cost=cost))


def load() -> RequestSource:
    made = make_plan(
        LoadShape.parse("fixed:300:1"), Arrivals.UNIFORM, PriorityMix(clients=3, kinds=(1.0, 1.0)), seed=1
    )
    return RequestSource(
        made, (PlannedRequest(), PlannedRequest(body=b'{"tokens":9}')), ("ann", "bob", "eve")
    )


@pytest.mark.parametrize("kept_bytes", [0, 400, 1 << 20])
def test_cached_and_encoded_bytes_are_equal(kept_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_module, "CACHE_BYTES", kept_bytes)
    made, target = load(), replace(HERE, identity_header="x-client")
    encode = encoder(made, target)
    for index in [*range(300), *range(300)]:
        data = encode(index)
        request = made.requests[made.plan.kinds[index]]
        client = made.client(made.plan.clients[index])
        assert data == target.head(request, Priority(made.plan.priorities[index]), client) + request.body
    assert (encode(0) is encode(0)) == (kept_bytes > 0)
