"""Entries of the scope: the permit, the advice, and whether the throttle made the response."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

import anyio
from starlette.requests import ClientDisconnect
from starlette.websockets import WebSocketDisconnect

from autoglm_throttle.admission.permit import Permit
from autoglm_throttle.throttle import Throttle
from autoglm_throttle.types import GuardRejected, Outcome, Rejected

Message = Any  # An ASGI message

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Any, Any, Any], Awaitable[None]]

CLIENT_DISCONNECTS = (ClientDisconnect, WebSocketDisconnect)

# The scope entry with the request's decision: a dict from Throttle to Permit or Rejection. None if the
# request is exempt. In ``scope["state"]`` the entry that holds the `ResourceAdvice`.
MARKER = "autoglm_throttle"


def permit_of(scope: Mapping[str, Any]) -> Permit | None:
    """Return the permit of a request, from the innermost middleware; None if it is exempt or has none.

    An app that waits for others may give its slot back meanwhile: `Permit.pause` and `Permit.resume`.
    """
    verdicts: dict[Throttle, object] = scope.get(MARKER) or {}
    verdict = next(reversed(verdicts.values()), None)
    return verdict if isinstance(verdict, Permit) else None


# The scope entry with the `FailureAttribution` of a request to an app behind a breaker.
SCOPE_KEY = "autoglm_throttle.attribution"


@dataclass(slots=True)
class FailureAttribution:
    """Attribution of one request's response, written by inner middleware.

    One object serves all breakers around one request, since scopes are copied on their way in.
    """

    by_throttle: bool = False  # whether the throttle produced the response; no breaker may count it then
    cause: str = ""  # reason of the throttle's response; empty: a fallback must not replace it


def attribution_of(scope: Scope) -> FailureAttribution:
    """Return the request's `FailureAttribution`; create it if there is none."""
    attribution = scope.get(SCOPE_KEY)
    if not isinstance(attribution, FailureAttribution):
        attribution = scope[SCOPE_KEY] = FailureAttribution()
    return attribution


def attribute_to_throttle(scope: Scope, cause: str = "") -> None:
    """Attribute the coming response to the throttle. Has no effect outside a breaker.

    The cause is passed to a fallback of the app; empty: no fallback may answer.
    """
    attribution = scope.get(SCOPE_KEY)
    if isinstance(attribution, FailureAttribution):
        attribution.by_throttle, attribution.cause = True, cause


def outcome_of(error: BaseException) -> Outcome:
    """Return the outcome of a request whose app raised: that of a rejection or a disconnect is neutral."""
    is_neutral = isinstance(error, (*CLIENT_DISCONNECTS, Rejected)) or not isinstance(error, Exception)
    return Outcome.NEUTRAL if is_neutral or GuardRejected.find(error) else Outcome.FAILURE


async def fail_startup(fault: Exception, scope: Scope, receive: Receive, send: Send) -> None:
    """Fail the startup of a server with ``fault``; raise it on any other connection."""
    if scope.get("type") != "lifespan":
        raise fault
    await receive()
    await send({"type": "lifespan.startup.failed", "message": str(fault)})


def in_event_loop() -> bool:
    """Whether an event loop runs the caller."""
    try:
        anyio.get_current_task()
    except RuntimeError:
        return False
    return True
