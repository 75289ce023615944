"""What a process still has to tell its fleet about its breakers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from autoglm_throttle.model import Cause, Outcome, State

MOST: Final = 64
"""Writes that wait at most for each breaker: more trials than anybody makes at a time. What is too old for
that is forgotten: a lease ends by itself."""


@dataclass(frozen=True, slots=True)
class Opening:
    """This process has opened a breaker."""

    name: str
    until_s: float
    """Monotonic seconds at which the open period ends; then there is nothing left to tell."""
    rounds: int
    cause: Cause
    known: int
    """Version of what this process knew when it opened."""
    settled: bool = True
    """Whether all that was known had been said to the breaker by then."""


@dataclass(frozen=True, slots=True)
class Verb:
    """An operator has decided something in this process; or the store has forgotten that one did."""

    name: str
    state: State
    known: int
    settled: bool = True
    again: bool = False
    """Whether the store has forgotten it: what others have said since goes before."""


@dataclass(frozen=True, slots=True)
class Finish:
    """A trial has ended, or nobody wants it any more."""

    name: str
    ticket: str
    version: int
    outcome: Outcome
    need: int
    wait_s: float
    until_s: float
    """Monotonic seconds at which its lease ends, and with it the interest in its end."""


Write: TypeAlias = Opening | Verb | Finish


class Outbox:
    """Writes of each breaker in their order; of its state only the newest. Its owner's lock guards it."""

    def __init__(self) -> None:
        self._of: dict[str, dict[str, Write]] = {}
        """Name, then ticket; a state has none."""

    def __len__(self) -> int:
        return sum(len(writes) for writes in self._of.values())

    def __repr__(self) -> str:
        return f"Outbox({len(self)} to tell of {len(self._of)} breakers)"

    def put(self, write: Write) -> None:
        """Take a write. A new state ends the trials of the one before, and what is to be told of them."""
        writes = self._of.setdefault(write.name, {})
        if not isinstance(write, Finish):
            for ticket in [key for key, old in writes.items() if not _gives_back(old)]:
                del writes[ticket]
        writes[_ticket(write)] = write
        if len(writes) > MOST:
            del writes[next(iter(writes))]

    def holds(self, name: str) -> bool:
        """Whether a state of that breaker has yet to be told: what the fleet says meanwhile may be older."""
        return "" in self._of.get(name, ())

    def next(self, now: float, name: str | None = None) -> Write | None:
        """What to tell next, of this breaker or of any; what is no longer worth telling is dropped.

        Args:
            now: monotonic seconds.
            name: None: of the one that has waited longest.
        """
        for each in list(self._of) if name is None else [name]:
            writes = self._of.get(each, {})
            for ticket, write in list(writes.items()):
                if isinstance(write, Verb) or now < write.until_s:
                    return write
                del writes[ticket]
            self._of.pop(each, None)
        return None

    def told(self, write: Write) -> None:
        """It was told, or need not be; a newer one in its place stays."""
        writes = self._of.get(write.name, {})
        if writes.get(_ticket(write)) is write:
            del writes[_ticket(write)]
        if not writes:
            self._of.pop(write.name, None)

    def later(self, name: str) -> None:
        """What is to be told of that breaker could not be: others first."""
        if name in self._of:
            self._of[name] = self._of.pop(name)


def _ticket(write: Write) -> str:
    return write.ticket if isinstance(write, Finish) else ""


def _gives_back(write: Write) -> bool:
    return isinstance(write, Finish) and write.outcome is Outcome.NEUTRAL
