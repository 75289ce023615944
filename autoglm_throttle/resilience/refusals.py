"""Refusals made fast: while a breaker is open, making one is most of what a call costs."""

from __future__ import annotations

from autoglm_throttle.model import Cause, Refusal, State


class _Draft(Refusal):
    """A refusal that can still be written: what is frozen takes four times as long to make.

    It becomes a Refusal, and frozen, before anybody sees it.
    """

    __slots__ = ()
    __setattr__ = object.__setattr__
    __delattr__ = object.__delattr__

    def __init__(self) -> None:
        pass


def refusal(
    name: str,
    state: State,
    cause: Cause,
    retry_after_s: float,
    last_failure: str,
    lease_wanted: bool = False,
) -> Refusal:
    """The same as ``Refusal(...)``, in a third of the time."""
    draft = _Draft()
    draft.name = name  # type: ignore[misc]
    draft.state = state  # type: ignore[misc]
    draft.cause = cause  # type: ignore[misc]
    draft.retry_after_s = retry_after_s  # type: ignore[misc]
    draft.last_failure = last_failure  # type: ignore[misc]
    draft.lease_wanted = lease_wanted  # type: ignore[misc]
    draft.__class__ = Refusal  # type: ignore[assignment]
    return draft
