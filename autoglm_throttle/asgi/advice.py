"""Passes the permit and the resource advice to the app, in its scope."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from autoglm_throttle.admission.permit import Permit
from autoglm_throttle.throttle import Throttle

MARKER = "autoglm_throttle"
"""The scope entry with the request's decision: a dict from Throttle to Permit or Rejection.
None if the request is exempt. In ``scope["state"]`` the entry that holds the `ResourceAdvice`.
"""


class AdviceMiddleware:
    """Puts the `ResourceAdvice` of each admitted request into ``scope["state"]`` of the app.

    Args:
        app: the protected app.
        throttle: the throttle whose permits carry the advice.
    """

    def __init__(self, app: Callable[[Any, Any, Any], Awaitable[None]], throttle: Throttle) -> None:
        self.app = app
        self._throttle = throttle

    def __call__(
        self,
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[Any]],
        send: Callable[[Any], Awaitable[None]],
    ) -> Awaitable[None]:
        """Pass a connection on."""
        permit = scope[MARKER].get(self._throttle) if MARKER in scope else None
        if permit is not None:
            scope.setdefault("state", {})[MARKER] = permit.advice
        return self.app(scope, receive, send)


def permit_of(scope: Mapping[str, Any]) -> Permit | None:
    """Return the permit of a request, from the innermost middleware; None if it is exempt or has none.

    An app that waits for others may give its slot back meanwhile: `Permit.pause` and `Permit.resume`.
    """
    verdicts: dict[Throttle, object] = scope.get(MARKER) or {}
    verdict = next(reversed(verdicts.values()), None)
    return verdict if isinstance(verdict, Permit) else None
