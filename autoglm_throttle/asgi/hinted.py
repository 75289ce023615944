"""How the app hears of the hint: in the state of its scope, where frameworks look."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from autoglm_throttle.throttle import Throttle

MARKER = "autoglm_throttle"
"""The scope entry that says what became of the request: a dict from Throttle to Permit or Rejection,
or None where the request is exempt. In ``scope["state"]`` the entry that holds the `Hint`."""


class Hinted:
    """Stands before an app and puts the `Hint` of each admitted request into ``scope["state"]``.

    Args:
        app: what is protected.
        throttle: whose permits have hints.
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
            scope.setdefault("state", {})[MARKER] = permit.hint
        return self.app(scope, receive, send)
