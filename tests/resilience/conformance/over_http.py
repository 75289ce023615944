"""Events of the table for guarded HTTP: result of the server, and result of the client."""

from __future__ import annotations

import httpx

from autoglm_throttle.resilience.httpx import TransportRejected
from autoglm_throttle.settings.groups.breaker import BreakerSettings
from tests.resilience.conformance.calls import error
from tests.resilience.conformance.events import EventHandlers, EventRunner, rejection
from tests.resilience.conformance.fallbacks import fallback
from tests.resilience.httpx.guarded_calls import Guarded, Handler, Parts, call, raising, status


class Broken(httpx.ReadError):
    """Exception of a broken body."""


def broken(request: httpx.Request) -> httpx.Response:
    return httpx.Response(200, stream=Parts(b"fi", Broken("gone")))


class Http(EventRunner):
    """One client and its transport."""

    def __init__(self, rules: BreakerSettings, reports: dict[str, str], face: str) -> None:
        super().__init__()
        self.guarded = Guarded(rules, fallback(reports))
        self.face = face
        self.circuit = self.guarded.guard("dep").circuit

    def handlers(self) -> EventHandlers:
        return {
            r"(\d{3})": lambda code: self.same(status(int(code)), code),
            r"(\d{3}) retry after (\d+)": self.retry_after,
            r"200 fresh for (\d+)": lambda s: self.same(status(200, cache_control=f"max-age={s}"), "200"),
            r"get": lambda: self.call(status(200)),
            r"get (\d{3})": lambda code: self.call(status(int(code))),
            r"raises (\S+)": self.raises,
            r"body breaks": lambda: self.same(broken, "Broken"),
            r"body is left": lambda: self.same(status(200), "200", parts=1),
            r"state": lambda: str(self.circuit.state()),
            r"stale": lambda: f"stale {self.circuit.view().stale_results}",
            r"in flight": lambda: f"in flight {self.circuit.view().in_flight}",
            r"last failure": lambda: self.circuit.view().last_failure,
        }

    def wait(self, span_s: str) -> None:
        self.guarded.clock.advance(float(span_s))

    def same(self, handler: Handler, expected: str, parts: int | None = None) -> None:
        """Return the result of the server to the client."""
        assert self.call(handler, parts) == expected

    def retry_after(self, code: str, span_s: str) -> None:
        self.same(status(int(code), retry_after=span_s), code)

    def raises(self, name: str) -> None:
        raised = error(name)
        self.same(raising(raised), type(raised).__name__)

    def call(self, handler: Handler, parts: int | None = None) -> str:
        try:
            response = call(self.face, self.guarded, handler, parts=parts)
        except TransportRejected as rejected:
            return rejection(rejected.rejection)
        except httpx.HTTPError as caught:
            return type(caught).__name__
        degraded = response.headers.get("x-degraded")
        return f"{response.status_code} {degraded}" if degraded else str(response.status_code)
