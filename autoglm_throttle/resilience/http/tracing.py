"""Adds the breaker and the result of a guarded call to its client span, by the API of OpenTelemetry.

This package makes no client span: opentelemetry-instrumentation-httpx does, round the guarded transport.
"""

from __future__ import annotations

import sys


def record_call(breaker: str, **results: str) -> None:
    """Set attributes of a call on the active span, if it is that of a client; else do nothing.

    A span of another kind, such as that of the request being served, may hold several calls.
    """
    if "opentelemetry.trace" not in sys.modules:
        return
    from opentelemetry import trace

    span = trace.get_current_span()
    if span.is_recording() and getattr(span, "kind", None) is trace.SpanKind.CLIENT:
        named = {"breaker": breaker, **results}
        span.set_attributes({f"autoglm_throttle.{name}": value for name, value in named.items()})
