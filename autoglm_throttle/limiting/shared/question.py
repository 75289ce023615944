"""What a shared store must be asked about one demand, and what came of it."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Literal, Protocol

from autoglm_throttle.limiting.shared.store import Answer, Charge, Store, Trouble
from autoglm_throttle.model import Decision, Demand

Key = tuple[str, str, str, int]
"""Set of limits, user, address, units: what makes two questions the same."""


class Asker(Protocol):
    """Who asks, and makes a decision of the answer."""

    store: Store

    def answered(self, question: Question, answer: Answer | Trouble, now: float) -> Decision:
        """The decision."""
        ...

    def undo(self, question: Question, now: float) -> None:
        """Take back what was allowed."""
        ...


class Question:
    """One request that waits for the word of the store."""

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
        """What has been allowed and may be given back."""
        self.charged_s: float | None = None
        """When this process alone has charged it."""

    def send(self) -> Awaitable[Answer | Trouble]:
        """Ask, without the lock; answered before the deadline, one way or the other."""
        return self._asker.store.charge(self.charges)

    def answered(self, answer: Answer | Trouble, now: float) -> Decision:
        """The decision, under the lock."""
        return self._asker.answered(self, answer, now)

    def undo(self, now: float) -> None:
        """Give back what was allowed, under the lock. Idempotent."""
        self._asker.undo(self, now)
