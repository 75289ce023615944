"""Layouts of a user's account: an exact log, compact buckets, or both side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from autoglm_throttle.limiting.exact_log import ExactLog
from autoglm_throttle.limiting.sub_buckets import SubBuckets
from autoglm_throttle.model import Decision, UserLimit

Account = Any
"""Account of one user: a log, a ring, or a tuple of them. Only its layout reads it."""


class Form(Protocol):
    """Stores and tests the units of a user under a set of limits.

    The caller prevents refunds during a call; only `is_idle` tolerates them.
    """

    def open(self) -> Account:
        """Return the account of a new user."""
        ...

    def resize(self, limits: Sequence[UserLimit]) -> None:
        """Apply other units from now on, at most the original ones; accounts stay as they are."""
        ...

    def verdicts(self, account: Account, units: int, now: float) -> list[Decision]:
        """Return each limit's decision on ``units``, with the units that would remain; charges nothing."""
        ...

    def verdicts_each(self, account: Account, units: Sequence[int], now: float) -> list[Decision]:
        """Return each limit's decision on its own number of units."""
        ...

    def spend(self, account: Account, units: int, now: float) -> None:
        """Charge ``units`` that every limit has allowed."""
        ...

    def take_out(self, account: Account, units: int, charged_at: float, now: float) -> bool:
        """Remove the units of the charge at one instant; True if they were present."""
        ...

    def idle(self, account: Account, now: float) -> bool:
        """Whether nothing is counted."""
        ...

    def left(self, account: Account, now: float) -> float:
        """Return the remaining share of the fullest limit: 1 for an idle user, 0 for an exhausted one."""
        ...


def form_of(limits: tuple[UserLimit, ...]) -> Form:
    """Return the layout for a set of limits: one log for all exact limits, a ring for each larger one."""
    exact = [index for index, limit in enumerate(limits) if limit.exact]
    parts = [(ExactLog([limits[index] for index in exact]), exact)] if exact else []
    rings = [(SubBuckets(limit), [index]) for index, limit in enumerate(limits) if not limit.exact]
    both: list[tuple[Form, list[int]]] = [*parts, *rings]
    return both[0][0] if len(both) == 1 else Mixed(both)


class Mixed:
    """Several layouts side by side; the account of a user is a tuple of theirs.

    Args:
        parts: layouts, each with the indices of its limits in the set.
    """

    def __init__(self, parts: Sequence[tuple[Form, Sequence[int]]]) -> None:
        self._parts = tuple(parts)
        self._forms = tuple(form for form, _ in parts)
        places = [place for _, theirs in parts for place in theirs]
        self._order = sorted(range(len(places)), key=places.__getitem__)

    def open(self) -> Account:
        """Return the account of a new user."""
        return tuple([form.open() for form in self._forms])

    def resize(self, limits: Sequence[UserLimit]) -> None:
        """Apply other units from now on."""
        for form, places in self._parts:
            form.resize([limits[place] for place in places])

    def verdicts(self, account: Account, units: int, now: float) -> list[Decision]:
        """Return each limit's decision on ``units``, in the order of the set."""
        found: list[Decision] = []
        for form, part in zip(self._forms, account, strict=True):
            found += form.verdicts(part, units, now)
        return [found[index] for index in self._order]

    def verdicts_each(self, account: Account, units: Sequence[int], now: float) -> list[Decision]:
        """Return each limit's decision on its own number of units."""
        found: list[Decision] = []
        for (form, places), part in zip(self._parts, account, strict=True):
            found += form.verdicts_each(part, [units[place] for place in places], now)
        return [found[index] for index in self._order]

    def spend(self, account: Account, units: int, now: float) -> None:
        """Charge ``units`` under every limit."""
        for form, part in zip(self._forms, account, strict=True):
            form.spend(part, units, now)

    def take_out(self, account: Account, units: int, charged_at: float, now: float) -> bool:
        """Remove units from every layout that still counts them; True if any did."""
        found = False
        for form, part in zip(self._forms, account, strict=True):
            found |= form.take_out(part, units, charged_at, now)
        return found

    def idle(self, account: Account, now: float) -> bool:
        """Whether no limit counts any unit."""
        return all(form.idle(part, now) for form, part in zip(self._forms, account, strict=True))

    def left(self, account: Account, now: float) -> float:
        """Return the remaining share of the fullest limit."""
        return min(form.left(part, now) for form, part in zip(self._forms, account, strict=True))
