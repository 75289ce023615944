"""Reports degraded answers inside the app to the client, in the field ``X-Degraded``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

from autoglm_throttle.resilience.degraded_record import DegradedAnswer, degraded_answers

FIELD = b"x-degraded"


async def degraded_header(
    app: Callable[[Any, Any, Any], Awaitable[None]],
    scope: MutableMapping[str, Any],
    receive: Callable[[], Awaitable[Any]],
    send: Callable[[Any], Awaitable[None]],
) -> None:
    """Run an app, and add ``X-Degraded`` to its response for the fallbacks used until its start.

    Fallbacks used later, in the middle of a stream, come too late for the field. The app's own field stays.
    """
    notes: list[DegradedAnswer] = []
    outer = degraded_answers.get()

    def send_with_field(message: Any) -> Awaitable[None]:  # noqa: ANN401 - an ASGI message
        if notes and message["type"] == "http.response.start":
            message = _with_degraded_field(message, notes)
        return send(message)

    degraded_answers.set(notes)
    try:
        await app(scope, receive, send_with_field)
    finally:
        degraded_answers.set(outer)  # reset(token) fails if the server ends the request in another context


def _with_degraded_field(message: dict[str, Any], notes: Sequence[DegradedAnswer]) -> dict[str, Any]:
    headers = list(message.get("headers") or ())  # any iterable may come
    if all(name.lower() != FIELD for name, _ in headers):
        headers.append((FIELD, ", ".join(f"{fallback}; cause={cause}" for fallback, cause in notes).encode()))
    return {**message, "headers": headers}
