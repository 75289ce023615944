"""Tenants behind one URL: no cached or shared response of one goes to another."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

import anyio
import httpx
import pytest
from anyio.lowlevel import checkpoint

from autoglm_throttle.resilience.fallback import Fallback
from autoglm_throttle.resilience.httpx import AsyncGuardTransport, GuardTransport
from autoglm_throttle.settings.groups.breaker import BreakerSettings
from tests.loops import run
from tests.resilience.httpx.guarded_calls import FACES, URL, Guarded, call

STALE = Fallback(stale=True)
ALWAYS = Fallback(stale=True, coalesce="always")
EVERYTHING = Fallback(stale=True, coalesce="always", key=lambda _: "the same")


class Tenant(NamedTuple):
    """Parts of a request that decide on its tenant, with the same URL."""

    host: str
    target: str
    certificate: str  # that of the inner transport

    def options(self) -> dict[str, Any]:
        return {"headers": {"host": self.host}, "extensions": {"target": self.target.encode()}}


def told(request: httpx.Request, certificate: str) -> str:
    target = request.extensions.get("target", b"/near").decode()
    return f"{request.headers['host']} {target} {certificate}"


@pytest.mark.parametrize("fallback", [STALE, EVERYTHING], ids=["url", "own key"])
@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize(
    "other",
    [
        {"headers": {"host": "b.test"}},
        {"extensions": {"target": b"/other"}},
        {"extensions": {"sni_hostname": "b.test"}},
    ],
)
def test_cached_response_is_of_the_same_address(other: dict[str, Any], face: str, fallback: Fallback) -> None:
    """FIELD 6: the answer of tenant A went to tenant B when the origin was down."""
    guarded = Guarded(BreakerSettings(failures=100), fallback)
    call(face, guarded, lambda _: httpx.Response(200, text="of a"))
    assert call(face, guarded, lambda _: httpx.Response(503)).text == "of a"
    assert call(face, guarded, lambda _: httpx.Response(503), **other).status_code == 503


@pytest.mark.parametrize("fallback", [STALE, EVERYTHING], ids=["url", "own key"])
def test_inner_transports_share_no_response(fallback: Fallback) -> None:
    """FIELD 6: two clients with two certificates use one origin; the first is gone when the other calls."""
    guarded = Guarded(BreakerSettings(failures=100), fallback)
    for status, text in ((200, "of a"), (503, "down")):
        inner = answering(status, text)
        with httpx.Client(transport=GuardTransport(guarded, inner)) as client:
            assert client.get(URL).text == text
        del inner, client
        gc.collect()


def answering(status: int, text: str) -> httpx.MockTransport:
    return httpx.MockTransport(lambda _: httpx.Response(status, text=text))


class Unhashable(httpx.BaseTransport):
    """An inner transport that cannot be a part of a key."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        raise TypeError("no hash")

    def __init__(self, status: int) -> None:
        self.status = status

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return httpx.Response(self.status, text="of a")


def test_equal_inner_transports_share_no_response() -> None:
    guarded = Guarded(BreakerSettings(failures=100), STALE)
    for status in (200, 503):
        with httpx.Client(transport=GuardTransport(guarded, Unhashable(status))) as client:
            assert client.get(URL).status_code == status


@pytest.mark.parametrize("fallback", [STALE, EVERYTHING], ids=["url", "own key"])
@pytest.mark.parametrize("face", FACES)
def test_response_with_a_cookie_is_not_kept(face: str, fallback: Fallback) -> None:
    """FIELD 6: the body beside a Set-Cookie was kept, without its field."""
    guarded = Guarded(BreakerSettings(failures=100), fallback)
    call(face, guarded, lambda _: httpx.Response(200, text="hello ann", headers={"set-cookie": "session=1"}))
    assert call(face, guarded, lambda _: httpx.Response(503)).status_code == 503


TENANTS = [
    Tenant(host, target, certificate)
    for host in ("a.test", "b.test")
    for target in ("/near", "/far")
    for certificate in ("ann", "bob")
]


class Origin:
    """Says to each request what it was told; up, down, or hanging until the others have gone on."""

    def __init__(self, drawn: random.Random) -> None:
        self.drawn = drawn

    def of(self, certificate: str) -> Callable[[httpx.Request], Coroutine[None, None, httpx.Response]]:
        async def answer(request: httpx.Request) -> httpx.Response:
            for _ in range(self.drawn.randrange(3)):
                await checkpoint()
            if self.drawn.random() < 0.4:
                return httpx.Response(503, text=told(request, certificate))
            return httpx.Response(200, text=told(request, certificate))

        return answer


@pytest.mark.slow
@pytest.mark.parametrize("fallback", [ALWAYS, EVERYTHING], ids=["url", "own key"])
def test_no_interleaving_gives_the_response_of_another(fallback: Fallback) -> None:
    """FIELD 6: 10,000 interleavings of tenants by Host, by target and by client certificate."""
    drawn = random.Random(6)
    degraded = 0

    async def task() -> None:
        nonlocal degraded
        origin = Origin(drawn)
        guarded = Guarded(BreakerSettings(failures=10_000), fallback)
        clients = {
            certificate: httpx.AsyncClient(
                transport=AsyncGuardTransport(
                    guarded, httpx.MockTransport(origin.of(certificate)), name="dep"
                )
            )
            for certificate in ("ann", "bob")
        }

        async def ask(tenant: Tenant) -> None:
            nonlocal degraded
            response = await clients[tenant.certificate].get(URL, **tenant.options())
            assert response.text == " ".join(tenant)
            degraded += "x-degraded" in response.headers

        for _ in range(10_000):
            async with anyio.create_task_group() as tasks:
                for tenant in drawn.choices(TENANTS, k=drawn.randrange(1, 4)):
                    tasks.start_soon(ask, tenant)

    run("asyncio", task)
    assert degraded > 1000
