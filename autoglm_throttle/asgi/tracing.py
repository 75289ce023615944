"""Adds the decision on a request to its server span, by the API of OpenTelemetry.

This package makes no server span: opentelemetry-instrumentation-asgi or -fastapi does. It is loaded only
where the tracer provider of an SDK was set before the service starts; otherwise a request costs no more.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Mapping
from contextvars import ContextVar
from typing import Final

from opentelemetry import trace
from opentelemetry.trace import SpanContext, format_span_id, format_trace_id

from autoglm_throttle.admission.counters import Exemplar
from autoglm_throttle.admission.permit import Permit, Rejection
from autoglm_throttle.asgi.scope import App, Message, Receive, Scope, Send, verdicts_of
from autoglm_throttle.events import RateLimitedLogger
from autoglm_throttle.throttle import Throttle
from autoglm_throttle.types import Reason, decision_label
from autoglm_throttle.version import __version__

NAME: Final = "autoglm_throttle"
WAIT_MIN_S: Final = 0.001  # A shorter wait has no span

Attributes = Mapping[str, str | float]

# Attributes for the server span that is started inside this middleware.
_decision: ContextVar[Attributes | None] = ContextVar(f"{NAME}.decision", default=None)


def decision_attributes() -> Attributes:
    """Return the attributes of the decision on the current request; empty if a span already has them.

    For a span processor, where this middleware is outside that of OpenTelemetry.
    """
    return _decision.get() or {}


class Tracing:
    """Sets the attributes of the decisions of a throttle on the active span."""

    def __init__(self, throttle: Throttle) -> None:
        self._throttle = throttle
        self._has_wait_spans = throttle.settings.observe.trace_wait
        self._tracer = trace.get_tracer(NAME, __version__)
        self._logger = RateLimitedLogger("tracing", time.monotonic)

    def record(self, scope: Scope, *, degraded: bool = False) -> SpanContext | None:
        """Record the decision that the scope holds; ``degraded``: a fallback answers. Raises nothing.

        Returns:
            The context of the span of an admitted request, if its trace is sampled.
        """
        context: SpanContext | None = None
        try:
            verdict = verdicts_of(scope)[self._throttle]
            attributes, span = self._attributes(verdict, degraded=degraded), trace.get_current_span()
            if not span.is_recording():
                _decision.set(attributes)
            else:
                span.set_attributes(attributes)
                if isinstance(verdict, Permit):
                    context = span.get_span_context()
                    if self._has_wait_spans:
                        self._add_wait_span(verdict)
        except Exception as error:  # noqa: BLE001 - an exporter or a sampler of the user must not fail a request
            self._logger.warn("span", f"the decision was not recorded: {error!r}")
        return context if context is not None and context.trace_flags.sampled else None

    def with_exemplar(self, scope: Scope, send: Send, context: SpanContext) -> Send:
        """Return a ``send`` that keeps an admitted request as the exemplar of its duration."""
        permit = verdicts_of(scope)[self._throttle]
        if not isinstance(permit, Permit):
            return send

        async def observed(message: Message) -> None:
            was_settled = permit.settled
            await send(message)
            if permit.settled and not was_settled:  # by this part, the last one
                owner = permit.owner
                ids = format_trace_id(context.trace_id), format_span_id(context.span_id)
                exemplar = Exemplar(*ids, owner.clock() - permit.arrived_s, time.time())
                owner.rows[permit.demand.rank].durations.add_exemplar(exemplar)

        return observed

    def _attributes(self, verdict: Permit | Rejection | None, *, degraded: bool) -> Attributes:
        state = self._throttle.admission.control_state
        found: dict[str, str | float] = {
            f"{NAME}.decision": "exempt",
            f"{NAME}.reason": Reason.OK.value,
            f"{NAME}.factor": state.factor,
            f"{NAME}.tier": state.tier,
        }
        if verdict is not None:
            reason = Reason.OK if isinstance(verdict, Permit) else verdict.decision.reason
            found[f"{NAME}.decision"] = "degraded" if degraded else decision_label(reason)
            found[f"{NAME}.reason"] = reason.value
            found[f"{NAME}.priority"] = verdict.demand.priority.label
        if isinstance(verdict, Permit):
            found[f"{NAME}.wait_s"] = verdict.admitted_s - verdict.arrived_s
        return found

    def _add_wait_span(self, permit: Permit) -> None:
        """Add the time in the queue as a child span, which ends now."""
        wait_s = permit.admitted_s - permit.arrived_s
        if wait_s >= WAIT_MIN_S:
            end_ns = time.time_ns()
            span = self._tracer.start_span(f"{NAME}.wait", start_time=end_ns - round(wait_s * 1e9))
            span.add_event("turn", timestamp=end_ns)
            span.end(end_ns)


class TracedApp:
    """Records the decision on each admitted or exempt request before its app runs.

    The server span ends with the last part of the response, before the app returns.
    """

    def __init__(self, app: App, tracing: Tracing) -> None:
        self.app: App = app
        self._tracing = tracing

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Handle one connection; no coroutine of its own."""
        if scope["type"] in {"http", "websocket"}:
            context = self._tracing.record(scope)
            if context is not None and scope["type"] == "http":
                send = self._tracing.with_exemplar(scope, send, context)
        return self.app(scope, receive, send)


def has_tracer_provider() -> bool:
    """Return whether the provider of an SDK is set."""
    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
