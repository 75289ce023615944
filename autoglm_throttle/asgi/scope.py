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

# The value is a list of a throttle, its decision, the next throttle and so on, outermost first. A list takes
# a quarter of the time of a dict, and copies of a scope share it.
MARKER = "autoglm_throttle"
"""The scope entry with the decisions on a request, which `verdicts_of` reads. In ``scope["state"]`` the entry
that holds the `ResourceAdvice`.
"""


def verdicts_of(scope: Mapping[str, Any]) -> dict[Throttle, Any]:
    """Return the decisions on a request, outermost throttle first; empty if there are none.

    A decision is a `Permit` or a `Rejection`; None: the throttle exempts the request.
    """
    entry = scope.get(MARKER)
    return dict(zip(entry[::2], entry[1::2], strict=False)) if isinstance(entry, list) else {}


def store_verdict(scope: Scope, throttle: Throttle, verdict: object) -> None:
    """Store the decision of a throttle on a request, in place of its earlier one."""
    entry = scope.get(MARKER)
    if not isinstance(entry, list):
        entry = scope[MARKER] = []
    if throttle in entry[::2]:
        entry[2 * entry[::2].index(throttle) + 1] = verdict
    else:
        entry += (throttle, verdict)


def permit_of(scope: Mapping[str, Any]) -> Permit | None:
    """Return the permit of a request, from the innermost middleware; None if it is exempt or has none.

    An app that waits for others may give its slot back meanwhile: `Permit.pause` and `Permit.resume`.
    """
    verdict = next(reversed(verdicts_of(scope).values()), None)
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
