"""Marks responses produced by the throttle, so that the app's breaker does not count them."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

SCOPE_KEY = "autoglm_throttle.attribution"
"""The scope entry with the `FailureAttribution` of a request to an app behind a breaker."""


class FailureAttribution:
    """Attribution of one request's response, written by inner middleware.

    One object serves all breakers around one request, since scopes are copied on their way in.
    """

    __slots__ = ("by_throttle", "cause")

    def __init__(self) -> None:
        self.by_throttle: bool = False
        """Whether the throttle produced the response; no breaker may count it then."""
        self.cause: str = ""
        """Reason of the throttle's response; empty: a fallback must not replace it."""


def attribution_of(scope: MutableMapping[str, Any]) -> FailureAttribution:
    """Return the request's `FailureAttribution`; create it if there is none."""
    attribution = scope.get(SCOPE_KEY)
    if not isinstance(attribution, FailureAttribution):
        attribution = scope[SCOPE_KEY] = FailureAttribution()
    return attribution


def attribute_to_throttle(scope: MutableMapping[str, Any], cause: str = "") -> None:
    """Attribute the coming response to the throttle. Has no effect outside a breaker.

    Args:
        scope: of the request.
        cause: cause passed to a fallback of the app; empty: no fallback may answer.
    """
    attribution = scope.get(SCOPE_KEY)
    if isinstance(attribution, FailureAttribution):
        attribution.by_throttle, attribution.cause = True, cause
