"""A check of one demand in the shared store, and its result."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Literal, Protocol

from autoglm_throttle.store.user_limit_store import Answer, StoreCharge, StoreErrorKind, UserLimitStore
from autoglm_throttle.types import Decision, Demand

Key = tuple[str, str, str, int]
"""Set of limits, user, address, units: equal for equal checks."""


class CheckSender(Protocol):
    """Sends checks to a store and makes decisions of the answers."""

    store: UserLimitStore

    def resolve(self, check: PendingCheck, answer: Answer | StoreErrorKind, now: float) -> Decision:
        """Return the decision."""
        ...

    def undo(self, check: PendingCheck, now: float) -> None:
        """Refund an admission."""
        ...


class PendingCheck:
    """One request that waits for the answer of the store."""

    __slots__ = ("_sender", "answer", "charged_s", "charges", "demand", "key", "sent_s")

    allowed: Literal[False] = False

    def __init__(
        self,
        sender: CheckSender,
        demand: Demand,
        key: Key,
        charges: tuple[StoreCharge, ...],
        now: float,
    ) -> None:
        self._sender = sender
        self.demand: Demand = demand
        self.key: Key = key
        self.charges: tuple[StoreCharge, ...] = charges
        self.sent_s: float = now
        self.answer: Answer | None = None
        """The answer of an admission, for the refund."""
        self.charged_s: float | None = None
        """Time at which this process alone has charged it."""

    def send(self) -> Awaitable[Answer | StoreErrorKind]:
        """Send the check, without the lock; it ends before the deadline, with or without an answer."""
        return self._sender.store.charge(self.charges)

    def resolve(self, answer: Answer | StoreErrorKind, now: float) -> Decision:
        """Return the decision, under the lock."""
        return self._sender.resolve(self, answer, now)

    def undo(self, now: float) -> None:
        """Refund an admission, under the lock. Idempotent."""
        self._sender.undo(self, now)
