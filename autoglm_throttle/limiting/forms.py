"""The form in which it is kept what a user has spent: exact, compact, or both side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from autoglm_throttle.limiting.exact_log import ExactLog
from autoglm_throttle.limiting.sub_buckets import SubBuckets
from autoglm_throttle.model import Decision, UserLimit

Account = Any
"""What a form keeps of one user: a log, a ring, or a tuple of them. Only the form looks inside."""


class Form(Protocol):
    """How the units of a user under a set of limits are kept and judged.

    Whoever calls sees to it that nothing is given back while a call lasts; `idle` alone bears it.
    """

    def open(self) -> Account:
        """The account of somebody who has spent nothing."""
        ...

    def resize(self, limits: Sequence[UserLimit]) -> None:
        """Judge by other units from now on, at most those it was made for; every account stays as it is."""
        ...

    def verdicts(self, account: Account, units: int, now: float) -> list[Decision]:
        """What each limit says on ``units``, with what would remain after them; spends nothing."""
        ...

    def verdicts_each(self, account: Account, units: Sequence[int], now: float) -> list[Decision]:
        """The same where each limit is asked for units of its own."""
        ...

    def spend(self, account: Account, units: int, now: float) -> None:
        """Charge ``units`` that every limit has allowed."""
        ...

    def take_out(self, account: Account, units: int, charged_at: float, now: float) -> bool:
        """Remove units charged at an instant; whether they were found."""
        ...

    def idle(self, account: Account, now: float) -> bool:
        """Whether nothing is counted any more."""
        ...

    def left(self, account: Account, now: float) -> float:
        """The share that is left of the limit with the least: 1 for an idle user, 0 for an exhausted one."""
        ...


def form_of(limits: tuple[UserLimit, ...]) -> Form:
    """The form for a set of limits: one log for all exact ones, a ring for each larger one."""
    exact = [index for index, limit in enumerate(limits) if limit.exact]
    parts = [(ExactLog([limits[index] for index in exact]), exact)] if exact else []
    rings = [(SubBuckets(limit), [index]) for index, limit in enumerate(limits) if not limit.exact]
    both: list[tuple[Form, list[int]]] = [*parts, *rings]
    return both[0][0] if len(both) == 1 else Mixed(both)


class Mixed:
    """Several forms side by side; what it keeps of a user is a tuple of their accounts.

    Args:
        parts: forms, each with the places of its limits in the set.
    """

    def __init__(self, parts: Sequence[tuple[Form, Sequence[int]]]) -> None:
        self._parts = tuple(parts)
        self._forms = tuple(form for form, _ in parts)
        places = [place for _, theirs in parts for place in theirs]
        self._order = sorted(range(len(places)), key=places.__getitem__)

    def open(self) -> Account:
        """The account of somebody who has spent nothing."""
        return tuple([form.open() for form in self._forms])

    def resize(self, limits: Sequence[UserLimit]) -> None:
        """Judge by other units from now on."""
        for form, places in self._parts:
            form.resize([limits[place] for place in places])

    def verdicts(self, account: Account, units: int, now: float) -> list[Decision]:
        """What each limit says on ``units``, in the order of the set."""
        found: list[Decision] = []
        for form, part in zip(self._forms, account, strict=True):
            found += form.verdicts(part, units, now)
        return [found[index] for index in self._order]

    def verdicts_each(self, account: Account, units: Sequence[int], now: float) -> list[Decision]:
        """The same where each limit is asked for units of its own."""
        found: list[Decision] = []
        for (form, places), part in zip(self._parts, account, strict=True):
            found += form.verdicts_each(part, [units[place] for place in places], now)
        return [found[index] for index in self._order]

    def spend(self, account: Account, units: int, now: float) -> None:
        """Charge ``units`` under every limit."""
        for form, part in zip(self._forms, account, strict=True):
            form.spend(part, units, now)

    def take_out(self, account: Account, units: int, charged_at: float, now: float) -> bool:
        """Remove units wherever they have not left by themselves; whether any limit still counted them."""
        found = False
        for form, part in zip(self._forms, account, strict=True):
            found |= form.take_out(part, units, charged_at, now)
        return found

    def idle(self, account: Account, now: float) -> bool:
        """Whether no limit counts anything any more."""
        return all(form.idle(part, now) for form, part in zip(self._forms, account, strict=True))

    def left(self, account: Account, now: float) -> float:
        """The share that is left of the limit with the least."""
        return min(form.left(part, now) for form, part in zip(self._forms, account, strict=True))
