"""Apps behind a breaker, and the breaker's view."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from autoglm_throttle import Priority, ThrottleMiddleware
from autoglm_throttle.resilience.fallback import Fallback
from autoglm_throttle.resilience.http.answer import HttpAnswer
from autoglm_throttle.settings import BreakerSettings
from autoglm_throttle.testing import ManualThrottle, throttle_for_tests
from autoglm_throttle.types import BreakerCause, BreakerState, BreakerView, GuardRejected, GuardRejection
from tests.asgi.run_app import Answer, App, Message, http_scope, request, send_scope

FAILURES = 3
"""In a row that open the breaker of these tests."""

BOOM = RuntimeError("boom")
SORRY = HttpAnswer(200, {"content-type": "text/plain"}, b"sorry")
REFUSED = GuardRejected(
    GuardRejection("vectors", BreakerState.OPEN, BreakerCause.FAILURES, 7.3, "OSError: secret")
)


def limits(**settings: Any) -> ManualThrottle:
    """A throttle whose guards open early, for 10 s."""
    return throttle_for_tests(**{"breaker_failures": FAILURES, "user_limit": "1000/minute", **settings})


@dataclass
class Service:
    """An app with configurable answers behind a throttle and a breaker."""

    throttle: ManualThrottle = field(default_factory=limits)
    answers: Any = 200
    """A status, an exception, or an app of its own."""
    calls: int = 0

    def __post_init__(self) -> None:
        self.app: App = ThrottleMiddleware(self.serve, throttle=self.throttle, breaker="app")

    async def serve(self, scope: Any, receive: Any, send: Any) -> None:
        self.calls += 1
        if isinstance(self.answers, BaseException):
            raise self.answers
        if callable(self.answers):
            await self.answers(scope, receive, send)
            return
        await plain(send, self.answers, b"live")

    async def ask(self, answers: Any = None, path: str = "/", method: str = "GET", **more: Any) -> Answer:
        """One request, answered so; what the app raises is raised here."""
        if answers is not None:
            self.answers = answers
        return await request(self.app, path, method, **more)

    async def fails(self, answers: Any = 500, times: int = FAILURES) -> None:
        """Requests that fail."""
        for _ in range(times):
            with suppress(Exception):
                await self.ask(answers)

    @property
    def breaker(self) -> BreakerView:
        """All there is to see."""
        return self.throttle.guard("app").view()

    def state(self) -> BreakerState:
        """Return the response that a caller gets now."""
        return self.throttle.guard("app").state()


def with_fallback(*, breaker: BreakerSettings | None = None, settings: Any = None, **options: Any) -> Service:
    """A service whose app has a fallback."""
    throttle = limits(**(settings or {}))
    criticality = options.pop("criticality", "core")
    shed_above = options.pop("shed_above", None)
    fallback = Fallback(**options) if options else None
    throttle.feature(
        "app", fallback=fallback, criticality=criticality, breaker=breaker, shed_above=shed_above
    )
    return Service(throttle)


async def plain(send: Any, status: int, body: bytes, headers: Any = ()) -> None:
    """A whole answer."""
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})
    await send({"type": "http.response.body", "body": body})


def answering(status: int, body: bytes = b"live", **headers: str) -> Callable[..., Any]:
    """An app with one answer; underscores in names of headers stand for dashes."""
    fields = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await plain(send, status, body, fields)

    return app


def breaking_off(error: BaseException | None, status: int = 200) -> Callable[..., Any]:
    """An app that ends in the midst of its answer: with an error, or silently."""

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        if error is not None:
            raise error

    return app


async def leaving(app: App, *, after: int = 0, method: str = "GET") -> list[Message]:
    """A request whose client is gone once so many messages were sent; the server says so on ``receive``."""
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.disconnect"} if len(sent) >= after else {"type": "http.request", "body": b""}

    async def send(message: Message) -> None:
        sent.append(message)

    await app(http_scope(method=method), receive, send)
    return sent


def counted(throttle: ManualThrottle) -> dict[tuple[str, str], int]:
    """Decisions and their reasons, as far as there were any."""
    rows = throttle.snapshot().requests
    return {(name, reason.value): n for (p, name, reason), n in rows.items() if n and p is Priority.MID}


def outcomes(throttle: ManualThrottle) -> dict[str, int]:
    """How admitted requests ended."""
    return {outcome.value: n for (_, outcome), n in throttle.snapshot().outcomes.items() if n}


def degraded(throttle: ManualThrottle) -> dict[tuple[str, str, str], int]:
    """Degraded answers by guard, fallback and cause."""
    guards = throttle.snapshot().guards
    assert guards is not None
    return {(name, rung.value, cause): n for (name, rung, cause), n in guards.degraded.items()}


def static(**options: Any) -> Service:
    """A service whose app is replaced by a fixed answer."""
    return with_fallback(static=SORRY, **options)


def stale(**options: Any) -> Service:
    """A service whose app is replaced by its own earlier answers."""
    return with_fallback(stale=True, **options)


__all__ = [
    "BOOM",
    "FAILURES",
    "REFUSED",
    "SORRY",
    "Service",
    "answering",
    "breaking_off",
    "counted",
    "degraded",
    "leaving",
    "limits",
    "outcomes",
    "plain",
    "send_scope",
    "stale",
    "static",
    "with_fallback",
]
