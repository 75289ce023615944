"""A check of one demand in the shared store, and its result."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Literal, Protocol

from autoglm_throttle.limiting.shared.store import Answer, Charge, Store, Trouble
from autoglm_throttle.model import Decision, Demand

Key = tuple[str, str, str, int]
"""Set of limits, user, address, units: equal for equal checks."""


class Asker(Protocol):
    """Sends checks to a store and makes decisions of the answers."""

    store: Store

    def answered(self, question: Question, answer: Answer | Trouble, now: float) -> Decision:
        """Return the decision."""
        ...

    def undo(self, question: Question, now: float) -> None:
        """Refund an admission."""
        ...


class Question:
    """One request that waits for the answer of the store."""

    __slots__ = ("_asker", "answer", "charged_s", "charges", "demand", "key", "sent_s")

    allowed: Literal[False] = False

    def __init__(
        self,
        asker: Asker,
        demand: Demand,
        key: Key,
        charges: tuple[Charge, ...],
        now: float,
    ) -> None:
        self._asker = asker
        self.demand: Demand = demand
        self.key: Key = key
        self.charges: tuple[Charge, ...] = charges
        self.sent_s: float = now
        self.answer: Answer | None = None
        """The answer of an admission, for the refund."""
        self.charged_s: float | None = None
        """Time at which this process alone has charged it."""

    def send(self) -> Awaitable[Answer | Trouble]:
        """Send the check, without the lock; it ends before the deadline, with or without an answer."""
        return self._asker.store.charge(self.charges)

    def answered(self, answer: Answer | Trouble, now: float) -> Decision:
        """Return the decision, under the lock."""
        return self._asker.answered(self, answer, now)

    def undo(self, now: float) -> None:
        """Refund an admission, under the lock. Idempotent."""
        self._asker.undo(self, now)
