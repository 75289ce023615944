"""Marks responses produced by the throttle, so that the app's breaker does not count them."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

SCOPE_KEY = "autoglm_throttle.blame"
"""The scope entry with the `FailureAttribution` of a request to an app behind a breaker."""


class Blame:
    """Attribution of one request's response, written by inner middleware.

    One object serves all breakers around one request, since scopes are copied on their way in.
    """

    __slots__ = ("cause", "ours")

    def __init__(self) -> None:
        self.ours: bool = False
        """Whether the throttle produced the response; no breaker may count it then."""
        self.cause: str = ""
        """Reason of the throttle's response; empty: a fallback must not replace it."""


def blame_of(scope: MutableMapping[str, Any]) -> Blame:
    """Return the request's `FailureAttribution`; create it if there is none."""
    found = scope.get(SCOPE_KEY)
    if not isinstance(found, Blame):
        found = scope[SCOPE_KEY] = Blame()
    return found


def excuse(scope: MutableMapping[str, Any], cause: str = "") -> None:
    """Attribute the coming response to the throttle. Has no effect outside a breaker.

    Args:
        scope: of the request.
        cause: cause passed to a fallback of the app; empty: no fallback may answer.
    """
    found = scope.get(SCOPE_KEY)
    if isinstance(found, Blame):
        found.ours, found.cause = True, cause
