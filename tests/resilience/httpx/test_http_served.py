"""What a feature keeps for faces that know HTTP: across a fork, within itself, and in words."""

from __future__ import annotations

import httpx
import pytest

from autoglm_throttle.resilience.feature import Fallback
from autoglm_throttle.resilience.feature_executor import FeatureExecutor
from autoglm_throttle.resilience.http.answer import HttpAnswer
from autoglm_throttle.resilience.http.caching_rules import CacheRequest
from autoglm_throttle.resilience.http.feature_executor import HttpFeatureExecutor
from autoglm_throttle.types import DegradationLevel, FallbackContext
from tests.resilience.httpx.guarded_calls import URL, Guarded, call, status


def served(guarded: Guarded) -> HttpFeatureExecutor:
    found = guarded.guard("dep").circuit.executor
    assert isinstance(found, FeatureExecutor)
    assert found.http is not None
    return found.http


def kept(guarded: Guarded) -> int:
    return call("sync", guarded, status(503)).status_code


def test_repr_shows_name_and_cache() -> None:
    guarded = Guarded(fallback=Fallback(stale=True))
    call("sync", guarded, status(200))
    shown = repr(served(guarded))
    assert shown.startswith(f"<HttpFeatureExecutor 'dep' <DegradationLevels {DegradationLevel.FULL.label}")
    assert shown.endswith("<HttpCache <StaleCache 1/8, oldest 0 s>>>")
    assert repr(served(Guarded(fallback=Fallback(static=1)))).endswith("no cache>")


def test_fork_keeps_cache_and_gets_an_unlocked_lock() -> None:
    guarded = Guarded(fallback=Fallback(stale=True))
    call("sync", guarded, status(200))
    feature = served(guarded)
    feature._lock.acquire()
    feature._is_locked_here = True
    lock = feature._lock
    circuit = guarded.guard("dep").circuit
    assert isinstance(circuit.executor, FeatureExecutor)
    circuit.executor.reset_after_fork()
    assert feature._lock is not lock
    assert kept(guarded) == 200


def test_reentrant_call_misses_without_waiting() -> None:
    """As a finalizer does that the garbage collector runs there."""
    guarded = Guarded(fallback=Fallback(stale=True))
    call("sync", guarded, status(200))
    feature = served(guarded)
    seen: list[object] = []
    cache = feature._cache
    assert cache is not None

    class Within:
        body_bytes = 1000

        def get(self, *_: object) -> None:
            seen.append(feature._find(CacheRequest("GET", URL, ())))

    feature._cache = Within()  # type: ignore[assignment]
    feature._find(CacheRequest("GET", URL, ()))
    assert seen == [None]
    feature._cache = cache
    assert kept(guarded) == 200


def test_non_transport_features_serve_complete_responses_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    guarded = Guarded(fallback=Fallback(static=httpx.Response(200)))
    context = FallbackContext("dep", "error", None, ())
    assert served(guarded).answer(context, None) is None
    assert guarded.counted == []
    assert "static fallback of HTTP must give an HttpAnswer, not Response" in caplog.text
    answer = served(Guarded(fallback=Fallback(static=HttpAnswer()))).answer(context, None)
    assert answer is not None
    assert answer.value == HttpAnswer()


def test_request_uses_the_cache_only_if_one_exists() -> None:
    request = httpx.Request("GET", URL)
    assert served(Guarded(fallback=Fallback(static=1))).cache_request("GET", URL, (), request, None) is None
    assert (
        served(Guarded(fallback=Fallback(stale=True))).cache_request("GET", URL, (), request, None)
        is not None
    )
