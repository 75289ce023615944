"""One request in an app behind a breaker: what its messages say about the app, and when that is known."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from starlette.requests import ClientDisconnect
from starlette.websockets import WebSocketDisconnect

from autoglm_throttle.asgi.blame import Blame
from autoglm_throttle.model import Outcome, Pass, Refused, State, StreamSettle
from autoglm_throttle.resilience.judge import status_outcome, timed

if TYPE_CHECKING:
    from autoglm_throttle.resilience.circuit import Circuit

Message = Any
CLIENT_LEFT = (ClientDisconnect, WebSocketDisconnect)
STARTS = frozenset({"http.response.start", "websocket.http.response.start"})
BODIES = frozenset({"http.response.body", "websocket.http.response.body"})
PARTS = BODIES | {"http.response.pathsend", "http.response.zerocopysend"}

_SUCCESS, _FAILURE, _NEUTRAL = Outcome.SUCCESS, Outcome.FAILURE, Outcome.NEUTRAL


class Watched:
    """Stands between the app and the server, and settles the breaker's pass once.

    The outcome is known at a failing start, at the end of the body, or when the app raises. An answer whose
    first bytes come later than ``first_item_s``, else ``slow_call_s``, is slow; a trial of
    a stream may have succeeded with them (``stream_settle``).

    Args:
        circuit: the guard of the app.
        pass_: what let the request through.
        blame: says whether an answer is the app's at all.
        send: the server's.
        receive: the server's.
    """

    __slots__ = (
        *("_blame", "_circuit", "_pass", "_receive", "_send"),
        *("begun_s", "client_left", "outcome", "settled", "started"),
    )

    def __init__(
        self,
        circuit: Circuit,
        pass_: Pass,
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
        """How the request has ended, or will if its answer comes to its end; None before that is known."""
        self.started: bool = False
        """Whether something was sent."""
        self.client_left: bool = False
        self.settled: bool = False

    async def receive(self) -> Message:
        """What the server says; a client that leaves is no fault of the app, whatever happens then."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self.client_left = True
        return message

    def send(self, message: Message) -> Awaitable[None]:
        """Pass a message on, and note what it says."""
        self.note(message)
        return self.pass_on(message)

    async def pass_on(self, message: Message) -> None:
        """Send a message; where the server fails to, there is nobody to send it to any more."""
        self.started = True
        try:
            await self._send(message)
        except Exception:
            self.client_left = True
            raise

    def note(self, message: Message) -> None:
        """Look at a message before it is sent."""
        kind = message["type"]
        if kind in STARTS:
            self._start(message["status"])
        elif kind in PARTS:
            more = bool(message.get("more_body"))
            if not more or kind not in BODIES or message.get("body"):
                self._part(more=more)

    def settle(self, outcome: Outcome, why: BaseException | str | None = None) -> None:
        """Tell the breaker how the request ended, unless it was told before."""
        if not self.settled:
            self.settled = True
            self.outcome = _NEUTRAL if self._blame.ours or self.client_left else outcome
            self._circuit.leave(self._pass, self.outcome, why)

    def raised(self, error: BaseException) -> Outcome:
        """Settle for what the app has raised; returns what that says about it. Never raises."""
        neutral = self.client_left or isinstance(error, (*CLIENT_LEFT, Refused))
        outcome = _NEUTRAL if neutral else self._circuit.outcome_of(error, raised=True)
        self.settle(outcome, error)
        return outcome

    def returned(self, *, websocket: bool) -> Outcome:
        """Settle for an app that has returned without an end of its answer, which only a client excuses."""
        if websocket:
            self.settle(_SUCCESS)
        else:
            self.settle(_FAILURE, "the app returned before the end of its answer")
        return self.outcome or _NEUTRAL

    def _start(self, status: int) -> None:
        verdict = status_outcome(status)
        if self._circuit.judge.classify is not None:
            verdict = self._circuit.outcome_of(status, raised=False, otherwise=verdict)
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
                self.outcome = timed(_SUCCESS, self._circuit.clock() - self.begun_s, limit_s)
            if more and rules.stream_settle is StreamSettle.FIRST_ITEM and self._is_trial():
                self.settle(self.outcome)
        if not more:
            self.settle(self.outcome)

    def _is_trial(self) -> bool:
        circuit, pass_ = self._circuit, self._pass
        return circuit.breaker.generation == pass_.generation and circuit.state() is State.HALF_OPEN
