"""Measures the tokens of one response, and settles its reservation once, however the request ends."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

from autoglm_throttle.asgi.scope import App, Message, Receive, Scope, Send
from autoglm_throttle.asgi.sse import UsageReader, usage_reader
from autoglm_throttle.limiting.token_usage import TokenUsage
from autoglm_throttle.limiting.tokens import NO_TOKENS, TokenCost, TokenEstimator

if TYPE_CHECKING:
    from autoglm_throttle.limiting.ticket import TicketCharges
    from autoglm_throttle.limiting.token_request import TokenRequest
    from autoglm_throttle.throttle import Throttle

# Output tokens that are charged at once when an answer outgrows its reservation.
EXTENSION_TOKENS: Final = 256


class TokenRules:
    """What all meters of a throttle share."""

    __slots__ = ("estimator", "throttle")

    def __init__(self, estimator: TokenEstimator, throttle: Throttle) -> None:
        self.estimator: TokenEstimator = estimator
        self.throttle: Throttle = throttle


class TokenMeter:
    """An app around the app of one request that has reserved tokens.

    It reads a copy of each message after that was sent on, so it changes, delays and reorders none.
    """

    __slots__ = (
        *("_app", "_charges", "_has_left", "_is_complete", "_reader", "_receive", "_request", "_reserved"),
        *("_route", "_rules", "_send", "_sent_bytes", "_status", "_usage", "_extended_at"),
    )

    _receive: Receive
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
        self._has_left = False  # Whether the client has left, or the request was cancelled
        # Events at which more is charged; a stated maximum that is reserved is never exceeded.
        is_bounded = request.max_output is not None and request.max_output <= reserved.output
        self._extended_at: float = inf if is_bounded or not request.generates else reserved.output

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app."""
        self._receive, self._send = receive, send
        app = self._app
        try:
            await app(scope, self.receive, self.send)
        except Exception:
            raise
        except BaseException:
            self._has_left = True
            raise
        finally:
            self._settle()

    async def receive(self) -> Message:
        """Return the next message for the app."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self._has_left = True
        return message

    async def send(self, message: Message) -> None:
        """Send a message, then read it."""
        try:
            await self._send(message)
        except OSError:  # the sign of ASGI for a client that has left
            self._has_left = True
            raise
        kind = message["type"]
        if kind == "http.response.body":
            body = message.get("body")
            if body:
                self._read(body if type(body) is bytes else bytes(body))
            if not message.get("more_body"):
                self._is_complete = True
                self._settle()
        elif kind == "http.response.start":
            self._status = message["status"]
            headers = message.get("headers")
            if isinstance(headers, list | tuple):  # what can be read only once was read by the server
                self._reader = usage_reader(headers, self._usage)

    def _read(self, body: bytes) -> None:
        self._sent_bytes = True
        if self._reader is None:
            return
        self._reader.feed(body)
        if self._usage.events > self._extended_at and self._status < 400:
            self._extended_at += EXTENSION_TOKENS
            self._rules.throttle.admission.verdicts.extend_tokens(self._charges, EXTENSION_TOKENS)

    def _settle(self) -> None:
        reservation = self._charges.reservation
        if reservation is None or not reservation.charges:
            return
        if self._reader is not None:
            self._reader.finish()
        self._rules.throttle.admission.verdicts.settle_tokens(self._charges, self._used())
        if self._is_complete and self._status < 400:
            self._rules.estimator.learn(self._route, self._request, self._usage)

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
