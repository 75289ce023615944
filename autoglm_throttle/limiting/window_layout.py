"""Layouts of a user's account: an exact log, compact buckets, or both side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from autoglm_throttle.limiting.bucket_window import BucketWindow
from autoglm_throttle.limiting.log_window import LogWindow
from autoglm_throttle.types import Decision, UserLimit

Account = Any
"""Account of one user: a log, a ring, or a tuple of them. Only its layout reads it."""


class WindowLayout(Protocol):
    """Stores and tests the units of a user under a set of limits."""

    def open(self) -> Account:
        """Return the account of a new user."""
        ...

    def resize(self, limits: Sequence[UserLimit]) -> None:
        """Apply other units from now on, at most the original ones; accounts stay as they are."""
        ...

    def test(self, account: Account, units: int, now: float) -> list[Decision]:
        """Return each limit's decision on ``units``, with the units that would remain; charges nothing."""
        ...

    def test_each(self, account: Account, units: Sequence[int], now: float) -> list[Decision]:
        """Return each limit's decision on its own number of units."""
        ...

    def charge(self, account: Account, units: int, now: float) -> None:
        """Charge ``units`` that every limit has allowed."""
        ...

    def refund(self, account: Account, units: int, charged_at: float, now: float) -> bool:
        """Remove the units of the charge at one instant; True if they were present."""
        ...

    def is_idle(self, account: Account, now: float) -> bool:
        """Whether nothing is counted."""
        ...

    def remaining(self, account: Account, now: float) -> float:
        """Return the remaining share of the fullest limit: 1 for an idle user, 0 for an exhausted one."""
        ...


def layout_of(limits: tuple[UserLimit, ...]) -> WindowLayout:
    """Return the layout for a set of limits: one log for all exact limits, a ring for each larger one."""
    exact = [index for index, limit in enumerate(limits) if limit.exact]
    parts = [(LogWindow([limits[index] for index in exact]), exact)] if exact else []
    rings = [(BucketWindow(limit), [index]) for index, limit in enumerate(limits) if not limit.exact]
    both: list[tuple[WindowLayout, list[int]]] = [*parts, *rings]
    return both[0][0] if len(both) == 1 else MixedLayout(both)


class MixedLayout:
    """Several layouts side by side; the account of a user is a tuple of theirs.

    Args:
        parts: layouts, each with the indices of its limits in the set.
    """

    def __init__(self, parts: Sequence[tuple[WindowLayout, Sequence[int]]]) -> None:
        self._parts = tuple(parts)
        self._layouts = tuple(form for form, _ in parts)
        places = [place for _, theirs in parts for place in theirs]
        self._order = sorted(range(len(places)), key=places.__getitem__)

    def open(self) -> Account:
        """Return the account of a new user."""
        return tuple([layout.open() for layout in self._layouts])

    def resize(self, limits: Sequence[UserLimit]) -> None:
        """Apply other units from now on."""
        for layout, places in self._parts:
            layout.resize([limits[place] for place in places])

    def test(self, account: Account, units: int, now: float) -> list[Decision]:
        """Return each limit's decision on ``units``, in the order of the set."""
        decisions: list[Decision] = []
        for layout, part in zip(self._layouts, account, strict=True):
            decisions += layout.test(part, units, now)
        return [decisions[index] for index in self._order]

    def test_each(self, account: Account, units: Sequence[int], now: float) -> list[Decision]:
        """Return each limit's decision on its own number of units."""
        decisions: list[Decision] = []
        for (layout, places), part in zip(self._parts, account, strict=True):
            decisions += layout.test_each(part, [units[place] for place in places], now)
        return [decisions[index] for index in self._order]

    def charge(self, account: Account, units: int, now: float) -> None:
        """Charge ``units`` under every limit."""
        for layout, part in zip(self._layouts, account, strict=True):
            layout.charge(part, units, now)

    def refund(self, account: Account, units: int, charged_at: float, now: float) -> bool:
        """Remove units from every layout that still counts them; True if any did."""
        refunded = False
        for layout, part in zip(self._layouts, account, strict=True):
            refunded |= layout.refund(part, units, charged_at, now)
        return refunded

    def is_idle(self, account: Account, now: float) -> bool:
        """Whether no limit counts any unit."""
        return all(layout.is_idle(part, now) for layout, part in zip(self._layouts, account, strict=True))

    def remaining(self, account: Account, now: float) -> float:
        """Return the remaining share of the fullest limit."""
        return min(layout.remaining(part, now) for layout, part in zip(self._layouts, account, strict=True))
