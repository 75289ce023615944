"""ASGI middleware: turns each scope into a Demand and each Decision into a response."""

from __future__ import annotations

import sys
from collections.abc import Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from autoglm_throttle._runtime import weak_method
from autoglm_throttle.admission.permit import Permit, ProvisionalDemand, Rejection
from autoglm_throttle.asgi import marks
from autoglm_throttle.asgi.app_fields import AppFields
from autoglm_throttle.asgi.callers import Identify, RequestClassifier
from autoglm_throttle.asgi.dialects import DIALECTS
from autoglm_throttle.asgi.receive import BufferedReceive, RequestBody, is_complete
from autoglm_throttle.asgi.response_tracker import ResponseTracker, WatchedStream, degraded_header
from autoglm_throttle.asgi.responses import ResponseBuilder, rejected_by
from autoglm_throttle.asgi.routes import BODY, STREAM, TOKENS, WEBSOCKET, RouteTable, path_of
from autoglm_throttle.asgi.scope import (
    CLIENT_DISCONNECTS,
    MARKER,
    App,
    Message,
    Receive,
    Scope,
    Send,
    attribute_to_throttle,
    fail_startup,
    in_event_loop,
    outcome_of,
    store_verdict,
)
from autoglm_throttle.asgi.slot_watch import BegunCall, SlotWatch, TooSlowError, abandon, begin
from autoglm_throttle.events import LOGGER
from autoglm_throttle.gpu.sampler import SourceView
from autoglm_throttle.limiting.concurrency_limiter import Ticket
from autoglm_throttle.settings import ConfigError
from autoglm_throttle.throttle import Throttle
from autoglm_throttle.types import Decision, Demand, GuardRejected, Outcome, Reason, Rejected, TelemetryState

if TYPE_CHECKING:
    from autoglm_throttle.asgi.app_breaker import AppBreaker
    from autoglm_throttle.asgi.token_routes import TokenRoutes, TokensOf
    from autoglm_throttle.asgi.tracing import Tracing
    from autoglm_throttle.asgi.vllm import VllmServer


# Longest wait at startup for a first sample of each source, if ``GPU_REQUIRED`` is set.
FIRST_SAMPLE_TIMEOUT_S = 5.0


class ThrottleMiddleware:
    """Limits requests to an ASGI app: http and websocket; everything else passes through.

    Args:
        app: the app to protect.
        throttle: the limits; None reads them from the environment. Keep this object as the handle,
            since frameworks build middleware late and more than once.
        identify: identifies the caller from the scope; None: as in the settings.
        breaker: name of the guard around the app, configured by ``throttle.feature(name, ...)``; None: no
            breaker. The app's own failures open it. While it is open, the feature's fallback answers before
            any limit is checked; without a fallback requests are rejected with 503.
        tokens_of: counts the input tokens of a JSON body, with limits in tokens; None: they are estimated.
            It runs in the event loop, for texts up to 64 KiB. If it fails, they are estimated.

    Raises:
        ConfigError: the environment, or ``IDENTITY``, is not usable. If a running server builds the
            middleware, the startup fails instead: servers take an exception there for "no lifespan"
            and would go on.
    """

    def __init__(
        self,
        app: App,
        *,
        throttle: Throttle | None = None,
        identify: Identify | None = None,
        breaker: str | None = None,
        tokens_of: TokensOf | None = None,
    ) -> None:
        self.app: App = app
        self._breaker: AppBreaker | None = None
        self._arguments = app, identify, breaker, tokens_of
        self._vllm: VllmServer | None = None
        try:
            self._prepare(throttle if throttle is not None else Throttle.from_env())
        except ConfigError as error:
            if not in_event_loop():
                raise
            # Inside a running server an exception here means "no lifespan"; fail the startup instead.
            self._config_error = error
            self.__class__ = _MisconfiguredMiddleware

    def _prepare(
        self, throttle: Throttle, app: App | None = None, exempt_prefixes: tuple[str, ...] = ()
    ) -> None:
        own, identify, breaker, tokens_of = self._arguments
        self.app = app or own
        self.throttle = throttle
        settings = throttle.settings
        self._tokens: TokenRoutes | None = None
        if throttle.admission.parts.token_limits is not None:
            from autoglm_throttle.asgi.token_routes import TokenRoutes

            self._tokens = TokenRoutes(throttle, settings.tokens, tokens_of)
        self._routes = RouteTable(
            settings.routes,
            settings.callers.exempt_paths,
            settings.responses.errors,
            exempt_prefixes,
            () if self._tokens is None else settings.tokens.routes,
        )
        self._classifier = RequestClassifier(
            settings, self._routes, identify=identify, record_oddity=weak_method(self._record_oddity)
        )
        self._app_fields = fields = AppFields()
        self._builders = {
            dialect: ResponseBuilder(settings.responses, dialect, app_fields=fields) for dialect in DIALECTS
        }
        self.slot_watch: SlotWatch = SlotWatch(throttle)
        self._marks = marks.Marks(self.app, self._routes)
        self._gives_advice = settings.quota.quotas
        self._nested_warned = False
        if breaker is not None:
            self._install_breaker(breaker)
        self._tracing: Tracing | None = None
        self._start_tracing()

    def _install_breaker(self, name: str) -> None:
        # It imports all guards, which are not needed without a breaker.
        from autoglm_throttle.asgi.app_breaker import AppBreaker

        self.app = self._breaker = AppBreaker(self.app, self.throttle, name, self._send_rejection)

    def _start_tracing(self) -> None:
        """Record decisions on spans from now on, if the app has set the tracer provider of an SDK."""
        if self._tracing is None and "opentelemetry.trace" in sys.modules:
            from autoglm_throttle.asgi import tracing

            if tracing.has_tracer_provider():
                self._tracing = tracing.Tracing(self.throttle)
                self.app = tracing.TracedApp(self.app, self._tracing)
                if self._breaker is not None:
                    self._breaker.tracing = self._tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: C901, PLR0912, PLR0915 - a call costs 1 %
        """Handle one connection."""
        throttle, marked = self.throttle, scope.get(MARKER)
        classified = None
        if marked is None or not self._is_charged(marked):
            classified = self._classifier.classify(scope)
        if classified is None:
            await self._pass_through(scope, receive, send)
            return
        demand, policy, transfer = classified
        breaker, admission = self._breaker, throttle.admission
        if breaker is not None:
            if not breaker.is_quiet and await breaker.applies_to(scope, send, demand):
                return
            demand = breaker.provisional(demand)
        if admission.has_leases:
            await admission.ensure_lease(demand)
        app = self.app  # no method: called in two steps it takes half the time
        buffered: BufferedReceive | None = None
        body: RequestBody | None = None
        permit: Permit | Ticket | Rejection | None = None
        if transfer and demand.holds_slot:
            if transfer == BODY:
                first = begin(receive())
                if not isinstance(first, BegunCall) and is_complete(first):
                    buffered = BufferedReceive(receive, first)
                    receive = buffered.receive
                else:
                    buffered = body = RequestBody(receive, self.slot_watch)
                    receive = body.receive
                    permit = await self._admit_body(body, first, demand, policy.work_class, scope, send)
                    if permit is None:
                        return
            elif transfer == STREAM:
                buffered = body = RequestBody(receive, self.slot_watch, is_stream=True)
                receive = body.receive
            elif transfer == TOKENS and self._tokens is not None:
                permit = self._tokens.rejection(demand)
                if permit is None:
                    buffered = body = RequestBody(receive, self.slot_watch)
                    body.most_bytes = self._tokens.most_bytes
                    if not await self._has_body(body, begin(receive()), demand, scope, send):
                        return
                    receive = body.receive
                    permit, app = await self._tokens.admit(app, demand, policy.work_class, scope, body)
        if permit is None:
            permit = admission.try_admit(demand, policy.work_class)
        if type(permit) is not Permit:
            if type(permit) is Rejection and marked is None and breaker is None:  # `_reject`, without calls
                scope[MARKER] = [throttle, permit]
                if self._tracing is not None:
                    self._tracing.record(scope)
                for message in self._builders[policy.dialect].messages(scope, permit.decision):
                    await send(message)
                return
            if isinstance(permit, Ticket):
                if permit.was_queued:
                    if buffered is None:
                        buffered = BufferedReceive(receive)
                    try:  # None: the client has left
                        permit = await admission.verdicts.wait(permit, buffered)
                    finally:
                        if not isinstance(permit, Permit):  # with one the app still reads from the buffer
                            buffered.close()
                    receive = buffered.receive
                else:  # only the shared-store check is pending, for milliseconds
                    permit = await admission.verdicts.wait(permit)
            if not isinstance(permit, Permit):
                if permit is not None:
                    await self._reject(scope, send, permit)
                return
        if marked is None:
            scope[MARKER] = [throttle, permit]
        else:
            store_verdict(scope, self.throttle, permit)
        if transfer and transfer == WEBSOCKET:
            receive, send = WatchedStream(self.slot_watch, permit, may_be_idle=False).wrap(receive, send)
        if self._app_fields.is_learning:
            send = self._app_fields.observe(scope, send)
        tracker = ResponseTracker()
        tracker.forward, tracker.permit, tracker.status = send, permit, 0
        tracker.response_builder, tracker.watch = self._builders[policy.dialect], self.slot_watch
        tracker.client_disconnected = tracker.is_stream = False
        tracker.body, tracker.stream = body, None
        if body is not None:
            tracker.is_stream = transfer == STREAM
            body.attach(permit, partial(tracker.end_slow_body, scope))
        try:
            if self._gives_advice:
                scope.setdefault("state", {})[MARKER] = permit.advice
            if throttle.may_degrade:
                await degraded_header(app, scope, receive, tracker.send)
            else:
                await app(scope, receive, tracker.send)
        except BaseException as error:
            decision = _decision(error)
            tracker.settle(Outcome.NEUTRAL if tracker.client_disconnected else outcome_of(error))
            if decision is not None and not tracker.status:
                await self._builders[policy.dialect].send_rejection(scope, send, *decision)
            elif body is None or not (body.timed_out and isinstance(error, CLIENT_DISCONNECTS)):
                raise
        finally:
            # An http app that returned without a last byte proves nothing; a websocket has no last byte.
            if not permit.settled:
                permit.settle(Outcome.NEUTRAL if scope["type"] == "http" else Outcome.SUCCESS)
            if buffered is not None:
                buffered.close()
            if "endpoint" in scope:
                self._check_mark(scope, policy.root_path)

    async def _admit_body(
        self,
        body: RequestBody,
        first: Message | BegunCall,
        demand: Demand,
        work_class: str,
        scope: Scope,
        send: Send,
    ) -> Permit | Ticket | Rejection | None:
        """Charge a request, await its body, then ask for its slot; None: it ended before, uncharged."""
        admission = self.throttle.admission
        charged = await admission.charge(demand, work_class)
        if isinstance(charged, Rejection):
            abandon(first)
            return charged
        if isinstance(charged, Permit):  # of a dry run: the service does not work during the body
            charged.pause()
        has_body = False
        try:
            has_body = await self._has_body(body, first, demand, scope, send)
        finally:
            if isinstance(charged, Ticket):
                if not has_body:
                    admission.verdicts.leave(charged)
            elif has_body:
                charged.resume()
            else:
                charged.settle(Outcome.NEUTRAL)
        if not has_body:
            return None
        return admission.try_slot(charged) if isinstance(charged, Ticket) else charged

    async def _has_body(
        self, body: RequestBody, first: Message | BegunCall, demand: Demand, scope: Scope, send: Send
    ) -> bool:
        """Await the body of a request; False if the client has left or was answered."""
        try:
            await body.wait(first)
        except TooSlowError:
            if body.is_over:
                rejection = self._too_many_bodies(demand)
                if rejection is not None:
                    await self._reject(scope, send, rejection)
            else:
                self._record_oddity("body_timeout")
                attribute_to_throttle(scope)
                await self._builders[self._routes.policy_of(scope).dialect].send_body_timeout(scope, send)
            return False
        return not body.is_disconnected

    def _too_many_bodies(self, demand: Demand) -> Rejection | None:
        wait_s = self.throttle.settings.concurrency.body_timeout_s
        decision = Decision(False, Reason.QUEUE, "queue:paused", "queue", retry_after_s=wait_s)
        if isinstance(demand, ProvisionalDemand):  # counted with what replaces it
            return Rejection(demand, decision)
        return self.throttle.admission.reject(demand, decision)

    async def _reject(self, scope: Scope, send: Send, rejection: Rejection) -> None:
        """Send a rejection, or the answer of a fallback."""
        store_verdict(scope, self.throttle, rejection)
        if self._breaker is None or not await self._breaker.replaces(scope, send, rejection):
            await self._send_rejection(scope, send, rejection.decision)

    def _send_rejection(
        self, scope: Scope, send: Send, decision: Decision, cause: str = "load"
    ) -> Coroutine[Any, Any, None]:
        """Send a rejection in the dialect of its path; no coroutine itself, as above."""
        if self._tracing is not None:
            self._tracing.record(scope)
        builder = self._builders[self._routes.policy_of(scope).dialect]
        return builder.send_rejection(scope, send, decision, cause)

    def _is_charged(self, marked: object) -> bool:
        """Whether this throttle has decided on the request already. Not if the scope is malformed."""
        return isinstance(marked, list) and self.throttle in marked[::2]

    async def _pass_through(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run connections that are exempt, already charged by this throttle, or no requests."""
        kind = scope.get("type")
        if kind == "lifespan":
            await self._lifespan(scope, receive, send)
        elif kind != "http" and kind != "websocket":  # noqa: PLR1714 - what the server sent may not be hashable
            await self.app(scope, receive, send)
        elif self._is_charged(scope.get(MARKER)):  # by an outer middleware
            self._warn_nested()
            await self.app(scope, receive, send)
        else:
            self.throttle.admission.record_exempt()
            store_verdict(scope, self.throttle, None)
            root_path = scope.get("root_path")
            if scope.get("method") == "OPTIONS":  # maybe a preflight, of a request that may be rejected
                send = self._app_fields.observe(scope, send)
            try:
                await self.app(scope, receive, send)
            finally:
                if "endpoint" in scope:
                    self._check_mark(scope, root_path)

    def _record_oddity(self, name: str) -> None:
        self.throttle.admission.record_oddity(name)

    def _warn_nested(self) -> None:
        if not self._nested_warned:
            self._nested_warned = True
            LOGGER.warning(
                "two middlewares share one throttle around the same app; the inner one applies no limits"
            )

    def _check_mark(self, scope: Scope, root_path: str | None) -> None:
        if not (self._marks.has_marks or hasattr(scope["endpoint"], marks.ATTRIBUTE)):
            return
        try:
            path = path_of({"path": scope["path"], "root_path": root_path})
            self._marks.check(scope, path, root_path or "")
        except Exception:  # noqa: BLE001 - what cannot be learned must not break a request
            self._record_oddity("malformed_scope")

    def _recognise_vllm(self, scope: Scope) -> None:
        """Adapt to a vLLM server that this middleware runs in, before its first request."""
        try:
            state = scope["app"].state
            if self._vllm is not None or state.vllm_config is None or state.engine_client is None:
                return
        except Exception:  # noqa: BLE001 - another app, whose state may be anything
            return
        from autoglm_throttle.asgi import vllm  # not needed elsewhere

        self._vllm = vllm.VllmServer(state, self.throttle)
        app = vllm.VllmApp(self._arguments[0], self._vllm)
        self._prepare(self.throttle, app, vllm.EXEMPT_PREFIXES)

    async def _lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._recognise_vllm(scope)
        self._start_tracing()
        self.throttle.start()
        try:
            if self._vllm is not None:
                self._vllm.start()
            problem = self.throttle.admission.unsupported_loop() or await self._missing_sample_error()
            if problem:
                await receive()
                await send({"type": "lifespan.startup.failed", "message": problem})
                return
            await self.app(scope, receive, send)
        finally:
            self.throttle.stop()
            if self._vllm is not None:
                self._vllm.stop()

    async def _missing_sample_error(self) -> str:
        """Return the reason why required first GPU samples are missing; empty if all arrived."""
        if not self.throttle.settings.gpu.gpu_required:
            return ""
        deadline = anyio.current_time() + FIRST_SAMPLE_TIMEOUT_S
        while True:
            missing = [one for one in self.throttle.snapshot().sources if one.age_s is None]
            if not missing and self.throttle.control_state().telemetry is TelemetryState.FRESH:
                return ""
            if anyio.current_time() >= deadline:
                reason = "; ".join(_source_error(one) for one in missing) or "no device reports its load"
                within = f"within {FIRST_SAMPLE_TIMEOUT_S:g} s, and GPU_REQUIRED is set"
                return f"no GPU sample {within}: {reason}"
            await anyio.sleep(0.05)


class _MisconfiguredMiddleware(ThrottleMiddleware):
    """Replaces a middleware with an invalid configuration: startup fails, and every request raises."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await fail_startup(self._config_error, scope, receive, send)


def _decision(error: BaseException) -> tuple[Decision, str] | None:
    """Return the decision and the cause of a rejection that the app raised; None for any other error."""
    if isinstance(error, Rejected):
        return error.decision, "load"
    # A cancellation is never answered, even while a rejection is handled.
    rejected = GuardRejected.find(error) if isinstance(error, Exception) else None
    return None if rejected is None else (rejected_by(rejected.rejection), rejected.rejection.cause)


def _source_error(source: SourceView) -> str:
    reason = source.last_error or source.state
    return reason if reason.startswith(source.name) else f"{source.name}: {reason}"
