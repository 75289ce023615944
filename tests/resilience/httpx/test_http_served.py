"""Cached responses of a feature for HTTP clients."""

from __future__ import annotations

import httpx
import pytest

from autoglm_throttle.events import RateLimitedLogger
from autoglm_throttle.resilience.feature import Fallback
from autoglm_throttle.resilience.feature_executor import FeatureExecutor
from autoglm_throttle.resilience.http.answer import HttpAnswer
from autoglm_throttle.resilience.http.cache import HttpCache
from autoglm_throttle.resilience.http.caching_rules import CacheRequest
from autoglm_throttle.resilience.http.feature_cache import HttpFeatureCache
from autoglm_throttle.resilience.http.feature_executor import HttpFeatureExecutor
from autoglm_throttle.types import DegradationLevel, FallbackContext
from tests.resilience.httpx.guarded_calls import URL, Guarded, call, status


def served(guarded: Guarded) -> HttpFeatureExecutor:
    found = guarded.guard("dep").circuit.executor
    assert isinstance(found, FeatureExecutor)
    assert found.http is not None
    return found.http


def test_repr_shows_name_and_cache() -> None:
    guarded = Guarded(fallback=Fallback(stale=True))
    call("sync", guarded, status(200))
    shown = repr(served(guarded))
    assert shown.startswith(f"<HttpFeatureExecutor 'dep' <DegradationLevels {DegradationLevel.FULL.label}")
    assert shown.endswith("<HttpCache <StaleCache 1/8, oldest 0 s>>>")
    assert repr(served(Guarded(fallback=Fallback(static=1)))).endswith("no cache>")


def test_request_during_a_cache_change_misses_without_waiting() -> None:
    found: list[object] = []

    def clock() -> float:
        """Ask for the stored response amid the change that reads the time."""
        if requests:
            requests.pop()
            found.extend([cache.find(request), cache.is_unshareable(request)])
        return 1.0

    requests: list[bool] = []
    log = RateLimitedLogger("dep", lambda: 1.0)
    request = CacheRequest("GET", URL, ())
    cache = HttpFeatureCache(Fallback(stale=True), HttpCache(8, 1000), 60.0, clock, log)
    policy = cache.policy(request, 200, (("cache-control", "max-age=60"),), 1.0)
    assert policy is not None
    policy.put(b"stored")
    requests.append(True)
    assert cache.find(request) is not None
    assert found == [None, True]


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
