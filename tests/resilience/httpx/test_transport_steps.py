"""The time limits of the single steps of a synchronous call: the shorter of the caller's and the guard's."""

from __future__ import annotations

import httpx
import pytest

from autoglm_throttle.resilience.http.body import limit_steps
from autoglm_throttle.settings.groups.breaker import BreakerSettings
from tests.resilience.httpx.guarded_calls import URL, Guarded, Parts, call

STEPS = ("connect", "read", "write", "pool")


def limits(request: httpx.Request) -> list[float | None]:
    found: dict[str, float | None] = request.extensions.get("timeout", {})
    return [found.get(step) for step in STEPS]


@pytest.mark.parametrize(
    ("own", "timeout_s", "idle_s", "until_headers", "read_s"),
    [
        (5.0, 2.0, None, [2.0] * 4, 5.0),
        (5.0, 9.0, None, [5.0] * 4, 5.0),
        (5.0, None, 2.0, [5.0] * 4, 2.0),
        (5.0, None, 9.0, [5.0] * 4, 5.0),
        (5.0, 2.0, 3.0, [2.0] * 4, 3.0),
        (None, 2.0, None, [2.0] * 4, None),
        (None, None, 2.0, [None] * 4, 2.0),
        (None, None, None, [None] * 4, None),
    ],
)
def test_the_shorter_limit_counts(
    own: float | None,
    timeout_s: float | None,
    idle_s: float | None,
    until_headers: list[float | None],
    read_s: float | None,
) -> None:
    request = httpx.Request("GET", URL, extensions={"timeout": dict.fromkeys(STEPS, own)})
    limited, start_body = limit_steps(request, timeout_s, idle_s)
    assert limits(limited) == until_headers
    start_body()
    assert limits(limited) == [until_headers[0], read_s, *until_headers[2:]]
    assert limits(request) == [own] * 4


def test_a_request_without_limits_of_its_own_has_the_guards() -> None:
    assert limits(limit_steps(httpx.Request("GET", URL), 2.0, None)[0]) == [2.0] * 4


def test_the_body_has_its_own_limit_from_the_headers_on() -> None:
    seen: list[float | None] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(limits(request)[1])
        return httpx.Response(200, stream=Parts(lambda: seen.append(limits(request)[1]), b"fine"))

    call("sync", Guarded(BreakerSettings(timeout_s=2.0, stream_idle_s=3.0)), handler, timeout=7.0)
    assert seen == [2.0, 3.0]
