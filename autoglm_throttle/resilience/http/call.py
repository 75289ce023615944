"""One guarded HTTP call without the waiting: shared by the sync and the async transport."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from autoglm_throttle.model import On429, Outcome, Pass
from autoglm_throttle.resilience.http.body import BodyWatch
from autoglm_throttle.resilience.http.fields import body_bytes, retry_after_s
from autoglm_throttle.resilience.http.served import Landing
from autoglm_throttle.resilience.http.stale import Ask, kept
from autoglm_throttle.resilience.judge import status_outcome

if TYPE_CHECKING:
    from collections.abc import Mapping

    import httpx

    from autoglm_throttle.resilience.circuit import Circuit
    from autoglm_throttle.resilience.http.answer import Pairs
    from autoglm_throttle.resilience.http.served import HttpServed, Key

SWITCHING: Final = 101
"""After status 101 the connection is no longer HTTP, so no body follows."""

TOO_MANY: Final = 429


def pairs(headers: httpx.Headers) -> Pairs:
    """Return header fields as text without loss of bytes."""
    return tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in headers.raw)


class HttpCall:
    """One call.

    Args:
        circuit: of the guard.
        executor: of the fallbacks; None: there are none.
        request: to send.
        key: the transport's function for the cache key.
    """

    __slots__ = ("ask", "begun_s", "circuit", "outcome", "pass_", "request", "served", "short", "watch")

    def __init__(
        self, circuit: Circuit, served: HttpServed | None, request: httpx.Request, key: Key | None
    ) -> None:
        self.circuit: Circuit = circuit
        self.served: HttpServed | None = served
        self.request: httpx.Request = request
        self.ask: Ask | None = None
        self.pass_: Pass = Pass(0)
        self.begun_s: float = 0.0
        self.outcome: Outcome = Outcome.NEUTRAL
        """Outcome as known at the headers."""
        self.watch: BodyWatch | None = None
        """Observer of a body that has not ended."""
        self.short: bool = False
        """Whether the body may be cached and is known to be short enough."""
        if served is not None:
            url = str(request.url).partition("#")[0]
            self.ask = served.asked(request.method, url, pairs(request.headers), request, key)

    def begin(self, pass_: Pass) -> None:
        """Record that the call was admitted and starts now."""
        self.pass_ = pass_
        self.begun_s = self.circuit.clock()

    def failed(self, error: BaseException) -> None:
        """Record that the call ended without a response."""
        self.outcome = self.circuit.settle(self.pass_, error, raised=True)

    def answered(self, response: httpx.Response) -> BodyWatch | None:
        """Classify the response by its status; a success waits for the body.

        Returns:
            `body_observer`, which must be notified of the body; None: the outcome is final.
        """
        circuit, status = self.circuit, response.status_code
        self.outcome = circuit.outcome_of(response, raised=False, otherwise=status_outcome(status))
        headers = pairs(response.headers)
        keep = None
        if self.served is not None:
            keep = self.served.keep(self.ask, status, headers, self.begun_s)
        if self.outcome is Outcome.SUCCESS and status != SWITCHING:
            length = body_bytes(self.request.method, status, headers)
            self.short = keep is not None and length is not None and length <= keep.body_bytes
            self.watch = BodyWatch(circuit, self.pass_, self.begun_s, length, keep)
            return self.watch
        circuit.leave(self.pass_, self.outcome, f"HTTP {status}")
        if status == TOO_MANY and circuit.rules.on_429 is On429.OPEN:
            wait_s = retry_after_s(headers, time.time())
            circuit.opened_for(circuit.rules.open_s if wait_s is None else wait_s)
        return None

    def landed(self, ask: Ask, response: httpx.Response, body: bytes | None) -> Landing:
        """Build the result for the callers that wait for this call.

        Args:
            cache_request: of this call.
            response: to this call.
            body: complete, as received; None: it must not be shared.
        """
        shared = None if body is None else kept(ask, pairs(response.headers), body, self.begun_s)
        if shared is None and self.served is not None and self.outcome is not Outcome.FAILURE:
            self.served.alone(ask)
        return Landing(ask, response, shared, outcome=self.outcome)

    def crashed(self, ask: Ask, error: Exception, *, late: bool) -> Landing:
        """Build the result of a call that raised, at its headers or in its body.

        Args:
            cache_request: of this call.
            error: the exception.
            timed_out: whether a time limit ended; it is shared only if it was the guard's.
        """
        if self.watch is not None:
            self.outcome = self.watch.outcome
        hurried = late and self._is_hurried()
        return Landing(ask, None, None, error, self.outcome, hurried, error.__traceback__)

    @property
    def patience_s(self) -> float | None:
        """Maximum wait for another caller's call: the limit of the own call; None: no limit."""
        limits = (self._limits().get("read"), self.circuit.rules.timeout_s)
        return min((limit for limit in limits if limit is not None), default=None)

    def _is_hurried(self) -> bool:
        guards_s = self.circuit.rules.timeout_s
        limits = [limit for limit in self._limits().values() if limit is not None]
        return any(guards_s is None or limit < guards_s for limit in limits)

    def _limits(self) -> Mapping[str, float | None]:
        return self.request.extensions.get("timeout") or {}
