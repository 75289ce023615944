"""Fallbacks of a transport that fail or are cancelled: the original result is returned."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel
import httpx
import pytest

from autoglm_throttle.resilience.fallback import Fallback
from autoglm_throttle.resilience.http.answer import HttpAnswer
from autoglm_throttle.resilience.httpx import AsyncGuardTransport
from autoglm_throttle.types import FallbackContext
from tests.loops import run
from tests.resilience.httpx.guarded_calls import FACES, URL, Guarded, Parts, call, raising, status

faces = pytest.mark.parametrize("face", FACES)

STATIC = HttpAnswer(200, {"content-type": "text/plain"}, b"static")


def dynamic(value: object) -> Fallback:
    return Fallback(dynamic=lambda _: value)


@pytest.mark.parametrize("fallback", [Fallback(static={"a": 1}), Fallback(static=None), dynamic("text")])
@faces
def test_non_http_results_leave_the_cache_unchanged(
    face: str, fallback: Fallback, caplog: pytest.LogCaptureFixture
) -> None:
    guarded = Guarded(fallback=fallback)
    response = call(face, guarded, status(503))
    assert (response.status_code, response.content) == (503, b"said")
    assert "x-degraded" not in response.headers
    cut = httpx.ReadError("cut")
    with pytest.raises(httpx.ReadError) as caught:
        call(face, guarded, raising(cut))
    assert caught.value is cut
    assert guarded.counted == []
    assert len(caplog.records) == 1
    assert "must give an HttpAnswer or a Response, not" in caplog.text


@pytest.mark.parametrize("face", ["asyncio", "trio"])
def test_the_same_of_one_that_is_waited_for(face: str) -> None:
    async def text(_: FallbackContext) -> str:
        return "text"

    guarded = Guarded(fallback=Fallback(dynamic=text, static=STATIC))
    assert call(face, guarded, status(503)).content == b"static"
    assert [fallback_kind.value for _, fallback_kind, _ in guarded.counted] == ["static"]


@faces
def test_raising_fallback_is_skipped(face: str, caplog: pytest.LogCaptureFixture) -> None:
    def broken(_: FallbackContext) -> HttpAnswer:
        raise LookupError("nothing there")

    guarded = Guarded(fallback=Fallback(dynamic=broken, static=STATIC))
    assert call(face, guarded, raising(httpx.ReadError("cut"))).content == b"static"
    guarded = Guarded(fallback=Fallback(dynamic=broken))
    cut = httpx.ReadError("cut")
    with pytest.raises(httpx.ReadError) as caught:
        call(face, guarded, raising(cut))
    assert caught.value is cut
    assert "LookupError" in "".join(cut.__notes__)
    assert call(face, guarded, status(503)).status_code == 503
    assert "dynamic fallback has raised LookupError" in caplog.text


class Waiting(Parts):
    """A body whose closing takes a moment, in which a cancellation would end it."""

    async def aclose(self) -> None:
        await anyio.lowlevel.checkpoint()
        await super().aclose()


def test_caller_leaving_during_fallback_leaks_no_response(backend: str) -> None:
    body = Waiting(b"unread")
    begun: list[FallbackContext] = []

    async def slow(context: FallbackContext) -> Any:
        begun.append(context)
        await anyio.sleep_forever()

    async def task() -> None:
        guarded = Guarded(fallback=Fallback(dynamic=slow))
        inner = httpx.MockTransport(lambda _: httpx.Response(503, stream=body))
        transport = AsyncGuardTransport(guarded, inner, name="dep")
        async with httpx.AsyncClient(transport=transport) as client, anyio.create_task_group() as tasks:
            tasks.start_soon(client.get, URL)
            await anyio.wait_all_tasks_blocked()
            assert body.closed == 0
            tasks.cancel_scope.cancel()

    run(backend, task)
    assert len(begun) == 1
    assert body.closed == 1


@faces
def test_a_fallback_that_is_interrupted_leaves_no_open_answer(face: str) -> None:
    def interrupted(_: FallbackContext) -> HttpAnswer:
        raise KeyboardInterrupt

    body = Parts(b"unread")
    guarded = Guarded(fallback=Fallback(dynamic=interrupted))
    with pytest.raises(KeyboardInterrupt):
        call(face, guarded, lambda _: httpx.Response(503, stream=body))
    assert body.closed == 1
    with pytest.raises(KeyboardInterrupt):
        call(face, guarded, raising(httpx.ReadError("cut")))
