"""The client span of a guarded HTTP call has its breaker and its result, by the real SDK."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import httpx
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from autoglm_throttle import BreakerSettings, Fallback
from autoglm_throttle.resilience.httpx import AsyncGuardTransport, GuardTransport, TransportRejected
from autoglm_throttle.testing import ManualThrottle, throttle_for_tests

PREFIX = "autoglm_throttle."


class Spans:
    """The spans round the calls of one client."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self._tracer = provider.get_tracer("test")

    def during(self, call: Callable[[], object], kind: SpanKind = SpanKind.CLIENT) -> dict[str, Any]:
        """Return the attributes that a span gets during a call."""
        with self._tracer.start_as_current_span("GET", kind=kind):
            call()
        return self.newest()

    def newest(self) -> dict[str, Any]:
        attributes: Mapping[str, Any] = self.exporter.get_finished_spans()[-1].attributes or {}
        return {name.removeprefix(PREFIX): value for name, value in attributes.items()}


def get(throttle: ManualThrottle, status: int = 200) -> Callable[[], object]:
    transport = GuardTransport(throttle, httpx.MockTransport(lambda _: httpx.Response(status)), name="models")
    return lambda: httpx.Client(transport=transport).get("http://models/")


def rejected(call: Callable[[], object]) -> Callable[[], object]:
    def run() -> None:
        with pytest.raises(TransportRejected):
            call()

    return run


def test_a_call_has_its_breaker() -> None:
    assert Spans().during(get(throttle_for_tests())) == {"breaker": "models"}


def test_a_rejected_call_has_its_cause() -> None:
    throttle, spans = throttle_for_tests(), Spans()
    throttle.feature("models", breaker=BreakerSettings(failures=1))
    assert spans.during(get(throttle, 503)) == {"breaker": "models"}
    assert spans.during(rejected(get(throttle))) == {"breaker": "models", "cause": "failures"}


def test_a_degraded_call_has_the_kind_of_its_fallback() -> None:
    throttle, spans = throttle_for_tests(), Spans()
    throttle.feature(
        "models",
        breaker=BreakerSettings(failures=1),
        fallback=Fallback(static=httpx.Response(200, text="sorry")),
    )
    spans.during(get(throttle, 503))
    wanted = {"breaker": "models", "fallback": "static", "cause": "failures"}
    assert spans.during(get(throttle)) == wanted


async def test_an_asynchronous_call_has_its_breaker() -> None:
    spans, inner = Spans(), httpx.MockTransport(lambda _: httpx.Response(200))
    transport = AsyncGuardTransport(throttle_for_tests(), inner)
    with spans._tracer.start_as_current_span("GET", kind=SpanKind.CLIENT):
        async with httpx.AsyncClient(transport=transport) as client:
            await client.get("http://models/path?key=secret")
    assert spans.newest() == {"breaker": "http://models"}


def test_a_span_of_another_kind_gets_nothing() -> None:
    assert Spans().during(get(throttle_for_tests()), SpanKind.SERVER) == {}


def test_without_opentelemetry_a_call_looks_for_no_span(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "opentelemetry.trace")
    assert Spans().during(get(throttle_for_tests())) == {}
