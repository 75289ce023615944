"""Whose doing an answer is: a refusal of our own says nothing about the health of the app behind it."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

SCOPE_KEY = "autoglm_throttle.blame"
"""The scope entry with the `Blame` of a request whose app stands behind a breaker."""


class Blame:
    """What those further in say about the answer of one request.

    One object for all breakers round one request, since scopes are copied on their way in.
    """

    __slots__ = ("cause", "ours")

    def __init__(self) -> None:
        self.ours: bool = False
        """Whether the answer is a refusal of ours, which no breaker must count."""
        self.cause: str = ""
        """What kept us from another answer; empty: a fallback must not answer in its place."""


def blame_of(scope: MutableMapping[str, Any]) -> Blame:
    """The request's `Blame`, made where there is none."""
    found = scope.get(SCOPE_KEY)
    if not isinstance(found, Blame):
        found = scope[SCOPE_KEY] = Blame()
    return found


def excuse(scope: MutableMapping[str, Any], cause: str = "") -> None:
    """Say that the answer to come is ours. Nothing happens where no breaker listens.

    Args:
        scope: of the request.
        cause: what a fallback of the app may be given for; empty: none may.
    """
    found = scope.get(SCOPE_KEY)
    if isinstance(found, Blame):
        found.ours, found.cause = True, cause
