"""Parts end with their throttle, begin with it, and belong to the process that uses it."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from autoglm_throttle import Fallback, Settings, Throttle, ThrottleMiddleware
from autoglm_throttle.resilience.http.answer import HttpAnswer
from autoglm_throttle.testing import FakeGpu
from tests.admission.forked import forked

SHARED: dict[str, Any] = {
    "redis_url": "redis://127.0.0.1:1",
    "breaker_shared": True,
    "gpu": "none",
    "key_secret": "0123456789abcdef",
}
"""Breakers in a store to which no connection can be opened."""

BREAKER_THREADS = "autoglm-throttle-breakers"
PATIENCE_S = 60.0


def breaker_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(BREAKER_THREADS)]


@pytest.fixture(autouse=True)
def _no_collection() -> Iterator[None]:
    """Only reference counting frees an object here."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def answer(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"live"})


async def fail(scope: Any, receive: Any, send: Any) -> None:
    raise RuntimeError("no")


async def statuses(app: ThrottleMiddleware, requests: int) -> list[int]:
    seen: list[int] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            seen.append(message["status"])

    for _ in range(requests):
        scope: dict[str, Any] = {
            "type": "http",
            "method": "GET",
            "path": "/",
            "root_path": "",
            "headers": [],
            "client": None,
        }
        await app(scope | {"query_string": b""}, receive, send)
    return seen


def test_dropped_middleware_frees_its_throttle_at_once() -> None:
    throttle = Throttle(gpu=FakeGpu())
    app = ThrottleMiddleware(answer, throttle=throttle)
    assert asyncio.run(statuses(app, 1)) == [200]
    gone = weakref.ref(throttle)
    del throttle, app
    assert gone() is None


def test_guard_of_a_dropped_throttle_starts_no_thread_again() -> None:
    throttle = Throttle(Settings(**SHARED))
    throttle.start()
    guard = throttle.guard("db")
    running = breaker_threads()
    assert running, "the guard was created after the start, and listens all the same"
    gone = weakref.ref(throttle)
    del throttle
    assert gone() is None
    for thread in running:
        thread.join(PATIENCE_S)
    guard.force_open()
    assert breaker_threads() == []


def test_first_guard_holds_no_lock_while_its_modules_are_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    throttle = Throttle(Settings(**SHARED))
    lock = throttle.admission.parts.settlement.lock
    held: list[bool] = []
    from autoglm_throttle.admission import factory

    original = factory.breaker_store

    def observed(*arguments: Any) -> Any:
        held.append(lock.is_held())
        return original(*arguments)

    monkeypatch.setattr(factory, "breaker_store", observed)
    throttle.guard("db")
    assert held == [False]
    throttle.stop()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_fallback_of_an_app_belongs_to_the_forked_child() -> None:
    throttle = Throttle(Settings(gpu="none"))
    throttle.feature("app", fallback=Fallback(static=HttpAnswer(200, (), b"sorry")))
    app = ThrottleMiddleware(fail, throttle=throttle, breaker="app")
    assert asyncio.run(statuses(app, 1)) == [200]

    def check() -> None:
        assert asyncio.run(statuses(app, 2)) == [200, 200]
        guards = throttle.snapshot().guards
        assert guards is not None
        assert sum(guards.degraded.values()) == 2

    forked(check)
