"""ASGI middleware that passes each request and its response to a recorder."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from autoglm_throttle.asgi.scope import fail_startup, in_event_loop, verdicts_of
from autoglm_throttle.events import LOGGER
from autoglm_throttle.settings import ConfigError
from autoglm_throttle.settings.groups.observe import RecordBody
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.record.recorded_request import MAX_BODY_BYTES, BodyFields, DecisionFields
from autoglm_throttle.traffic.record.recorder import Recorder
from autoglm_throttle.traffic.record.writer import Writer
from autoglm_throttle.types import decision_label

MAX_DEPTH: Final = 100  # Layers of middleware that are searched for a throttle

_ENDS = ("http.response.body", "http.response.pathsend", "http.response.zerocopysend")


class RecorderMiddleware:
    """Records HTTP requests; websockets and everything else pass through.

    Place it just outside the throttle, so that it records the decisions too. The shutdown of the last app
    that shares a recorder ends the recording; without lifespan support, as in Django, the end of the process
    does. A server that then ends by a signal loses the last half second, like a killed one.

    Args:
        app: the recorded application.
        recorder: the recorder; None: one from the settings ``RECORD_*``. Without ``RECORD_PATH`` nothing is
            recorded, and every request is passed through unchanged.

    Raises:
        ConfigError: the environment has faults. In a running event loop the startup fails instead.
        TrafficError: the folder of ``RECORD_PATH`` does not exist; likewise.
    """

    def __init__(self, app: ASGIApp, recorder: Recorder | None = None) -> None:
        self.app: ASGIApp = app
        self.recorder: Recorder | None = None  # The recorder; None: nothing is recorded
        try:
            self.recorder = Recorder.from_env() if recorder is None else recorder
        except (ConfigError, TrafficError) as error:
            # Servers take an exception here for "no lifespan", so the lifespan reports the fault.
            if not in_event_loop():
                raise
            self.app = partial(fail_startup, error)
        if self.recorder is not None:
            self.recorder.watch_client(_throttles(app))
        self._fault_logged = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        kind = scope["type"]
        if kind == "lifespan":
            await self._lifespan(scope, receive, send)
            return
        writer = None if self.recorder is None or kind != "http" else self.recorder.writer()
        if self.recorder is None or writer is None:
            await self.app(scope, receive, send)
            return
        exchange = _RecordedExchange(scope, receive, send, self.recorder, writer)
        try:
            await self.app(scope, exchange.receive, exchange.send)
        except Exception:
            exchange.failed()
            raise
        finally:
            if not exchange.done:
                exchange.finish()
            if exchange.fault is not None:
                self._log_fault(exchange.fault)

    async def _lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        recorder = self.recorder
        if recorder is None:
            await self.app(scope, receive, send)
            return
        over = detached = False

        async def observed_receive() -> Message:
            nonlocal over
            message = await receive()
            over = over or message["type"] == "lifespan.shutdown"
            return message

        async def observed_send(message: Message) -> None:
            nonlocal detached
            if over and not detached:  # once it is sent the server may end at once
                detached = True
                await recorder.detach(self)
            await send(message)

        recorder.attach(self)
        try:
            await self.app(scope, observed_receive, observed_send)
        finally:
            if over and not detached:  # not over: an app without lifespan, which now begins to serve
                await recorder.detach(self)

    def _log_fault(self, fault: Exception) -> None:
        if not self._fault_logged:
            self._fault_logged = True
            LOGGER.error("a request could not be recorded: %s; it was served", type(fault).__name__)


class _RecordedExchange:
    """Wraps ``receive`` and ``send`` of one request and records both."""

    __slots__ = (
        *("_began_s", "_body_is_complete", "_body_length", "_body_parts", "_first_s", "_hash", "_headers"),
        *("_is_disconnected", "_line", "_receive", "_recorder", "_response_fields", "_scope", "_send"),
        *("_serial", "_status", "_writer", "done", "fault"),
    )

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, recorder: Recorder, writer: Writer
    ) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._recorder = recorder
        self._writer = writer
        self._serial = writer.begin()
        self._began_s = recorder.clock()
        # Copies of the scope: routers and middleware may change it on the way in.
        headers = scope.get("headers")
        self._headers: Any = tuple(headers) if isinstance(headers, list) else headers
        self._line: tuple[Any, ...] = (
            scope.get("method"),
            scope.get("path", ""),
            scope.get("raw_path") or b"",
            scope.get("query_string") or b"",
            scope.get("root_path", ""),
        )
        self._is_disconnected = self._body_is_complete = False
        self._body_length = 0
        self._hash = None if recorder.body is RecordBody.NONE else hashlib.sha256()
        self._body_parts: list[bytes] | None = [] if recorder.body is RecordBody.FULL else None
        self._status = 0  # 0: the response has not started
        self._response_fields: Any = ()
        self._first_s: float | None = None  # First byte of the response
        self.done: bool = False
        self.fault: Exception | None = None

    async def receive(self) -> Message:
        """Forward a message to the app, and record its body."""
        message = await self._receive()
        kind = message["type"]
        if kind == "http.request":
            body = message.get("body", b"")
            self._body_length += len(body)
            if body and self._hash is not None:
                self._hash.update(body)
            if body and self._body_parts is not None:
                self._body_parts.append(body)
                self._body_parts = self._body_parts if self._body_length <= MAX_BODY_BYTES else None
            self._body_is_complete = self._body_is_complete or not message.get("more_body")
        elif kind == "http.disconnect":
            self._is_disconnected = True
        return message

    async def send(self, message: Message) -> None:
        """Forward a message to the server, and record status, first byte and end."""
        kind = message["type"]
        if kind == "http.response.start":
            self._status = message["status"]
            self._response_fields = message.get("headers", ())
        elif kind in _ENDS:
            if self._first_s is None and (message.get("body") or kind != "http.response.body"):
                self._first_s = self._recorder.clock()
            if not (message.get("more_body") or self.done):
                await self._send(message)
                self.finish(answered=not self._is_disconnected)
                return
        await self._send(message)

    def failed(self) -> None:
        """The app raised: the server answers 500, unless a response has started."""
        if not self.done and not self._status:
            self._status = 500
            self.finish(answered=not self._is_disconnected)

    def finish(self, *, answered: bool = False) -> None:
        """Pass the request to the writer. An error is stored in ``fault`` and never raised."""
        self.done = True
        try:
            self._write_request(self._status if answered else 0)
        except Exception as error:  # noqa: BLE001 - a scope may hold anything
            self.fault = error
        self._writer.in_flight -= 1

    def _write_request(self, status: int) -> None:
        recorder, scope, headers, began_s = self._recorder, self._scope, self._headers, self._began_s
        now = recorder.clock()
        recorder.watch_client(verdicts_of(scope))
        user, priority, decision, reason = decision_of(scope, status, self._response_fields)
        client = recorder.clients.identify(user, scope.get("client"), headers)
        if not recorder.clients.has(client):
            return
        redaction, (method, *target) = recorder.redaction, self._line
        first_s = now if self._first_s is None else self._first_s
        self._writer.put(
            (
                max(0.0, began_s - self._writer.began_s),
                self._serial,
                (redaction.method(method), redaction.target(*target), redaction.fields(headers)),
                self._body_fields(),
                (client, priority, decision, reason),
                (status, (now - began_s) * 1e3, (first_s - began_s) * 1e3 if status else None),
            )
        )

    def _body_fields(self) -> BodyFields:
        """Return length, hash and body; for an incomplete body only the announced length."""
        if self._body_is_complete:
            digest = self._hash.hexdigest() if self._hash is not None and self._body_length else ""
            return self._body_length, digest, b"".join(self._body_parts) if self._body_parts else None
        announced = next((v for n, v in self._headers if n == b"content-length"), b"")
        length = int(announced) if announced.isdigit() and len(announced) < 16 else 0
        return max(self._body_length, length), "", None


def decision_of(scope: Mapping[str, Any], status: int, fields: Iterable[Sequence[bytes]]) -> DecisionFields:
    """Return user, priority, decision and reason; of several throttles, one that rejected counts."""
    marked = verdicts_of(scope)
    if not marked:
        return ("", "", "", "")
    verdicts = [verdict for verdict in marked.values() if verdict is not None]
    degraded = status < 300 and any(name.lower() == b"x-degraded" for name, _ in fields)
    if not verdicts:
        return ("", "", "degraded" if degraded else "exempt", "ok")
    verdict = next((one for one in verdicts if not one.admitted), verdicts[0])
    reason = verdict.decision.reason
    decision: str = "degraded" if degraded else decision_label(reason)
    return (verdict.demand.user, verdict.demand.priority.label, decision, reason.value)


def _throttles(app: object) -> Iterator[object]:
    """Yield the throttles of the middleware round an app, following the ``app`` attributes."""
    for _ in range(MAX_DEPTH):
        throttle = getattr(app, "throttle", None)
        if throttle is not None and isinstance(throttle, Hashable):
            yield throttle
        app = getattr(app, "app", None)
