"""Tracks the response of an admitted request: adds header fields, settles the permit, watches a stream."""

from __future__ import annotations

import math
from collections.abc import Awaitable
from types import CoroutineType

from autoglm_throttle.admission.permit import Permit
from autoglm_throttle.asgi.receive import RequestBody
from autoglm_throttle.asgi.responses import ResponseBuilder
from autoglm_throttle.asgi.scope import App, Message, Receive, Scope, Send
from autoglm_throttle.asgi.slot_watch import (
    BegunCall,
    SlotWatch,
    TooSlowError,
    WatchedSlot,
    begin,
    is_in_trio,
)
from autoglm_throttle.limiting.work_class import PAUSED
from autoglm_throttle.resilience.fallback import DegradedAnswer, degraded_answers
from autoglm_throttle.types import Outcome

SWITCHING_PROTOCOLS = 101  # The status of an accepted websocket

_EVENT = (b"e", b"E")  # First letter of the subtype ``event-stream``
# Client errors that may be due to the load: their time counts as that of the work.
_SERVICE_STATUSES = (408, 429)

# Before Python 3.12 reading a member from its class costs as much as a dictionary lookup.
_SUCCESS, _FAILURE, _NEUTRAL = Outcome.SUCCESS, Outcome.FAILURE, Outcome.NEUTRAL


class WatchedStream(WatchedSlot):
    """The parts of one response that come after each other, or the messages of a websocket.

    If it may be idle, it gives its slot back between two parts.
    """

    __slots__ = (
        *("_begins_at_once", "_event_s", "_expects_idle", "_first_s", "_is_known", "_last_s", "may_be_idle"),
    )

    def __init__(self, watch: SlotWatch, permit: Permit, *, may_be_idle: bool) -> None:
        super().__init__(watch, permit)
        self.may_be_idle: bool = may_be_idle
        self._expects_idle = may_be_idle and watch.expects_idle(permit.work_class.name)
        self._is_known = False  # Whether its class has learned from it
        self._event_s: float | None = None  # When the last event with data was sent
        self._first_s: float | None = None
        self._last_s = -math.inf  # When the first and the last part were sent
        self._begins_at_once = not is_in_trio()  # A request stays in its library
        if may_be_idle:  # a long prefill has sent nothing yet
            self.wait(watch.clock() + watch.head_s(permit))

    def send(self, sending: Awaitable[None], part: bytes) -> Awaitable[None] | None:  # noqa: C901 - as below
        """Send a part, and begin to wait for the next one; None: that has been done."""
        self.transferred_bytes += len(part)
        now, permit = 0.0, self.permit
        if self.may_be_idle and permit is not None:
            clock = self._watch.clock
            now = clock()
            # Not a keep-alive comment. A field name that is cut in two is found in the next event.
            if part[:5] == b"data:" or b"\ndata:" in bytes(part):
                event_s, self._event_s = self._event_s, now
                if event_s is None:
                    permit.record_first_event(now)
                else:
                    permit.owner.rows[permit.demand.rank].inter_token.record(now - event_s)
        if self._begins_at_once and sending.__class__ is CoroutineType:
            try:  # `begin`, without the calls, which are a tenth of the time of a part
                call = BegunCall(sending, sending.send(None), has_begun=True)
            except StopIteration:
                call = None
        else:
            call = begin(sending)
        if self._first_s is not None:
            idle_s = self._watch.idle_s
            was_idle = now - self._last_s >= idle_s
            # A feed may begin with several parts: only one whose parts keep coming is no feed.
            if (was_idle or now - self._first_s >= idle_s / 2.0) and (
                was_idle != self._expects_idle or not self._is_known
            ):
                self._learn(idle=was_idle)
        if call is not None:
            self.work()
            return self._finish(call)
        if self.may_be_idle:
            self._wait_for_next(now)
        return None

    async def _finish(self, call: BegunCall) -> None:
        await self.blocked(call)
        if self.may_be_idle:
            self._wait_for_next(self._watch.clock())

    def _wait_for_next(self, now: float) -> None:
        self._last_s = now
        if self._first_s is None:
            self._first_s = now
        self._pause_s, self._changes = now + self._watch.idle_s, self._changes + 1  # `wait`, without the call
        if not self.is_registered:
            self._watch.add(self)
        permit, expects_idle = self.permit, self._expects_idle
        if permit is not None and (permit.slot == PAUSED) != expects_idle:
            # A feed is paused at once, and stays so while it sends.
            (permit.pause if expects_idle else permit.resume)()

    def wrap(self, receive: Receive, send: Send) -> tuple[Receive, Send]:
        """Return the functions of a websocket, which is idle while neither side sends."""
        self._touch()

        async def receive_message() -> Message:
            message = await receive()
            self._touch()
            return message

        async def send_message(message: Message) -> None:
            self._touch()
            await send(message)
            self._touch()

        return receive_message, send_message

    def _touch(self) -> None:
        self.work()
        self.wait(self._watch.clock() + self._watch.idle_s)

    def _record_idle(self) -> None:
        if self._last_s > -math.inf:
            self._learn(idle=True)

    def _learn(self, *, idle: bool) -> None:
        self._expects_idle = idle
        if not self._is_known and self.permit is not None:
            self._is_known = True
            self._watch.learn_idle(self.permit.work_class.name, idle=idle)


class ResponseTracker:
    """Wraps ``send``: adds the header fields, and settles the permit at the last byte."""

    __slots__ = (
        *("body", "client_disconnected", "forward", "is_stream", "permit", "response_builder"),
        *("status", "stream", "watch"),
    )

    # Set by the middleware: before Python 3.13 an ``__init__`` costs as much as all stores.
    forward: Send
    permit: Permit
    response_builder: ResponseBuilder
    watch: SlotWatch
    status: int  # Status of the response; 0: it has not begun
    client_disconnected: bool  # Whether the client has left, or was left
    body: RequestBody | None  # Body of the request, if the app reads it while it works
    is_stream: bool  # Whether the response belongs to a stream's route, and may be idle
    stream: WatchedStream | None  # Its parts, if there are several

    def send(self, message: Message) -> Awaitable[None]:  # noqa: C901 - a call costs 1 %
        """Forward a message. Not a coroutine itself: that would cost one more for each message."""
        kind = message["type"]
        if kind == "http.response.body":
            if message.get("more_body"):
                self.permit.record_chunk()
                return self._send_part(message)
            if not self.permit.settled:
                if self.status < 400:
                    self.permit.settle()
                else:
                    self._settle_error()
        elif kind == "http.response.start" or kind == "websocket.accept":  # noqa: PLR1714 - as above
            self.status = message.get("status", SWITCHING_PROTOCOLS)
            headers = message.get("headers")
            # Most responses begin with their length or a plain type: no streams. What can be read only once
            # is not read here.
            if type(headers) is list and headers:
                name, value = headers[0]
                if (
                    name != b"content-length"
                    and (name != b"content-type" or value[5:6] in _EVENT or self.is_stream)
                    and kind == "http.response.start"
                    and (self.is_stream or _is_event_stream(headers))
                ):
                    self._new_stream(may_be_idle=True)  # it may be idle before its first part
            verdict = self.permit.verdict
            if verdict:
                message = self.response_builder.add_fields(message, verdict)
        elif not self.permit.settled and (
            kind == "http.response.pathsend"
            or (kind == "http.response.zerocopysend" and not message.get("more_body"))
        ):
            self._settle_error()
        forward = self.forward  # no method: called in two steps it takes half the time
        return forward(message)

    def settle(self, outcome: Outcome) -> None:
        """Settle the permit unless the last byte has done so."""
        if not self.permit.settled:
            self.permit.settle(outcome)

    async def end_slow_body(self, scope: Scope) -> None:
        """End a request whose body makes no progress: with 408, unless the response has started."""
        self.watch.record_oddity("body_timeout")
        self.client_disconnected = True
        self.settle(_NEUTRAL)
        if not self.status:
            send, self.forward = self.forward, _discard
            await self.response_builder.send_body_timeout(scope, send)

    def _settle_error(self) -> None:
        status = self.status
        if status >= 500:
            self.permit.settle(_FAILURE)
        else:
            self.permit.settle(client_error=status >= 400 and status not in _SERVICE_STATUSES)

    def _new_stream(self, *, may_be_idle: bool) -> WatchedStream:
        if self.body is not None:
            self.body.detach()
        self.stream = stream = WatchedStream(self.watch, self.permit, may_be_idle=may_be_idle)
        return stream

    async def _send_part(self, message: Message) -> None:
        """Send a part of a stream. A server may raise OSError after a disconnect (ASGI 2.4)."""
        part = message.get("body")
        try:
            if part:
                stream = self.stream or self._new_stream(may_be_idle=self.is_stream)
                rest = stream.send(self.forward(message), part)
                if rest is not None:
                    await rest
            else:  # it is no progress
                await self.forward(message)
        except OSError as error:
            self.client_disconnected = True
            if isinstance(error, TooSlowError):
                self.watch.record_oddity("slow_reader")
            raise


async def _discard(message: Message) -> None:
    """Drop what the app sends after its request has been answered."""


def _is_event_stream(headers: list[tuple[bytes, bytes]]) -> bool:
    for name, value in headers:
        if name == b"content-type" or name.lower() == b"content-type":  # mostly in lower case already
            return b"text/event-stream" in value.lower()
    return False


async def degraded_header(app: App, scope: Scope, receive: Receive, send: Send) -> None:
    """Run an app, and add ``X-Degraded`` to its response for the fallbacks used until its start.

    Fallbacks used later, in the middle of a stream, come too late for the field. The app's own field stays.
    """
    notes: list[DegradedAnswer] = []
    outer = degraded_answers.get()

    def send_with_field(message: Message) -> Awaitable[None]:
        if notes and message["type"] == "http.response.start":
            headers = list(message.get("headers") or ())  # any iterable may come
            if all(name.lower() != b"x-degraded" for name, _ in headers):
                text = ", ".join(f"{fallback}; cause={cause}" for fallback, cause in notes)
                headers.append((b"x-degraded", text.encode()))
            message = {**message, "headers": headers}
        return send(message)

    degraded_answers.set(notes)
    try:
        await app(scope, receive, send_with_field)
    finally:
        degraded_answers.set(outer)  # reset(token) fails if the server ends the request in another context
