"""Sampled traces are exemplars of the durations that they took."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, Decision, Sampler, SamplingResult
from opentelemetry.trace import SpanKind, format_span_id, format_trace_id
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics import exposition, parser
from prometheus_client.samples import Exemplar

from autoglm_throttle.observe import collector
from autoglm_throttle.observe.metric import PREFIX
from autoglm_throttle.testing import ManualThrottle, throttle_for_tests
from tests.asgi.run_app import http_scope, send_scope, websocket_scope
from tests.asgi.test_tracing import Spans, throttled, work


def exemplars(throttle: ManualThrottle) -> dict[str, Exemplar]:
    """Return the exemplars of the durations by the upper edge of their bucket."""
    registry = CollectorRegistry()
    registry.register(collector(throttle))
    text = exposition.generate_latest(registry).decode()  # type: ignore[no-untyped-call]
    families = {family.name: family for family in parser.text_string_to_metric_families(text)}  # type: ignore[no-untyped-call]
    samples = families[f"{PREFIX}request_duration_seconds"].samples
    return {sample.labels["le"]: sample.exemplar for sample in samples if sample.exemplar is not None}


def taking(throttle: ManualThrottle, seconds: float, **more: Any) -> Any:
    """An app whose responses take so long."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        throttle.clock.advance(seconds)
        await work(scope, receive, send)
        throttle.clock.advance(100.0)  # a background task of the app does not count

    return throttled(throttle, app, **more)


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Spans:
    return Spans(monkeypatch)


async def test_the_newest_sampled_trace_of_a_bucket_is_its_exemplar(spans: Spans) -> None:
    throttle = throttle_for_tests()
    for seconds in (0.07, 0.3, 0.31):
        await send_scope(spans.around(taking(throttle, seconds)), http_scope())
    found = exemplars(throttle)
    assert {edge: one.value for edge, one in found.items()} == {
        "0.075": pytest.approx(0.07),
        "0.5": pytest.approx(0.31),
    }
    newest = spans.of_kind(SpanKind.SERVER)[-1].context
    assert found["0.5"].labels == {
        "trace_id": format_trace_id(newest.trace_id),
        "span_id": format_span_id(newest.span_id),
    }


async def test_a_rejected_request_and_a_websocket_are_no_exemplars(spans: Spans) -> None:
    throttle = throttle_for_tests(user_limit="1/hour")
    app = spans.around(taking(throttle, 0.07))
    await send_scope(app, websocket_scope())
    await send_scope(app, http_scope())
    assert exemplars(throttle) == {}


class RecordOnly(Sampler):
    """Records spans for processors of the service, without exporting them."""

    def should_sample(self, *_: object, **__: object) -> SamplingResult:
        return SamplingResult(Decision.RECORD_ONLY)

    def get_description(self) -> str:
        return "record only"


@pytest.mark.parametrize("sampler", [ALWAYS_OFF, RecordOnly()], ids=["off", "record only"])
async def test_a_trace_that_is_not_sampled_is_no_exemplar(spans: Spans, sampler: Sampler) -> None:
    throttle = throttle_for_tests()
    spans.provider.sampler = sampler
    await send_scope(spans.around(taking(throttle, 0.07)), http_scope())
    assert exemplars(throttle) == {}


async def test_outside_the_span_there_is_no_exemplar(spans: Spans) -> None:
    throttle = throttle_for_tests()
    await send_scope(throttled(throttle, spans.around(work)), http_scope())
    assert exemplars(throttle) == {}


async def test_parts_after_the_last_one_change_nothing(spans: Spans) -> None:
    throttle = throttle_for_tests()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await work(scope, receive, send)
        throttle.clock.advance(0.3)
        await send({"type": "http.response.body", "body": b"more"})

    await send_scope(spans.around(throttled(throttle, app)), http_scope())
    assert list(exemplars(throttle)) == ["0.005"]
