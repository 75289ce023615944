"""Observes the response of one request behind the app's breaker, and settles its outcome."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from starlette.requests import ClientDisconnect
from starlette.websockets import WebSocketDisconnect

from autoglm_throttle.asgi.blame import Blame
from autoglm_throttle.model import BreakerState, GuardPermit, Outcome, Rejected, StreamSettleMode
from autoglm_throttle.resilience.judge import apply_slow_limit, status_outcome

if TYPE_CHECKING:
    from autoglm_throttle.resilience.circuit import GuardState

Message = Any
CLIENT_LEFT = (ClientDisconnect, WebSocketDisconnect)
STARTS = frozenset({"http.response.start", "websocket.http.response.start"})
BODIES = frozenset({"http.response.body", "websocket.http.response.body"})
PARTS = BODIES | {"http.response.pathsend", "http.response.zerocopysend"}

_SUCCESS, _FAILURE, _NEUTRAL = Outcome.SUCCESS, Outcome.FAILURE, Outcome.NEUTRAL


class Watched:
    """Observes the messages between app and server, and settles the guard permit once.

    The outcome is known at a failing start, at the end of the body, or when the app raises. A response is
    slow if its first bytes come later than ``first_item_s``, else ``slow_call_s``. A probe call of a stream
    may succeed with its first bytes (``stream_settle``).

    Args:
        circuit: the state of the app's guard.
        pass_: the permit of the request.
        blame: whether the response is the app's own.
        send: the server's.
        receive: the server's.
    """

    __slots__ = (
        *("_blame", "_circuit", "_pass", "_receive", "_send"),
        *("begun_s", "client_left", "outcome", "settled", "started"),
    )

    def __init__(
        self,
        circuit: GuardState,
        pass_: GuardPermit,
        blame: Blame,
        send: Callable[[Message], Awaitable[None]],
        receive: Callable[[], Awaitable[Message]],
    ) -> None:
        self._circuit = circuit
        self._pass = pass_
        self._blame = blame
        self._send = send
        self._receive = receive
        self.begun_s: float = circuit.clock()
        """Monotonic."""
        self.outcome: Outcome | None = None
        """Outcome of the request once it is known, also before the response is complete; None until then."""
        self.started: bool = False
        """Whether a message was sent."""
        self.client_left: bool = False
        self.settled: bool = False

    async def receive(self) -> Message:
        """Return the server's message. After a client's disconnect no later event counts against the app."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self.client_left = True
        return message

    def send(self, message: Message) -> Awaitable[None]:
        """Inspect a message, and send it."""
        self.note(message)
        return self.pass_on(message)

    async def pass_on(self, message: Message) -> None:
        """Send a message. If the server raises, the client counts as disconnected."""
        self.started = True
        try:
            await self._send(message)
        except Exception:
            self.client_left = True
            raise

    def note(self, message: Message) -> None:
        """Inspect a message before it is sent."""
        kind = message["type"]
        if kind in STARTS:
            self._start(message["status"])
        elif kind in PARTS:
            more = bool(message.get("more_body"))
            # An empty part with more to come carries no first byte.
            if not more or kind not in BODIES or message.get("body"):
                self._part(more=more)

    def settle(self, outcome: Outcome, why: BaseException | str | None = None) -> None:
        """Report the request's outcome to the breaker, at most once."""
        if not self.settled:
            self.settled = True
            self.outcome = _NEUTRAL if self._blame.ours or self.client_left else outcome
            self._circuit.record(self._pass, self.outcome, why)

    def raised(self, error: BaseException) -> Outcome:
        """Settle for an exception of the app, and return its outcome. Never raises."""
        neutral = self.client_left or isinstance(error, (*CLIENT_LEFT, Rejected))
        outcome = _NEUTRAL if neutral else self._circuit.outcome_of(error, raised=True)
        self.settle(outcome, error)
        return outcome

    def returned(self, *, websocket: bool) -> Outcome:
        """Settle for an app that returned before its response ended; only a disconnect makes this neutral."""
        if websocket:
            self.settle(_SUCCESS)
        else:
            self.settle(_FAILURE, "the app returned before the end of its answer")
        return self.outcome or _NEUTRAL

    def _start(self, status: int) -> None:
        verdict = status_outcome(status)
        if self._circuit.classifier.classify is not None:
            verdict = self._circuit.outcome_of(status, raised=False, default=verdict)
        if verdict is _FAILURE:
            self.settle(verdict, f"status {status}")
        elif verdict is not _SUCCESS:
            self.outcome = verdict

    def _part(self, *, more: bool) -> None:
        if self.outcome is None:
            rules = self._circuit.rules
            limit_s = rules.slow_call_s if rules.first_item_s is None else rules.first_item_s
            self.outcome = _SUCCESS
            if limit_s is not None:
                self.outcome = apply_slow_limit(_SUCCESS, self._circuit.clock() - self.begun_s, limit_s)
            if more and rules.stream_settle is StreamSettleMode.FIRST_ITEM and self._is_trial():
                self.settle(self.outcome)
        if not more:
            self.settle(self.outcome)

    def _is_trial(self) -> bool:
        circuit, pass_ = self._circuit, self._pass
        # A permit of an older generation is no probe of the present half-open state.
        return circuit.breaker.generation == pass_.generation and circuit.state() is BreakerState.HALF_OPEN
