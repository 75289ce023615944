"""A service whose traces show the decision of the throttle on each request.

    pip install opentelemetry-sdk opentelemetry-instrumentation-asgi
    uvicorn --factory examples.traced_service:create_app

The spans are printed. An exporter to a collector takes the place of `ConsoleSpanExporter`.
"""

from __future__ import annotations

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware
from opentelemetry.sdk.trace import Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor, SpanExporter
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from autoglm_throttle import ThrottleMiddleware
from autoglm_throttle.asgi.tracing import decision_attributes


class DecisionProcessor(SpanProcessor):
    """Adds the decision to a server span that is started inside `ThrottleMiddleware`."""

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:  # noqa: ARG002 - it is called by name
        """Set the attributes; for spans of another kind and outside requests there are none."""
        if span.kind is trace.SpanKind.SERVER:
            span.set_attributes(decision_attributes())


async def predict(_: Request) -> PlainTextResponse:
    return PlainTextResponse("ok")


def create_app(exporter: SpanExporter | None = None) -> OpenTelemetryMiddleware:
    """Create the service; the spans go to the exporter, by default to the terminal."""
    provider = TracerProvider()
    provider.add_span_processor(DecisionProcessor())
    provider.add_span_processor(SimpleSpanProcessor(exporter or ConsoleSpanExporter()))
    # The provider is set before the middleware is made, or at the latest before the service starts.
    trace.set_tracer_provider(provider)
    service = Starlette(routes=[Route("/predict", predict)])
    # Outermost: the span covers the time in the queue, and a rejected request has one, too.
    return OpenTelemetryMiddleware(ThrottleMiddleware(service))
