"""What answers in place of an app: its feature's fallback, for requests as ASGI tells them."""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from typing import Any

from autoglm_throttle.model import Clock, FallbackContext, Rung
from autoglm_throttle.resilience.degradation import Choice
from autoglm_throttle.resilience.http.answer import HttpAnswer, Pairs
from autoglm_throttle.resilience.http.served import HttpServed
from autoglm_throttle.resilience.http.stale import Ask, degraded
from autoglm_throttle.resilience.seldom import Seldom

Scope = MutableMapping[str, Any]


class Fallbacks:
    """The fallback of one app.

    Args:
        served: the feature and its ladder, its rungs and what is kept.
        clock: monotonic seconds.
    """

    def __init__(self, served: HttpServed, clock: Clock) -> None:
        self.served: HttpServed = served
        self.name: str = served.feature.name
        self.log: Seldom = Seldom(self.name, clock)
        """Tells what a fallback would otherwise hide, of a failing app a line now and then."""

    def ask(self, scope: Scope) -> Ask | None:
        """What is asked for, as far as it matters to what is kept; None: not at all, as of a broken scope."""
        if scope["type"] != "http":
            return None
        try:
            headers = text_of(scope["headers"])
            return self.served.asked(scope["method"], _url(scope, headers), headers, scope, None)
        except Exception:  # noqa: BLE001 - a scope may hold anything
            return None

    def choice(self, scope: Scope) -> Choice:
        """What the ladder says about a request."""
        return self.served.choice(self.ask(scope))

    async def answer(
        self,
        scope: Scope,
        why: tuple[str, Exception | None],
        ask: Ask | None,
        choice: Choice,
    ) -> HttpAnswer | None:
        """Answer without the app, saying so; counted. None: there is nothing to answer with.

        Args:
            scope: of the request; what a dynamic fallback gets as its only argument.
            why: the cause, and what was raised.
            ask: what is asked for.
            choice: what the ladder says; ``SERVE`` after a refusal or a failure.
        """
        if scope["type"] != "http":
            return None
        cause, error = why
        context = FallbackContext(self.name, cause, error, (scope,))
        try:
            found = await self.served.answer_async(context, ask, choice)
        except Exception:  # noqa: BLE001 - logged by the rungs; what they stand in for is the answer then
            return None
        if found is None:
            return None
        if isinstance(found.value, HttpAnswer):
            return _sized(found.value, found.rung, cause)
        kind = type(found.value).__name__
        self.log.say("kind", f"the {found.rung} fallback must give an HttpAnswer, not {kind}")
        return None


def text_of(headers: Iterable[tuple[bytes, bytes]]) -> Pairs:
    """The fields of a scope or a message as text in which no byte is lost."""
    return tuple((bytes(name).decode("latin-1"), bytes(value).decode("latin-1")) for name, value in headers)


def _url(scope: Scope, headers: Pairs) -> str:
    host = next((value for name, value in headers if name.lower() == "host"), "")
    path: bytes = scope.get("raw_path") or scope["path"].encode("utf-8", "surrogatepass")
    query: bytes = scope.get("query_string") or b""
    return f"{scope.get('scheme', 'http')}://{host}{path.decode('latin-1')}?{query.decode('latin-1')}"


def _sized(answer: HttpAnswer, rung: Rung, cause: str) -> HttpAnswer:
    """With its length, which a server needs to keep the connection, and what it is."""
    if rung is Rung.STALE:  # it says all that itself, and of a HEAD no length that is not the app's
        return answer
    length = "content-length", str(len(answer.body))
    sized = any(name.lower() == length[0] for name, _ in answer.headers)
    return degraded(answer if sized else answer.saying(length), rung, cause)
