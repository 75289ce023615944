"""The decision on a request stands on its server span, by the real SDK and the real instrumentation."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from autoglm_throttle import ThrottleMiddleware
from autoglm_throttle.asgi.tracing import TracedApp, decision_attributes
from autoglm_throttle.resilience.fallback import Fallback
from autoglm_throttle.testing import ManualThrottle, throttle_for_tests
from tests.asgi.guarded_app import SORRY
from tests.asgi.queued_clients import Client, settled, with_places
from tests.asgi.run_app import App, http_scope, lifespan, send_scope, websocket_scope

NAMES = {
    f"autoglm_throttle.{name}" for name in ("decision", "reason", "priority", "wait_s", "factor", "tier")
}


class DecisionProcessor(SpanProcessor):
    """The span processor of the documentation."""

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        if span.kind is SpanKind.SERVER:
            span.set_attributes(decision_attributes())


class Spans:
    """The spans of a provider that is the global one during a test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(DecisionProcessor())
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        monkeypatch.setattr(trace, "get_tracer_provider", lambda: self.provider)

    def around(self, app: App) -> App:
        """Wrap an app in the middleware of OpenTelemetry."""
        made: App = OpenTelemetryMiddleware(app, tracer_provider=self.provider)
        return made

    def of_kind(self, kind: SpanKind = SpanKind.SERVER) -> Sequence[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.kind is kind]

    def named(self, name: str) -> Sequence[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def decisions(self) -> Counter[tuple[object, object]]:
        """Count the decisions and reasons of the server spans; each of them has exactly one."""
        return Counter((attribute(span, "decision"), attribute(span, "reason")) for span in self.of_kind())


def attribute(span: ReadableSpan, name: str) -> Any:
    return (span.attributes or {}).get(f"autoglm_throttle.{name}")


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Spans:
    return Spans(monkeypatch)


async def work(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.close"})
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"ok"})


def throttled(throttle: ManualThrottle, app: App = work, **more: Any) -> ThrottleMiddleware:
    return ThrottleMiddleware(app, throttle=throttle, **more)


def user(name: int, **more: Any) -> dict[str, Any]:
    return http_scope(client=(f"198.51.100.{name}", 1), **more)


async def test_each_of_1000_requests_has_exactly_one_decision(spans: Spans) -> None:
    throttle = throttle_for_tests(user_limit="40/minute", exempt_paths="/healthz", rate_low_rps=1)
    app = spans.around(throttled(throttle))
    for number in range(800):
        await send_scope(app, user(number % 10))
    for number in range(100):
        await send_scope(app, user(number, path="/healthz"))
    for number in range(100):
        await send_scope(app, user(100 + number, headers=[(b"x-priority", b"low")]))
    counts = spans.decisions()
    snapshot = throttle.snapshot()
    requests: Counter[tuple[object, object]] = Counter()
    for (_, decision, reason), count in snapshot.requests.items():
        requests[decision, reason.value] += count
    assert +requests + Counter({("exempt", "ok"): snapshot.exempt}) == counts
    assert counts.total() == 1000
    assert {decision for decision, _ in counts} == {"admitted", "limited", "exempt"}
    assert counts["limited", "user"] == 400


async def test_inside_the_span_of_an_admitted_request_has_all_attributes(spans: Spans) -> None:
    await send_scope(spans.around(throttled(throttle_for_tests())), http_scope())
    (span,) = spans.of_kind()
    found = {name: value for name, value in (span.attributes or {}).items() if name in NAMES}
    assert found == {
        "autoglm_throttle.decision": "admitted",
        "autoglm_throttle.reason": "ok",
        "autoglm_throttle.priority": "mid",
        "autoglm_throttle.wait_s": 0.0,
        "autoglm_throttle.factor": 1.0,
        "autoglm_throttle.tier": 1.0,
    }
    assert not spans.of_kind(SpanKind.CLIENT)


async def test_outside_a_span_processor_adds_the_attributes(spans: Spans) -> None:
    throttle = throttle_for_tests(user_limit="1/minute", exempt_paths="/healthz")
    app = throttled(throttle, spans.around(work))
    for path in ("/", "/healthz", "/"):
        await asyncio.create_task(send_scope(app, http_scope(path=path)))  # as a server: a task for each
    # The last request is rejected before a span is started.
    assert spans.decisions() == {("admitted", "ok"): 1, ("exempt", "ok"): 1}
    assert set(spans.of_kind()[0].attributes or {}) >= NAMES
    assert decision_attributes() == {}


async def test_overload_is_shed_with_its_reason(spans: Spans) -> None:
    throttle = throttle_for_tests(policy="tiers")
    throttle.gpu.utilization_pct = 99
    throttle.tick(3)
    await send_scope(spans.around(throttled(throttle)), http_scope())
    assert spans.decisions() == {("shed", "gpu"): 1}
    (span,) = spans.of_kind()
    assert (attribute(span, "factor"), attribute(span, "wait_s")) == (0.0, None)


async def test_answer_of_a_fallback_is_degraded(spans: Spans) -> None:
    throttle = throttle_for_tests(policy="tiers")
    throttle.feature("app", fallback=Fallback(static=SORRY))
    app = spans.around(throttled(throttle, breaker="app"))
    throttle.gpu.utilization_pct = 99
    throttle.tick(3)
    await send_scope(app, http_scope())
    assert spans.decisions() == {("degraded", "gpu"): 1}


async def test_open_breaker_is_shed(spans: Spans) -> None:
    async def fail(*_: object) -> None:
        raise RuntimeError

    throttle = throttle_for_tests()
    throttle.guard("app", failures=1)
    app = spans.around(throttled(throttle, fail, breaker="app"))
    with pytest.raises(RuntimeError):
        await send_scope(app, http_scope())
    await send_scope(app, http_scope())
    assert spans.decisions() == {("admitted", "ok"): 1, ("shed", "breaker"): 1}


async def test_websocket_has_its_decision(spans: Spans) -> None:
    await send_scope(spans.around(throttled(throttle_for_tests())), websocket_scope())
    assert spans.decisions() == {("admitted", "ok"): 1}


async def queued(spans: Spans, wait_s: float, **settings: Any) -> None:
    """Send a request that waits so long for the only slot."""
    throttle, go = with_places(1, **settings), asyncio.Event()

    async def held(scope: Any, receive: Any, send: Any) -> None:
        await go.wait()
        await work(scope, receive, send)

    app = spans.around(throttled(throttle, held))
    first, second = (asyncio.create_task(Client(app).run()) for _ in range(2))
    await settled()
    throttle.clock.advance(wait_s)
    go.set()
    await asyncio.gather(first, second)


async def test_wait_span_is_as_long_as_the_wait(spans: Spans) -> None:
    await queued(spans, 0.25, trace_wait=True)
    (wait,) = spans.named("autoglm_throttle.wait")
    (server,) = (span for span in spans.of_kind() if attribute(span, "wait_s") == 0.25)
    assert wait.end_time is not None
    assert wait.start_time is not None
    assert wait.end_time - wait.start_time == 250_000_000
    assert [event.name for event in wait.events] == ["turn"]
    assert wait.parent is not None
    assert wait.parent.span_id == server.context.span_id


@pytest.mark.parametrize(("wait_s", "trace_wait"), [(0.25, False), (0.0009, True)])
async def test_without_setting_or_wait_there_is_no_wait_span(
    spans: Spans, wait_s: float, trace_wait: bool
) -> None:
    await queued(spans, wait_s, trace_wait=trace_wait)
    assert len(spans.of_kind()) == 2
    assert not spans.named("autoglm_throttle.wait")


async def test_failing_span_does_not_fail_a_request(
    spans: Spans, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise RuntimeError("no context")

    monkeypatch.setattr(trace, "get_current_span", fail)
    assert (await send_scope(throttled(throttle_for_tests()), http_scope())).status == 200
    assert "tracing: the decision was not recorded: RuntimeError('no context')" in caplog.text


def test_without_a_provider_the_app_is_called_itself() -> None:
    assert throttled(throttle_for_tests()).app is work


async def test_provider_set_until_the_start_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    middleware = throttled(throttle_for_tests())
    spans = Spans(monkeypatch)
    await lifespan(middleware)
    assert isinstance(middleware.app, TracedApp)
    await lifespan(middleware)
    assert middleware.app.app is work, "a second start wraps nothing again"
    await send_scope(spans.around(middleware), http_scope())
    assert spans.decisions() == {("admitted", "ok"): 1}
