"""Measures the tokens of one response, and settles its reservation once, however the request ends."""

from __future__ import annotations

from math import inf
from traceback import clear_frames
from typing import TYPE_CHECKING, Final

from autoglm_throttle.admission.permit import Permit
from autoglm_throttle.asgi.scope import App, Message, Receive, Scope, Send, verdicts_of
from autoglm_throttle.asgi.sse import EventReader, UsageReader, usage_reader
from autoglm_throttle.asgi.stream_end import end_of_stream
from autoglm_throttle.limiting.token_usage import TokenUsage
from autoglm_throttle.limiting.tokens import TokenEstimator
from autoglm_throttle.types import NO_TOKENS, Outcome, TokenCost, TokenOverrun

if TYPE_CHECKING:
    from autoglm_throttle.limiting.ticket import TicketCharges
    from autoglm_throttle.limiting.token_request import TokenRequest
    from autoglm_throttle.throttle import Throttle

# Error of an app that goes on with a response that was ended.
ENDED: Final = "the response was ended: its user has no tokens left"

# Output tokens that are charged at once when an answer outgrows its reservation.
EXTENSION_TOKENS: Final = 256


class TokenRules:
    """What all meters of a throttle share."""

    __slots__ = ("estimator", "overrun", "throttle")

    def __init__(self, estimator: TokenEstimator, throttle: Throttle, overrun: TokenOverrun) -> None:
        self.estimator: TokenEstimator = estimator
        self.throttle: Throttle = throttle
        self.overrun: TokenOverrun = overrun


class TokenMeter:
    """An app around the app of one request that has reserved tokens.

    It reads a copy of each message after that was sent on, so it changes, delays and reorders none. A stream
    that has used up the tokens of its user is ended if the `TokenOverrun` says so.
    """

    __slots__ = (
        *("_app", "_charges", "_extended_at", "_has_left", "_is_complete", "_is_ended", "_reader"),
        *("_receive", "_request", "_reserved", "_route", "_rules", "_scope", "_send", "_sent_bytes"),
        *("_status", "_usage"),
    )

    _receive: Receive
    _scope: Scope
    _send: Send

    def __init__(
        self,
        app: App,
        rules: TokenRules,
        route: str,
        request: TokenRequest,
        reserved: TokenCost,
        charges: TicketCharges,
    ) -> None:
        self._app = app
        self._rules = rules
        self._route = route
        self._request = request
        self._reserved = reserved
        self._charges = charges
        self._usage = TokenUsage()
        self._reader: UsageReader | None = None
        self._status = 0
        self._sent_bytes = False  # Whether a part of the body was sent
        self._is_complete = False
        self._is_ended = False  # Whether the response was ended here, so that for the app its client has left
        self._has_left = False  # Whether the client has left, or the request was cancelled
        # Events at which more is charged; a stated maximum that is reserved is never exceeded.
        is_bounded = request.max_output is not None and request.max_output <= reserved.output
        self._extended_at: float = inf if is_bounded or not request.generates else reserved.output

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app."""
        self._scope, self._receive, self._send = scope, receive, send
        app = self._app
        try:
            await app(scope, self.receive, self.send)
        except Exception as raised:
            if not self._is_ended:
                raise
            error: BaseException | None = raised
            # Frames that hold their own exception, as Starlette's do, would keep the app's generator alive.
            while error is not None:
                clear_frames(error.__traceback__)
                error = error.__context__
        except BaseException:
            self._has_left = True
            raise
        finally:
            self._settle()

    async def receive(self) -> Message:
        """Return the next message for the app."""
        if self._is_ended:
            return {"type": "http.disconnect"}
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self._has_left = True
        return message

    async def send(self, message: Message) -> None:  # noqa: C901 - for each event: a call costs 2 %
        """Send a message, then read it."""
        if self._is_ended:
            raise ConnectionAbortedError(ENDED)
        try:
            await self._send(message)
        except OSError:  # the sign of ASGI for a client that has left
            self._has_left = True
            raise
        kind = message["type"]
        if kind == "http.response.body":
            body = message.get("body")
            if body:
                self._sent_bytes = True
                if self._reader is not None:
                    self._reader.feed(body if type(body) is bytes else bytes(body))
            if not message.get("more_body"):
                self._is_complete = True
                self._settle()
            elif self._usage.events > self._extended_at and self._status < 400:
                end = self._extend()
                if end is not None:
                    await self._end(end)
        elif kind == "http.response.start":
            self._status = message["status"]
            headers = message.get("headers")
            if isinstance(headers, list | tuple):  # what can be read only once was read by the server
                self._reader = usage_reader(headers, self._usage)

    def _extend(self) -> bytes | None:
        """Charge more output tokens, or return the bytes that end the stream: its user has none left."""
        reservation, reader = self._charges.reservation, self._reader
        extend = self._rules.throttle.admission.verdicts.extend_tokens
        within_limits = self._rules.overrun is not TokenOverrun.ALLOW
        if reservation is None or not reservation.is_exhausted:
            extend(self._charges, EXTENSION_TOKENS, within_limits=within_limits)
        if reservation is None or not reservation.is_exhausted:
            self._extended_at += EXTENSION_TOKENS
            return None
        end = None
        if isinstance(reader, EventReader) and reader.is_between_events:
            end = end_of_stream(reader.first, reader.last, self._used().output)
        if end is None and self._usage.events > self._extended_at + EXTENSION_TOKENS:
            self._extended_at += EXTENSION_TOKENS
            extend(self._charges, EXTENSION_TOKENS, within_limits=False)
        return end

    async def _end(self, end: bytes) -> None:
        """End the response with these bytes, or without its end, and the app with it."""
        self._is_ended = True
        self._settle()
        limits = self._rules.throttle.admission.parts.token_limits
        if limits is not None:
            limits.counts.ended += 1
        permit = verdicts_of(self._scope).get(self._rules.throttle)
        if isinstance(permit, Permit):
            permit.settle(Outcome.NEUTRAL)
        if self._rules.overrun is TokenOverrun.STOP:
            await self._send({"type": "http.response.body", "body": end})
        raise ConnectionAbortedError(ENDED)

    def _settle(self) -> None:
        reservation = self._charges.reservation
        if reservation is None or not reservation.charges:
            return
        if self._reader is not None:
            self._reader.finish()
        self._rules.throttle.admission.verdicts.settle_tokens(self._charges, self._used())
        if self._is_complete and self._status < 400:
            self._learn()

    def _learn(self) -> None:
        """Learn from a complete response, and count how good its estimate was."""
        usage, rules = self._usage, self._rules
        rules.estimator.learn(self._route, self._request, usage)
        limits = rules.throttle.admission.parts.token_limits
        if limits is not None:
            limits.counts.record_estimate("input", self._reserved.input, usage.input)
            limits.counts.record_estimate("output", self._reserved.output, usage.output)

    def _used(self) -> TokenCost:
        """Return the tokens to be charged in the end."""
        usage, has_begun = self._usage, 0 < self._status < 400
        tokens = self._reserved.input if usage.input is None else usage.input
        if not has_begun and usage.input is None and usage.output is None:
            # A failure costs nothing. For a client that has left, the prompt was computed.
            return TokenCost(tokens, 0) if self._has_left and not self._status else NO_TOKENS
        if not self._sent_bytes and not self._is_complete:
            return TokenCost(tokens, 0) if self._has_left else NO_TOKENS
        output = usage.output
        if output is None:
            if self._reader is None:  # a response that cannot be read
                return TokenCost(tokens, self._reserved.output)
            output = self._rules.estimator.counted_output(self._route, self._request, usage)
        return TokenCost(tokens, output)
