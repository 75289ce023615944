"""Observes the response of one request behind the app's breaker, and settles its outcome."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autoglm_throttle.asgi.scope import CLIENT_DISCONNECTS, FailureAttribution, Message, Receive, Send
from autoglm_throttle.resilience.classify import apply_slow_limit, status_outcome
from autoglm_throttle.types import BreakerState, GuardPermit, Outcome, Rejected

if TYPE_CHECKING:
    from autoglm_throttle.resilience.state import GuardState

STARTS = frozenset({"http.response.start", "websocket.http.response.start"})
BODIES = frozenset({"http.response.body", "websocket.http.response.body"})
PARTS = BODIES | {"http.response.pathsend", "http.response.zerocopysend"}

_SUCCESS, _FAILURE, _NEUTRAL = Outcome.SUCCESS, Outcome.FAILURE, Outcome.NEUTRAL


@dataclass(slots=True, eq=False)
class ResponseObserver:
    """Observes the messages between app and server, and settles the guard permit once.

    The outcome is known at a failing start, at the end of the body, or when the app raises. A response is
    slow if its first bytes come later than ``first_item_s``, else ``slow_call_s``. A probe call of a stream
    may succeed with its first bytes (``stream_settle``).
    """

    guard_state: GuardState
    guard_permit: GuardPermit
    attribution: FailureAttribution
    server_send: Send
    server_receive: Receive
    started_s: float  # monotonic
    # Outcome of the request once it is known, also before the response is complete; None until then.
    outcome: Outcome | None = None
    started: bool = False  # whether a message was sent
    client_disconnected: bool = False
    settled: bool = False

    async def receive(self) -> Message:
        """Return the server's message. After a client's disconnect no later event counts against the app."""
        message = await self.server_receive()
        if message["type"] == "http.disconnect":
            self.client_disconnected = True
        return message

    def send(self, message: Message) -> Awaitable[None]:
        """Inspect a message, and send it."""
        self.inspect(message)
        return self.forward(message)

    async def forward(self, message: Message) -> None:
        """Send a message. If the server raises, the client counts as disconnected."""
        self.started = True
        try:
            await self.server_send(message)
        except Exception:
            self.client_disconnected = True
            raise

    def inspect(self, message: Message) -> None:
        """Inspect a message before it is sent."""
        kind = message["type"]
        if kind in STARTS:
            self._start(message["status"])
        elif kind in PARTS:
            more = bool(message.get("more_body"))
            # An empty part with more to come carries no first byte.
            if not more or kind not in BODIES or message.get("body"):
                self._part(more=more)

    def settle(self, outcome: Outcome, cause: BaseException | str | None = None) -> None:
        """Report the request's outcome to the breaker, at most once."""
        if not self.settled:
            self.settled = True
            self.outcome = _NEUTRAL if self.attribution.by_throttle or self.client_disconnected else outcome
            self.guard_state.record(self.guard_permit, self.outcome, cause)

    def on_exception(self, error: BaseException) -> Outcome:
        """Settle for an exception of the app, and return its outcome. Never raises."""
        neutral = self.client_disconnected or isinstance(error, (*CLIENT_DISCONNECTS, Rejected))
        outcome = _NEUTRAL if neutral else self.guard_state.outcome_of(error, raised=True)
        self.settle(outcome, error)
        return outcome

    def on_return(self, *, websocket: bool) -> Outcome:
        """Settle for an app that returned before its response ended; only a disconnect makes this neutral."""
        if websocket:
            self.settle(_SUCCESS)
        else:
            self.settle(_FAILURE, "the app returned before it completed its response")
        return self.outcome or _NEUTRAL

    def _start(self, status: int) -> None:
        verdict = status_outcome(status)
        if self.guard_state.classifier.classify is not None:
            verdict = self.guard_state.outcome_of(status, raised=False, default=verdict)
        if verdict is _FAILURE:
            self.settle(verdict, f"status {status}")
        elif verdict is not _SUCCESS:
            self.outcome = verdict

    def _part(self, *, more: bool) -> None:
        if self.outcome is None:
            guard = self.guard_state
            limit_s = guard.slow_call_s if guard.first_item_s is None else guard.first_item_s
            self.outcome = _SUCCESS
            if limit_s is not None:
                self.outcome = apply_slow_limit(_SUCCESS, guard.clock() - self.started_s, limit_s)
            if more and guard.settles_at_first_item and self._is_probe():
                self.settle(self.outcome)
        if not more:
            self.settle(self.outcome)

    def _is_probe(self) -> bool:
        # A permit of an older generation is no probe of the present half-open state.
        generation = self.guard_state.fast.shared_permit.generation
        is_current = generation == self.guard_permit.generation
        return is_current and self.guard_state.state() is BreakerState.HALF_OPEN
